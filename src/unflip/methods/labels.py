"""LabelStore: the given labels, the current labels, and every change in between."""

from typing import Any

import torch
from torch import Tensor

_HISTORY = {
    "epoch": torch.int32,
    "index": torch.int64,
    "old": torch.int64,
    "new": torch.int64,
    "confidence": torch.float32,
}


class LabelStore:
    """One row for every example that trains or validates.

    ``given`` are the labels that came with the data, ``initial`` those that a run starts from: the reviewed label where
    there is one, the given one elsewhere. Neither ever changes. ``current`` changes only through ``change``, which
    records the history: one row per change, in the order in which they happened.

    ``reviewed`` (n,) holds the labels that people decided, -1 for all others. ``change`` never changes them, so no
    other code has to check.
    """

    def __init__(self, given: Tensor, num_classes: int, reviewed: Tensor | None = None) -> None:
        self.num_classes = num_classes
        self._given = given.clone()
        self._trusted = torch.zeros_like(given, dtype=torch.bool) if reviewed is None else reviewed >= 0
        self._initial = given.clone() if reviewed is None else torch.where(self._trusted, reviewed, given)
        self._current = self._initial.clone()
        self._history: dict[str, list[Tensor]] = {name: [] for name in _HISTORY}

    def __len__(self) -> int:
        return len(self._given)

    @property
    def given(self) -> Tensor:
        """The labels that came with the data, whatever people decided later; a copy, so that nobody can change them."""
        return self._given.clone()

    @property
    def initial(self) -> Tensor:
        """The labels that a run starts from: reviewed ones, else given ones; a copy."""
        return self._initial.clone()

    @property
    def trusted(self) -> Tensor:
        """Which labels people decided (n,); a copy."""
        return self._trusted.clone()

    @property
    def current(self) -> Tensor:
        """The labels after correction; read only, see ``change``."""
        return self._current

    def noise_rate(self, rows: Tensor) -> float | None:
        """Return the share of the labels at ``rows`` that are no longer the given ones; None before any was changed."""
        if not any(len(changes) for changes in self._history["index"]) or not len(rows):
            return None
        return float((self._current[rows] != self._given[rows]).double().mean())

    def change(self, epoch: int, indices: Tensor, labels: Tensor, confidence: Tensor) -> int:
        """Set the current labels at ``indices``, which are distinct; return how many actually changed.

        ``confidence`` is how sure the caller is of each new label. Labels that people decided stay.
        """
        old = self._current[indices]
        changed = (old != labels) & ~self._trusted[indices]
        indices, old, labels, confidence = (column[changed] for column in (indices, old, labels, confidence.detach()))
        self._current[indices] = labels
        count = len(indices)
        if count:
            epochs = torch.full((count,), epoch)
            for name, column in zip(_HISTORY, (epochs, indices, old, labels, confidence), strict=True):
                self._history[name].append(column.to("cpu", _HISTORY[name]))
        return count

    def history(self) -> dict[str, Tensor]:
        """Return every change so far: columns ``epoch, index, old, new, confidence`` on the CPU."""
        return {
            name: torch.cat(chunks) if chunks else torch.empty(0, dtype=_HISTORY[name])
            for name, chunks in self._history.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs besides the given labels."""
        return {"current": self._current.clone(), "history": self.history()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._current = state["current"].to(self._current)
        self._history = {name: [state["history"][name].to(dtype)] for name, dtype in _HISTORY.items()}
