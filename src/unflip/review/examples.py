"""Examples: the labels and issues of a run in memory, ordered, filtered and split into pages."""

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
        differs: only those whose suggested label differs from the given one and that were not reviewed before training.
        given: only those with this given label.
        suggested: only those with this suggested label.
        label_class: only those with this given or suggested label.
        below: only those whose given label has a lower quality than this.
        states: only those in one of these states.
        issue: only those about which the run found this; they come in the order of its list.
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
        indices: of its examples.
        total: number of examples that match the filter.
        first: number of these before this page.
        last: the rank of the last one; the next page starts after it.
    """

    indices: list[int]
    total: int
    first: int
    last: int


class Examples:
    """The examples of a run, in the orders in which people can go through them.

    Attributes:
        ids: their names.
        splits: the split of each.
        columns: what else the run's table of labels says of them, by name.
        reviewed: (n,) which examples were decided before the run: they have a label, or are removed.
        issues: what else was found.
        features: (n, d), if the run keeps them.
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
        """Takes a moment, so that only those who ask for it wait."""
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
        wanted: Filter,
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
            wanted: the filter.
            states: (n,) the current state of each example.
            count: the largest number of examples to return.
            order: of the review.
            after: return examples with a higher rank than this.
            before: return examples with a lower rank than this; replaces ``after``.
        """
        ranking = self.ranking(order, wanted.issue)
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
        mask: Array = self._is_label_issue.copy() if wanted.differs else np.ones(len(self), bool)
        if wanted.given is not None:
            mask &= self.given == wanted.given
        if wanted.suggested is not None:
            mask &= self.suggested == wanted.suggested
        if wanted.label_class is not None:
            mask &= (self.given == wanted.label_class) | (self.suggested == wanted.label_class)
        if wanted.below is not None:
            mask &= self.columns["label_quality"] < wanted.below  # not those without one
        if wanted.states is not None:
            mask &= np.isin(states, [int(state) for state in wanted.states])
        if wanted.issue is not None:
            mask &= self.ranking(Order.LOWEST_QUALITY, wanted.issue).ranks >= 0
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
        """Return everything known about an example, as plain values."""
        row = {name: column[index].item() for name, column in self.columns.items()}
        row = {name: None if value != value else value for name, value in row.items()}  # JSON has no NaN
        return {"index": index, "id": self.ids[index], "split": self.splits[index], **row}

    def history(self, index: int) -> list[dict[str, Any]]:
        """Return every change of an example's label during training."""
        rows = self._history.filter(compute.equal(self._history["index"], index))
        changes: list[dict[str, Any]] = rows.select(["epoch", "old", "new", "confidence"]).to_pylist()
        return changes

    def members(self, label: int) -> Array:
        """Return the examples whose final label in the run is ``label``."""
        return np.flatnonzero(self.columns["current_label"] == label)

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


class CheckResult(NamedTuple):
    """An issue about an example; examples that are nearly the same have the same ``group``."""

    name: str
    reason: str
    group: int | None


class Issues:
    """The flagged issues about examples; ``table`` is that of a run, None where nothing was looked for."""

    def __init__(self, table: pa.Table | None) -> None:
        table = SCHEMA.empty_table() if table is None else table
        self._table = table.filter(compute.and_(table["flag"], table["index"].is_valid()))
        names = self._table["issue"].unique().to_pylist()
        self._lists = {name: self._list(name) for name in names}

    def counts(self) -> list[tuple[str, int]]:
        """Return the names of all issues, in the order of the file, and about how many examples each is."""
        return [(name, len(found)) for name, found in self._lists.items()]

    def examples(self, name: str) -> Array:
        """Return the examples of an issue (m,), in the order of the file; groups stay together."""
        return self._lists[name]

    def of(self, example: int) -> list[CheckResult]:
        """Return the issues about an example."""
        rows = self._table.filter(compute.equal(self._table["index"], example))
        columns = (rows[key].to_pylist() for key in ("issue", "reason", "group"))
        return [CheckResult(*row) for row in zip(*columns, strict=True)]

    def group(self, example: int) -> list[int]:
        """Return the examples of all groups that an example is in, itself included, in their order in the data."""
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
        found: Array = index[np.lexsort((index, place))]
        return found[np.sort(np.unique(found, return_index=True)[1])]  # each once
