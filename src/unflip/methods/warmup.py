"""The end of a warm-up: the epoch that an option names, or one that noisy validation finds during the run."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from unflip.methods.base import Observed

_PATIENCE = 3  # the warm-up ends after this many epochs without a better noisy validation accuracy


class Warmup:
    """Epochs on the given labels.

    A network first learns what most labels have in common and memorises individual wrong labels later. From then on its
    accuracy on the noisy labels of the validation examples stops improving. So an ``auto`` warm-up ends when that has
    not improved for three epochs, at the latest (and without validation examples always) after a third of the epochs.
    Once it has ended it stays so, also where a run is resumed for more epochs.

    Args:
        length: the number of epochs (0 counts as 1), or `auto`.
        epochs: those of the run.
    """

    def __init__(self, length: int | Literal["auto"], epochs: int) -> None:
        self.length = length
        self.epochs = epochs
        self.scores: list[float] = []  # noisy validation accuracy of each warm-up epoch, where it is looked at
        self.ended: int | None = None  # the epoch that an automatic warm-up ended with

    @property
    def end(self) -> int:
        """The last epoch of the warm-up; the latest possible one, while the actual one is not yet known."""
        if self.ended is not None:
            return self.ended
        if self.length == "auto":
            return warmup_end(self.scores, math.ceil(self.epochs / 3))
        return max(1, self.length)

    def observe(self, epoch: int, observed: Observed) -> None:
        """Note an epoch's noisy validation accuracy, if the warm-up depends on it, and whether it is over."""
        if self.length != "auto" or self.ended is not None:
            return
        if held_out := observed.validation():
            scan, given = held_out
            self.scores.append(float((scan.logits.argmax(1) == given).float().mean()))
        if epoch >= self.end:
            self.ended = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return what an automatic warm-up has seen."""
        return {"scores": list(self.scores), "ended": self.ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.scores, self.ended = list(state["scores"]), state["ended"]


def warmup_end(scores: Sequence[float], latest: int) -> int:
    """Return the first epoch (counted from 1) whose best score is three epochs old; at most ``latest``."""
    best = 0
    for position, score in enumerate(scores):
        if score > scores[best]:
            best = position
        if position - best >= _PATIENCE:
            return min(position + 1, latest)
    return latest
