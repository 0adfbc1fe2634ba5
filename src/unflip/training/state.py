"""RunState: the state of a run after its epochs so far; all of it is part of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from unflip.nn.ensemble import Ensemble
from unflip.training.checkpoint import copy_state
from unflip.training.selection import selection_score


@dataclass
class BestEpoch:
    """The best epoch so far under the selection rule."""

    epoch: int = 0
    score: float = float("-inf")
    state: dict[str, Tensor] = field(default_factory=dict)
    """Of the model; see :class:`unflip.nn.ensemble.Ensemble`."""

    def consider(self, rule: str, line: Mapping[str, Any], model: Ensemble) -> None:
        """Keep a copy of the model if the epoch with these metrics is better than all before."""
        score = selection_score(rule, line)
        if score > self.score:
            self.epoch, self.score = line["epoch"], score
            self.state = copy_state(model.state_dict())


@dataclass
class RunState:
    """The metrics of every epoch, the best epoch, and every restore."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    best: BestEpoch = field(default_factory=BestEpoch)
    restores: list[dict[str, Any]] = field(default_factory=list)
    """Epoch and reason of every restore after training diverged."""
    seconds: float = 0.0

    @property
    def epochs_done(self) -> int:
        """Number of finished epochs."""
        return len(self.metrics)
