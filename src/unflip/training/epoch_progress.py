"""EpochProgress: how far an epoch has come, and what it has seen so far."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor


@dataclass
class EpochProgress:
    """What a run that goes on in the middle of an epoch needs beside networks, optimisers, method and labels."""

    phase: int = 0
    """Phases that are done."""
    losses: dict[str, float] = field(default_factory=dict)
    """Of these phases."""
    probs: Tensor | None = None
    """Recorded in these phases (m, k)."""
    terms: list[dict[str, Tensor]] = field(default_factory=list)
    """Of the loss, in each step of the phase under way."""
    logits: list[Tensor] = field(default_factory=list)
    """Recorded in the phase under way."""
    started: float = field(default_factory=lambda: time.perf_counter())
    """When; a resumed epoch counts the time that it had taken."""

    @property
    def steps(self) -> int:
        """Steps of the phase under way that are done."""
        return len(self.terms)

    def end_phase(self, losses: Mapping[str, float]) -> None:
        """Count the phase under way as done."""
        self.phase += 1
        self.losses |= losses
        self.terms, self.logits = [], []

    def state_dict(self) -> dict[str, Any]:
        """Return all of it, the steps as columns."""
        names = self.terms[0] if self.terms else ()
        return {
            "phase": self.phase,
            "losses": self.losses,
            "probs": self.probs,
            "terms": {name: torch.stack([step[name] for step in self.terms]) for name in names},
            "logits": torch.cat(self.logits) if self.logits else None,
            "seconds": time.perf_counter() - self.started,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], device: torch.device) -> Self:
        """Go back to a saved state."""
        columns = {name: column.to(device) for name, column in state["terms"].items()}
        steps = max((len(column) for column in columns.values()), default=0)
        return cls(
            phase=state["phase"],
            losses=state["losses"],
            probs=None if state["probs"] is None else state["probs"].to(device),
            terms=[{name: column[step] for name, column in columns.items()} for step in range(steps)],
            logits=[] if state["logits"] is None else [state["logits"].to(device)],
            started=time.perf_counter() - state["seconds"],
        )
