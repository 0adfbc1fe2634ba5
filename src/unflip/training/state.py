"""RunState: what a run has come to after its epochs so far; all of it is part of a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from unflip.networks.base import bare
from unflip.training.checkpoint import copy_state
from unflip.training.selection import selection_score


@dataclass
class BestEpoch:
    """The epoch that the selection rule likes best so far."""

    epoch: int = 0
    score: float = float("-inf")
    states: list[dict[str, Tensor]] = field(default_factory=list)

    def consider(self, rule: str, line: Mapping[str, Any], networks: Sequence[nn.Module]) -> None:
        """Keep the networks as they are if the epoch with these figures is better than those before."""
        score = selection_score(rule, line)
        if score > self.score:
            self.epoch, self.score = line["epoch"], score
            self.states = [copy_state(bare(network)) for network in networks]


@dataclass
class RunState:
    """The figures of every epoch, the best one, and what went wrong on the way."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    best: BestEpoch = field(default_factory=BestEpoch)
    restores: list[dict[str, Any]] = field(default_factory=list)
    """Every time that training diverged and went back: epoch and reason."""
    seconds: float = 0.0

    @property
    def epochs_done(self) -> int:
        """How many epochs have come to their end."""
        return len(self.metrics)
