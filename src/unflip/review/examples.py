"""Examples: the labels and issues of a run in memory, ordered, filtered and paginated."""

import hashlib
import json
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from unflip.data.arrays import Array
from unflip.errors import InputError, unknown
from unflip.review import Order
from unflip.review.decisions import State
from unflip.review.informative import most_informative_first
from unflip.runs.folder import Run
from unflip.runs.labels import SCHEMA, lowest_quality_first

_COLUMNS = [
    "id", "split", "given_label", "current_label", "suggested_label", "label_quality", "is_label_issue",
    "network_prob_given", "gaussian_prob_given", "network_prob_suggested", "gaussian_prob_suggested", "n_changes",
    "log_odds", "reviewed",
]  # fmt: skip


class Filter(NamedTuple):
    """Which examples to show; None means all.

    Attributes:
        differs: label issues: the suggested label differs from the given one, and the example was not reviewed.
        given: this given label.
        suggested: this suggested label.
        label_class: this given or suggested label.
        below: label quality below this.
        states: one of these states.
        issue: flagged by this check; in the order of its list.
    """

    differs: bool = False
    given: int | None = None
    suggested: int | None = None
    label_class: int | None = None
    below: float | None = None
    states: frozenset[State] | None = None
    issue: str | None = None


class Ranking(NamedTuple):
    """An order of all or some examples (m,), and the rank of each example in it (n,), -1 for none."""

    order: Array
    ranks: Array


class Page(NamedTuple):
    """A page of the examples that match a filter.

    Attributes:
        indices: its examples.
        total: number of examples that match the filter.
        first: number of these before this page.
        last: rank of the last example; the next page starts after it.
    """

    indices: list[int]
    total: int
    first: int
    last: int


class Examples:
    """The examples of a run and the orders in which they can be reviewed.

    Attributes:
        ids: names of the n examples.
        splits: split of each.
        columns: further columns of the label table (n,), by name.
        reviewed: which examples were reviewed before the run (n,).
        issues: issues other than label issues.
        features: (n, d), if the run has them.
    """

    def __init__(self, run: Run) -> None:
        table = run.labels().select(_COLUMNS)
        self.columns: dict[str, Array] = {
            name: table[name].to_numpy() for name in table.column_names if name not in ("id", "split")
        }
        self.ids: list[str] = table["id"].to_pylist()
        self.splits: list[str] = table["split"].to_pylist()
        self.given, self.suggested = self.columns["given_label"], self.columns["suggested_label"]
        self._is_label_issue: Array = self.columns.pop("is_label_issue")
        self.reviewed: Array = self.columns.pop("reviewed")
        del self.columns["log_odds"]
        self.class_names = run.class_names
        self.issues = Issues(run.issues())
        self.features = run.features
        self._run = run
        self._lowest_quality = _rank(lowest_quality_first(table), len(table))
        self._by_issue = {name: _rank(self.issues.examples(name), len(table)) for name, _ in self.issues.counts()}
        self._history = run.history()

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _informative(self) -> Ranking:
        """Computed on demand, as it takes a moment."""
        return _rank(most_informative_first(self._run.labels(), self.features), len(self))

    def ranking(self, order: Order, issue: str | None = None) -> Ranking:
        """Return an order of all examples, or of those of an issue as the run lists them."""
        if issue is None:
            return self._lowest_quality if order == Order.LOWEST_QUALITY else self._informative
        if issue not in self._by_issue:
            raise InputError(unknown("issue", issue, list(self._by_issue)))
        return self._by_issue[issue]

    def page(
        self,
        selection: Filter,
        states: Array,
        *,
        count: int,
        order: Order = Order.LOWEST_QUALITY,
        after: int = -1,
        before: int | None = None,
    ) -> Page:
        """Return the first ``count`` examples ranked after ``after``, or the last ones ranked before ``before``.

        Pages are addressed by rank, as the number of matching examples changes while people decide.

        Args:
            selection: the filter.
            states: current state of each example (n,).
            count: maximum number of examples.
            order: of the review.
            after: return examples ranked after this.
            before: return examples ranked before this; replaces ``after``.
        """
        ranking = self.ranking(order, selection.issue)
        ranks = np.flatnonzero(self.mask(selection, states)[ranking.order])
        if before is None:
            first = int(np.searchsorted(ranks, after, side="right"))
            chosen = ranks[first : first + count]
        else:
            end = int(np.searchsorted(ranks, before))
            first = max(0, end - count)
            chosen = ranks[first:end]
        return Page(ranking.order[chosen].tolist(), len(ranks), first, int(chosen[-1]) if len(chosen) else after)

    def mask(self, selection: Filter, states: Array) -> Array:
        """Return which examples match a filter (n,), given the ``states`` of all (n,)."""
        mask: Array = self._is_label_issue.copy() if selection.differs else np.ones(len(self), bool)
        given, suggested, either = selection.given, selection.suggested, selection.label_class
        if given is not None:
            mask &= self.given == given
        if suggested is not None:
            mask &= self.suggested == suggested
        if either is not None:
            mask &= (self.given == either) | (self.suggested == either)
        if selection.below is not None:
            mask &= self.columns["label_quality"] < selection.below
        if selection.states is not None:
            mask &= np.isin(states, [int(state) for state in selection.states])
        if selection.issue is not None:
            mask &= self.ranking(Order.LOWEST_QUALITY, selection.issue).ranks >= 0
        return mask

    @cached_property
    def pairs(self) -> list[tuple[int, int, int]]:
        """(given, suggested, count) of all pairs that differ, the most frequent first."""
        classes = len(self.class_names)
        codes = self.given[self._is_label_issue] * classes + self.suggested[self._is_label_issue]
        codes, counts = np.unique(codes, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        pairs = zip(codes[order].tolist(), counts[order].tolist(), strict=True)
        return [(code // classes, code % classes, count) for code, count in pairs]

    def row(self, index: int) -> dict[str, Any]:
        """Return the columns of an example as plain values."""
        row = {name: column[index].item() for name, column in self.columns.items()}
        row = {name: None if value != value else value for name, value in row.items()}  # JSON has no NaN
        return {"index": index, "id": self.ids[index], "split": self.splits[index], **row}

    def history(self, index: int) -> list[dict[str, Any]]:
        """Return every change of an example's label during training."""
        rows = self._history.filter(compute.equal(self._history["index"], index))
        changes: list[dict[str, Any]] = rows.select(["epoch", "old", "new", "confidence"]).to_pylist()
        return changes

    @cached_property
    def fingerprint(self) -> str:
        """Identifies these examples: a hash of ids, given labels and classes, not of the run's results."""
        digest = hashlib.sha256(np.ascontiguousarray(self.given, np.int64).tobytes())
        digest.update(json.dumps([self.ids, self.class_names]).encode())
        return digest.hexdigest()


def _rank(order: Array, count: int) -> Ranking:
    ranks: Array = np.full(count, -1, np.int32)
    ranks[order] = np.arange(len(order))
    return Ranking(order, ranks)


class ExampleIssue(NamedTuple):
    """An issue of an example; near-duplicates share a ``group``."""

    name: str
    reason: str
    group: int | None


class Issues:
    """The flagged issues of examples; ``table`` is that of the run, None if no checks were run."""

    def __init__(self, table: pa.Table | None) -> None:
        table = SCHEMA.empty_table() if table is None else table
        self._table = table.filter(compute.and_(table["flag"], table["index"].is_valid()))
        names = self._table["issue"].unique().to_pylist()
        self._lists = {name: self._list(name) for name in names}

    def counts(self) -> list[tuple[str, int]]:
        """Return the names of all checks with issues, in the order of the file, and their numbers of examples."""
        return [(name, len(rows)) for name, rows in self._lists.items()]

    def examples(self, name: str) -> Array:
        """Return the examples of a check (m,), in the order of the file; groups stay together."""
        return self._lists[name]

    def of(self, example: int) -> list[ExampleIssue]:
        """Return the issues of an example."""
        rows = self._table.filter(compute.equal(self._table["index"], example))
        columns = (rows[key].to_pylist() for key in ("issue", "reason", "group"))
        return [ExampleIssue(*row) for row in zip(*columns, strict=True)]

    def group(self, example: int) -> list[int]:
        """Return the members of all groups of an example, itself included, by index."""
        members: set[int] = set()
        for name, _, group in self.of(example):
            if group is not None:
                same = compute.and_(
                    compute.equal(self._table["issue"], name), compute.equal(self._table["group"], group)
                )
                members.update(self._table["index"].filter(same).to_pylist())
        return sorted(members)

    def _list(self, name: str) -> Array:
        rows = self._table.filter(compute.equal(self._table["issue"], name))
        index: Array = rows["index"].to_numpy().astype(np.int64)
        groups = rows["group"].fill_null(-1).to_numpy()
        _, first, which = np.unique(groups, return_index=True, return_inverse=True)
        place = np.where(groups < 0, np.arange(len(rows)), first[which])
        ordered: Array = index[np.lexsort((index, place))]
        return ordered[np.sort(np.unique(ordered, return_index=True)[1])]  # each once
