"""LabelStore: the labels as they came, as they are now, and every change between the two."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from unflip.errors import RunFolderError
from unflip.files import write_atomically
from unflip.labels.quality import label_quality, suggested_labels

_HISTORY = {
    "epoch": torch.int32,
    "index": torch.int64,
    "old": torch.int64,
    "new": torch.int64,
    "confidence": torch.float32,
}


class LabelStore:
    """One row for every example that trains or validates.

    ``original`` and ``given`` never change. ``current`` changes only through :meth:`change`, which writes the history:
    one row a change, in the order in which they happened, as columns.

    ``reviewed`` (n,) holds labels that people decided, -1 where they did not. They stand in the place of the given ones
    for all who ask, and :meth:`change` leaves them as they are; that is the one place where this is seen to.
    """

    def __init__(self, original: Tensor, num_classes: int, reviewed: Tensor | None = None) -> None:
        self.num_classes = num_classes
        self._original = original.clone()
        self._reviewed = None if reviewed is None else reviewed.clone()
        self._trusted = torch.zeros_like(original, dtype=torch.bool) if reviewed is None else reviewed >= 0
        self._given = original.clone() if reviewed is None else torch.where(self._trusted, reviewed, original)
        self._current = self._given.clone()
        self._history: dict[str, list[Tensor]] = {name: [] for name in _HISTORY}

    def __len__(self) -> int:
        return len(self._given)

    @property
    def original(self) -> Tensor:
        """The labels as they came, whatever people decided later; a copy, so that nobody can change them."""
        return self._original.clone()

    @property
    def given(self) -> Tensor:
        """The labels to begin with: as they came, or as people decided; a copy, so that nobody can change them."""
        return self._given.clone()

    @property
    def trusted(self) -> Tensor:
        """Which labels people decided (n,); a copy."""
        return self._trusted.clone()

    @property
    def current(self) -> Tensor:
        """The labels after correction; to be read only, see :meth:`change`."""
        return self._current

    def change(self, epoch: int, indices: Tensor, labels: Tensor, confidence: Tensor) -> int:
        """Set the current label of each of ``indices`` and return how many of them really changed.

        ``confidence`` is how sure the one who asks is of each new label. ``indices`` are distinct. Labels that people
        decided stay.
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
        """Every change so far: columns ``epoch, index, old, new, confidence`` on the processor."""
        return {
            name: torch.cat(chunks) if chunks else torch.empty(0, dtype=_HISTORY[name])
            for name, chunks in self._history.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs beside the given labels."""
        return {"current": self._current.clone(), "history": self.history(), "reviewed": self._reviewed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a saved state; refuse one that was made with other reviewed labels."""
        before, now = state.get("reviewed"), self._reviewed
        same = before is now if before is None or now is None else torch.equal(before.to(now), now)
        if not same:
            raise RunFolderError(
                "the reviewed labels are not those that the run began with; resume with the same, or start anew with "
                "--force"
            )
        self._current = state["current"].to(self._current)
        self._history = {name: [state["history"][name].to(dtype)] for name, dtype in _HISTORY.items()}

    def table(
        self,
        probs: Tensor,
        votes: Tensor,
        *,
        splits: Sequence[str],
        ids: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return one row an example: what it was called, what it is called now, and how sure that is.

        ``probs`` (n, k) is the belief about each example's class, ``votes`` (n, k) that of the class Gaussians.
        ``quality`` says how likely the given label is right, ``suggested`` what to propose in its place (or the same),
        ``last_change`` is an epoch, 0 for never. ``given`` is what came, also where people decided otherwise; what they
        decided has a quality of 1 and is suggested.
        """
        history = self.history()
        last_change = torch.zeros(len(self), dtype=torch.int32)
        last_change[history["index"]] = history["epoch"]  # in order of time, so the last one stays
        given, current, trusted = self._original.cpu(), self._current.cpu(), self._trusted.cpu()
        probs, votes = probs.cpu().float(), votes.cpu().float()
        suggested = current.where(trusted, suggested_labels(given, current, probs, votes))
        columns: dict[str, Any] = {
            "index": np.arange(len(self)),
            "id": [str(i) for i in range(len(self))] if ids is None else list(ids),
            "split": list(splits),
            "given": given.numpy(),
            "current": current.numpy(),
            "changed": (given != current).numpy(),
            "confidence_current": probs.gather(1, current[:, None])[:, 0].numpy(),
            "confidence_given": probs.gather(1, given[:, None])[:, 0].numpy(),
            "vote_given": votes.gather(1, given[:, None])[:, 0].numpy(),
            "suggested": suggested.numpy(),
            "confidence_suggested": probs.gather(1, suggested[:, None])[:, 0].numpy(),
            "vote_suggested": votes.gather(1, suggested[:, None])[:, 0].numpy(),
            "last_change": last_change.numpy(),
            "changes": torch.bincount(history["index"], minlength=len(self)).to(torch.int32).numpy(),
            "quality": label_quality(given, probs, votes).masked_fill_(trusted, 1.0).numpy(),
            "reviewed": trusted.numpy(),
        }
        if class_names is not None:
            names = np.asarray(class_names)
            columns |= {f"{kind}_name": names[columns[kind]] for kind in ("given", "current", "suggested")}
        return pa.table(columns)


def write_labels(folder: Path, table: pa.Table, history: dict[str, Tensor]) -> None:
    """Write ``labels.parquet``, the same as ``labels.csv``, and the history as ``history.parquet``."""
    changes = pa.table({name: column.numpy() for name, column in history.items()})
    write_atomically(folder / "labels.parquet", lambda path: pa.parquet.write_table(table, path))
    write_atomically(folder / "labels.csv", lambda path: pa.csv.write_csv(table, path))
    write_atomically(folder / "history.parquet", lambda path: pa.parquet.write_table(changes, path))
