"""PLC: progressive label correction (Zhang et al. 2021), the method that MDDC and CDDC calibrate."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from unflip.labels.correction import CorrectionOptions, Corrector
from unflip.labels.store import LabelStore
from unflip.methods.base import Method, Observed, Phase, Setting
from unflip.methods.warmup import Warmup


class PLC(Method):
    """Cross-entropy on labels that are corrected at each epoch's end, from the end of the warm-up on.

    The rule uses the mean softmax of the last epochs' training passes, so it needs no extra pass.
    """

    Options = CorrectionOptions
    options: CorrectionOptions
    records_probs = True

    def __init__(self, options: CorrectionOptions, setting: Setting) -> None:
        super().__init__(options, setting)
        self.corrector = Corrector(options, setting.train)
        self.changed = 0
        self.warming = Warmup(options.warmup, setting.epochs)

    @property
    def warmup(self) -> int:
        """Epochs on the given labels; the maximum, while the actual number is not yet known."""
        return self.warming.end

    def phases(self, epoch: int, observed: Observed, labels: LabelStore) -> Iterator[Phase]:
        """Yield one pass, or up to ``rounds``, each after another correction, until no label changes."""
        first = observed.phases_done
        if first == 0:
            self.changed = 0
        for number in range(first, self.options.rounds if epoch >= self.warmup else 1):
            if number > first and not self._correct(epoch, observed, labels):
                break
            yield Phase(self.setting.train)

    def end_epoch(self, epoch: int, observed: Observed, labels: LabelStore) -> dict[str, Any]:
        """Correct the labels; in the warm-up, only record the probabilities."""
        self.warming.observe(epoch, observed)
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
        """Return the mean probabilities of the window."""
        return self.corrector.window.mean()

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Apply the rule with the current threshold."""
        return self.corrector.propose(probs, labels)

    def state_dict(self) -> dict[str, Any]:
        """Return threshold, window, warm-up, and the number of labels changed in the current epoch."""
        return {
            "corrector": self.corrector.state_dict(),
            "warming": self.warming.state_dict(),
            "changed": self.changed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.corrector.load_state_dict(state["corrector"])
        self.changed = state["changed"]
        self.warming.load_state_dict(state["warming"])
