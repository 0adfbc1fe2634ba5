"""EpochProgress: how far an epoch has got, and what was recorded in it so far."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor


@dataclass
class EpochProgress:
    """What a run resumed in the middle of an epoch needs besides networks, optimisers, method and labels."""

    phase: int = 0
    """Number of finished phases."""
    losses: dict[str, float] = field(default_factory=dict)
    """Mean loss terms of the finished phases."""
    probs: Tensor | None = None
    """Probabilities recorded in the finished phases (m, k)."""
    terms: list[dict[str, Tensor]] = field(default_factory=list)
    """Loss terms of each step of the current phase."""
    recorded: list[Tensor] = field(default_factory=list)
    """Probabilities recorded in each step of the current phase."""
    started: float = field(default_factory=lambda: time.perf_counter())
    """Start time; in a resumed epoch it accounts for the time already spent."""

    @property
    def steps(self) -> int:
        """Number of finished steps of the current phase."""
        return len(self.terms)

    def end_phase(self, losses: Mapping[str, float]) -> None:
        """Count the current phase as finished."""
        self.phase += 1
        self.losses |= losses
        self.terms, self.recorded = [], []

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, with the steps as columns."""
        names = self.terms[0] if self.terms else ()
        return {
            "phase": self.phase,
            "losses": self.losses,
            "probs": self.probs,
            "terms": {name: torch.stack([step[name] for step in self.terms]) for name in names},
            "recorded": torch.cat(self.recorded) if self.recorded else None,
            "seconds": time.perf_counter() - self.started,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], device: torch.device) -> Self:
        """Restore a saved state."""
        columns = {name: column.to(device) for name, column in state["terms"].items()}
        steps = max((len(column) for column in columns.values()), default=0)
        return cls(
            phase=state["phase"],
            losses=state["losses"],
            probs=None if state["probs"] is None else state["probs"].to(device),
            terms=[{name: column[step] for name, column in columns.items()} for step in range(steps)],
            recorded=[] if state["recorded"] is None else [state["recorded"].to(device)],
            started=time.perf_counter() - state["seconds"],
        )
