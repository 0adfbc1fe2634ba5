"""Examples: the labels of a run in memory, in order of quality, filtered and cut into pages."""

import hashlib
import json
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from unflip.data.files.arrays import Array
from unflip.errors import RunFolderError
from unflip.review.decisions import State
from unflip.runs import layout
from unflip.runs.folder import Run
from unflip.runs.labels import looks_wrong, most_doubtful_first

_COLUMNS = [
    "id", "split", "given", "current", "suggested", "quality", "confidence_given", "vote_given", "confidence_suggested",
    "vote_suggested", "changes", "reviewed",
]  # fmt: skip


class Filter(NamedTuple):
    """Which examples to show; None stands for all."""

    differs: bool = False
    """Only those whose suggestion is not the given label, and which nobody had reviewed before training."""
    given: int | None = None
    suggested: int | None = None
    label_class: int | None = None
    """Given or suggested, whichever."""
    states: frozenset[State] | None = None


class Page(NamedTuple):
    """Some of the examples that a filter lets through."""

    indices: list[int]
    total: int
    """How many the filter lets through."""
    first: int
    """How many of these come before this page."""
    last: int
    """The rank of the last one: what the next page begins after."""


class Examples:
    """The examples of a run; ranks are places in the order of quality, the most doubtful first."""

    def __init__(self, run: Run) -> None:
        table = _read(run)
        self.columns: dict[str, Array] = {
            name: table[name].to_numpy() for name in table.column_names if name not in ("id", "split")
        }
        self.ids: list[str] = table["id"].to_pylist()
        self.splits: list[str] = table["split"].to_pylist()
        self.given, self.suggested = self.columns["given"], self.columns["suggested"]
        self._suspect = looks_wrong(table)
        del self.columns["reviewed"]
        self.class_names = run.class_names
        self.order: Array = most_doubtful_first(table)
        self.ranks: Array = np.empty_like(self.order)
        self.ranks[self.order] = np.arange(len(table))
        self._history = _History(run.history())

    def __len__(self) -> int:
        return len(self.ids)

    def page(self, wanted: Filter, states: Array, *, count: int, after: int = -1, before: int | None = None) -> Page:
        """Return the first ``count`` examples that rank behind ``after``, or the last that rank before ``before``.

        Pages are found by rank since the number of those in front changes while people decide.
        """
        ranks = np.flatnonzero(self.mask(wanted, states)[self.order])
        if before is None:
            first = int(np.searchsorted(ranks, after, side="right"))
            chosen = ranks[first : first + count]
        else:
            end = int(np.searchsorted(ranks, before))
            first = max(0, end - count)
            chosen = ranks[first:end]
        return Page(self.order[chosen].tolist(), len(ranks), first, int(chosen[-1]) if len(chosen) else after)

    def mask(self, wanted: Filter, states: Array) -> Array:
        """Return which examples (n,) a filter lets through, given the ``states`` (n,) of all."""
        given, suggested = self.given, self.suggested
        mask: Array = np.ones(len(self), bool)
        if wanted.differs:
            mask &= self._suspect
        if wanted.given is not None:
            mask &= given == wanted.given
        if wanted.suggested is not None:
            mask &= suggested == wanted.suggested
        if wanted.label_class is not None:
            mask &= (given == wanted.label_class) | (suggested == wanted.label_class)
        if wanted.states is not None:
            mask &= np.isin(states, [int(state) for state in wanted.states])
        return mask

    def pairs(self) -> list[tuple[int, int, int]]:
        """Return (given, suggested, how many) of all pairs that differ, the most frequent first."""
        classes = len(self.class_names)
        codes = self.given[self._suspect] * classes + self.suggested[self._suspect]
        codes, counts = np.unique(codes, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        pairs = zip(codes[order].tolist(), counts[order].tolist(), strict=True)
        return [(code // classes, code % classes, count) for code, count in pairs]

    def row(self, index: int) -> dict[str, Any]:
        """Return what is known of an example, as plain values."""
        row = {name: column[index].item() for name, column in self.columns.items()}
        row = {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
        row = {name: None if value != value else value for name, value in row.items()}  # JSON has no NaN
        return {
            "index": index,
            "rank": int(self.ranks[index]),
            "id": self.ids[index],
            "split": self.splits[index],
            **row,
        }

    def history(self, index: int) -> list[dict[str, Any]]:
        """Return every change of an example's label while the run trained."""
        return self._history.of(index)

    def members(self, label: int) -> Array:
        """Return the examples that the run, in the end, called ``label``."""
        return np.flatnonzero(self.columns["current"] == label)

    @cached_property
    def fingerprint(self) -> str:
        """What tells these examples from others: ids, given labels and classes, not what the run thinks."""
        digest = hashlib.sha256(np.ascontiguousarray(self.given, np.int64).tobytes())
        digest.update(json.dumps([self.ids, self.class_names]).encode())
        return digest.hexdigest()


class _History:
    """The changes of a run, found by example."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = {name: table[name].to_numpy() for name in ("epoch", "old", "new", "confidence")}
        index = table["index"].to_numpy()
        self._order = np.argsort(index, kind="stable")
        self._sorted = index[self._order]

    def of(self, index: int) -> list[dict[str, Any]]:
        start, end = np.searchsorted(self._sorted, [index, index + 1])
        rows = self._order[start:end]
        return [{name: column[row].item() for name, column in self._columns.items()} for row in rows]


def _read(run: Run) -> pa.Table:
    table = run.labels()
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise RunFolderError(
            f"{run.folder / layout.LABELS}: no column '{missing[0]}'; train again with this version of unflip"
        )
    return table.select(_COLUMNS)
