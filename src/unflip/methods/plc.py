"""PLC: progressive label correction (Zhang et al. 2021), what MDDC and CDDC calibrate."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from unflip.labels.correction import CorrectionOptions, Corrector
from unflip.labels.store import LabelStore
from unflip.methods.base import Method, Observed, Phase, Setting


class PLC(Method):
    """Cross-entropy on labels that are corrected at each epoch's end, from the end of the warm-up on.

    The confidence that decides is the mean softmax of the last epochs' training passes, so no further pass is needed.
    """

    Options = CorrectionOptions
    options: CorrectionOptions
    records_probs = True

    def __init__(self, options: CorrectionOptions, setting: Setting) -> None:
        super().__init__(options, setting)
        self.corrector = Corrector(options, setting.train)
        self.changed = 0

    @property
    def warmup(self) -> int:
        """Epochs on the given labels."""
        return max(1, self.options.warmup)

    def phases(self, epoch: int, observed: Observed, labels: LabelStore) -> Iterator[Phase]:
        """One pass; with ``rounds`` more, each after another correction, until no label changes."""
        self.changed = 0
        yield Phase(self.setting.train)
        for _ in range(1, self.options.rounds if epoch >= self.warmup else 1):
            changed = self._correct(epoch, observed, labels)
            if not changed:
                break
            yield Phase(self.setting.train)

    def end_epoch(self, epoch: int, observed: Observed, labels: LabelStore) -> dict[str, Any]:
        """Correct the labels, or in the warm-up only remember the probabilities."""
        if epoch >= self.warmup:
            self._correct(epoch, observed, labels)
        else:
            self.corrector.window.add(observed.probs)
        return {"changed": self.changed, "threshold": self.corrector.threshold}

    def _correct(self, epoch: int, observed: Observed, labels: LabelStore) -> int:
        self.corrector.window.add(observed.probs)
        changed = self.corrector.correct(epoch, labels)
        self.changed += changed
        return changed

    def beliefs(self) -> Tensor:
        """Return the window's mean."""
        return self.corrector.window.mean()

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Apply the rule with the threshold as it stands."""
        return self.corrector.propose(probs, labels)

    def state_dict(self) -> dict[str, Any]:
        """Return threshold and window."""
        return self.corrector.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore threshold and window."""
        self.corrector.load_state_dict(state)
