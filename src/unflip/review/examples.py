"""Examples: the labels of a run in memory, ordered, filtered and split into pages."""

import hashlib
import json
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from unflip.data.arrays import Array
from unflip.errors import InputError, RunFolderError, unknown
from unflip.review.decisions import State
from unflip.review.findings import Findings
from unflip.review.helpful import most_helpful_first
from unflip.review.order import Order
from unflip.runs.folder import Run
from unflip.runs.labels import looks_wrong, most_doubtful_first

_COLUMNS = [
    "id", "split", "given", "current", "suggested", "quality", "network_given", "vote_given", "network_suggested",
    "vote_suggested", "changes", "log_odds", "reviewed",
]  # fmt: skip


class Filter(NamedTuple):
    """Which examples to show; None means all."""

    differs: bool = False
    """Only those whose suggested label differs from the given one and that were not reviewed before training."""
    given: int | None = None
    suggested: int | None = None
    label_class: int | None = None
    """The given or the suggested label."""
    below: float | None = None
    """Only those whose given label has a lower quality than this."""
    states: frozenset[State] | None = None
    finding: str | None = None
    """Only those about which the run found this; they come in the order of its list."""


class Ranking(NamedTuple):
    """An order of examples, all or some."""

    order: Array
    """(m,), the first one first."""
    ranks: Array
    """(n,), the position of each example in it, -1 for none."""


class Page(NamedTuple):
    """A page of the examples that match a filter."""

    indices: list[int]
    total: int
    """Number of examples that match the filter."""
    first: int
    """Number of these before this page."""
    last: int
    """The rank of the last one; the next page starts after it."""


class Examples:
    """The examples of a run, in the orders in which people can go through them."""

    def __init__(self, run: Run) -> None:
        table = run.labels().select(_COLUMNS)
        self.columns: dict[str, Array] = {
            name: table[name].to_numpy() for name in table.column_names if name not in ("id", "split")
        }
        self.ids: list[str] = table["id"].to_pylist()
        self.splits: list[str] = table["split"].to_pylist()
        self.given, self.suggested = self.columns["given"], self.columns["suggested"]
        self._suspect = looks_wrong(table)
        self.reviewed: Array = self.columns.pop("reviewed")
        """(n,) which examples were decided before the run: they have a label, or are removed."""
        del self.columns["log_odds"]
        self.class_names = run.class_names
        self.findings = Findings(run.findings(), len(table))
        self._run = run
        self._doubtful = _rank(most_doubtful_first(table), len(table))
        self._by_finding = {name: _rank(self.findings.examples(name), len(table)) for name, _ in self.findings.counts()}
        self._history = _History(run.history())

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _helpful(self) -> Ranking:
        """Takes a moment, so that only those who ask for it wait."""
        return _rank(most_helpful_first(self._run.labels(), checked_features(self._run, len(self))), len(self))

    def ranking(self, order: Order, finding: str | None = None) -> Ranking:
        """Return an order of all examples, or of those of a finding as the run lists them."""
        if finding is None:
            return self._doubtful if order == Order.DOUBTFUL else self._helpful
        if finding not in self._by_finding:
            raise InputError(unknown("finding", finding, list(self._by_finding)))
        return self._by_finding[finding]

    def page(
        self,
        wanted: Filter,
        states: Array,
        *,
        count: int,
        order: Order = Order.DOUBTFUL,
        after: int = -1,
        before: int | None = None,
    ) -> Page:
        """Return the first ``count`` examples ranked after ``after``, or the last ones ranked before ``before``.

        Pages are addressed by rank, as the number of matching examples changes while people decide.

        Args:
            wanted: the filter.
            states: (n,) the current state of each example.
            count: the largest number of examples to return.
            order: of the review.
            after: return examples with a higher rank than this.
            before: return examples with a lower rank than this; replaces ``after``.
        """
        ranking = self.ranking(order, wanted.finding)
        ranks = np.flatnonzero(self.mask(wanted, states)[ranking.order])
        if before is None:
            first = int(np.searchsorted(ranks, after, side="right"))
            chosen = ranks[first : first + count]
        else:
            end = int(np.searchsorted(ranks, before))
            first = max(0, end - count)
            chosen = ranks[first:end]
        return Page(ranking.order[chosen].tolist(), len(ranks), first, int(chosen[-1]) if len(chosen) else after)

    def mask(self, wanted: Filter, states: Array) -> Array:
        """Return which examples (n,) match a filter, given the ``states`` (n,) of all."""
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
        if wanted.below is not None:
            mask &= self.columns["quality"] < wanted.below  # not those without one
        if wanted.states is not None:
            mask &= np.isin(states, [int(state) for state in wanted.states])
        if wanted.finding is not None:
            mask &= self.ranking(Order.DOUBTFUL, wanted.finding).ranks >= 0
        return mask

    @cached_property
    def pairs(self) -> list[tuple[int, int, int]]:
        """(given, suggested, count) of all pairs that differ, the most frequent first."""
        classes = len(self.class_names)
        codes = self.given[self._suspect] * classes + self.suggested[self._suspect]
        codes, counts = np.unique(codes, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        pairs = zip(codes[order].tolist(), counts[order].tolist(), strict=True)
        return [(code // classes, code % classes, count) for code, count in pairs]

    def row(self, index: int) -> dict[str, Any]:
        """Return everything known about an example, as plain values."""
        row = {name: column[index].item() for name, column in self.columns.items()}
        row = {name: None if value != value else value for name, value in row.items()}  # JSON has no NaN
        return {
            "index": index,
            "id": self.ids[index],
            "split": self.splits[index],
            **row,
        }

    def history(self, index: int) -> list[dict[str, Any]]:
        """Return every change of an example's label during training."""
        return self._history.of(index)

    def members(self, label: int) -> Array:
        """Return the examples whose final label in the run is ``label``."""
        return np.flatnonzero(self.columns["current"] == label)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies these examples: a hash of ids, given labels and classes, not of the run's results."""
        digest = hashlib.sha256(np.ascontiguousarray(self.given, np.int64).tobytes())
        digest.update(json.dumps([self.ids, self.class_names]).encode())
        return digest.hexdigest()


def checked_features(run: Run, count: int) -> Array | None:
    """Return the features of ``count`` examples, if the run keeps any; raise if they belong to others."""
    features = run.features
    if features is not None and len(features) != count:
        raise RunFolderError(f"{run.folder}: {len(features)} features for {count} labels; two runs mixed up?")
    return features


def _rank(order: Array, count: int) -> Ranking:
    ranks: Array = np.full(count, -1, np.int32)
    ranks[order] = np.arange(len(order))
    return Ranking(order, ranks)


class _History:
    """The label changes of a run, indexed by example."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = {name: table[name].to_numpy() for name in ("epoch", "old", "new", "confidence")}
        index = table["index"].to_numpy()
        self._order = np.argsort(index, kind="stable")
        self._sorted = index[self._order]

    def of(self, index: int) -> list[dict[str, Any]]:
        start, end = np.searchsorted(self._sorted, [index, index + 1])
        rows = self._order[start:end]
        return [{name: column[row].item() for name, column in self._columns.items()} for row in rows]
