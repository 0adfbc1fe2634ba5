"""PLC: progressive label correction (Zhang et al. 2021), the method that MDDC and CDDC calibrate."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from unflip.labels.correction import CorrectionOptions, Corrector
from unflip.labels.store import LabelStore
from unflip.methods.base import Method, Observed, Phase, Setting

_PATIENCE = 3  # the warm-up ends after this many epochs without a better noisy validation accuracy


class PLC(Method):
    """Cross-entropy on labels that are corrected at each epoch's end, from the end of the warm-up on.

    The rule uses the mean softmax of the last epochs' training passes, so it needs no extra pass.

    A network first learns what most labels have in common and memorises individual wrong labels later. From then on its
    accuracy on the noisy labels of the validation examples stops improving. So an ``auto`` warm-up ends when that has
    not improved for three epochs, at the latest (and without validation examples always) after a third of the epochs.
    """

    Options = CorrectionOptions
    options: CorrectionOptions
    records_probs = True

    def __init__(self, options: CorrectionOptions, setting: Setting) -> None:
        super().__init__(options, setting)
        self.corrector = Corrector(options, setting.train)
        self.changed = 0
        self.scores: list[float] = []  # noisy validation accuracy of each warm-up epoch

    @property
    def warmup(self) -> int:
        """Epochs on the given labels; the maximum, while the actual number is not yet known."""
        if self.options.warmup == "auto":
            return warmup_end(self.scores, math.ceil(self.setting.epochs / 3))
        return max(1, self.options.warmup)

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
        if self.options.warmup == "auto" and epoch <= self.warmup and (held_out := observed.validation()):
            scan, given = held_out
            self.scores.append(float((scan.logits.argmax(1) == given).float().mean()))
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
        """Return threshold, window, scores, and the number of labels changed in the current epoch."""
        return {"corrector": self.corrector.state_dict(), "scores": list(self.scores), "changed": self.changed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.corrector.load_state_dict(state["corrector"])
        self.changed = state["changed"]
        self.scores = list(state["scores"])


def warmup_end(scores: Sequence[float], latest: int) -> int:
    """Return the first epoch (counted from 1) whose best score is three epochs old; at most ``latest``."""
    best = 0
    for position, score in enumerate(scores):
        if score > scores[best]:
            best = position
        if position - best >= _PATIENCE:
            return min(position + 1, latest)
    return latest
