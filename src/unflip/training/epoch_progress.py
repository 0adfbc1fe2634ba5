"""EpochProgress: how far an epoch has got, and what was recorded in it so far."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor


class Growing:
    """Rows that are added one after the other, in one piece of memory.

    Many small tensors that stay, among large ones that come and go, would keep the memory of those from being used
    again.
    """

    def __init__(self, rows: Tensor) -> None:
        self._room, self._count = rows, len(rows)

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Tensor:
        """All rows so far."""
        return self._room[: self._count]

    def add(self, rows: Tensor) -> None:
        """Add rows after the others."""
        count = self._count + len(rows)
        if count > len(self._room):
            before, self._room = self.rows, self._room.new_empty(2 * count, *self._room.shape[1:])
            self._room[: self._count] = before
        self._room[self._count : count] = rows
        self._count = count


@dataclass
class EpochProgress:
    """What a run resumed in the middle of an epoch needs besides networks, optimisers, method and labels."""

    phase: int = 0
    """Number of finished phases."""
    losses: dict[str, float] = field(default_factory=dict)
    """Mean loss terms of the finished phases."""
    probs: Tensor | None = None
    """Probabilities recorded in the finished phases (m, k)."""
    terms: dict[str, Growing] = field(default_factory=dict)
    """Loss terms of each step of the current phase."""
    recorded: Growing | None = None
    """Probabilities recorded in the current phase, in the order of its steps."""
    started: float = field(default_factory=lambda: time.perf_counter())
    """Start time; in a resumed epoch it accounts for the time already spent."""

    @property
    def steps(self) -> int:
        """Number of finished steps of the current phase."""
        return max(map(len, self.terms.values()), default=0)

    def add(self, terms: Mapping[str, Tensor], probs: Tensor | None) -> None:
        """Keep the loss terms of a step, and the probabilities (b, k) that it recorded."""
        for name, term in terms.items():
            self.terms.setdefault(name, Growing(term.new_empty(0))).add(term.detach()[None])
        if probs is not None:
            self.recorded = self.recorded or Growing(probs[:0])
            self.recorded.add(probs)

    def end_phase(self, losses: Mapping[str, float]) -> None:
        """Count the current phase as finished."""
        self.phase += 1
        self.losses |= losses
        self.terms, self.recorded = {}, None

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        return {
            "phase": self.phase,
            "losses": self.losses,
            "probs": self.probs,
            "terms": {name: column.rows for name, column in self.terms.items()},
            "recorded": None if self.recorded is None else self.recorded.rows,
            "seconds": time.perf_counter() - self.started,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], device: torch.device) -> Self:
        """Restore a saved state."""
        return cls(
            phase=state["phase"],
            losses=state["losses"],
            probs=None if state["probs"] is None else state["probs"].to(device),
            terms={name: Growing(column.to(device)) for name, column in state["terms"].items()},
            recorded=None if state["recorded"] is None else Growing(state["recorded"].to(device)),
            started=time.perf_counter() - state["seconds"],
        )
