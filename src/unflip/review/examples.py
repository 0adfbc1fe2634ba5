"""Examples: the labels and issues of a run in memory, ordered, filtered and paginated."""

import hashlib
import json
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
from pydantic import BaseModel, Field

from unflip.compute import derive
from unflip.data.arrays import Array
from unflip.data.columns import Rows
from unflip.data.matching import Keys
from unflip.errors import InputError, unknown
from unflip.review import Order
from unflip.review.decisions import State
from unflip.runs import layout
from unflip.runs.annotators import label_gain
from unflip.runs.folder import Run
from unflip.runs.labels import SCHEMA, doubtful_mask, label_issue_mask, lowest_quality_first
from unflip.stats.nearest import all_nearest
from unflip.stats.sampling import Sample, draw_sample

MAX_INT = 2**53
"""The largest integer that JavaScript represents exactly."""
Number = Annotated[int, Field(ge=0, le=MAX_INT)]
_SHOWN = (
    "given_label", "current_label", "suggested_label", "label_quality", "network_prob_given", "gaussian_prob_given",
    "network_prob_suggested", "gaussian_prob_suggested", "n_changes",
)  # fmt: skip
_NEIGHBORS = 10  # in which density is measured
_SEARCHES = 8  # whose results are kept
_EPS = 1e-6  # keeps divisions finite


class Filter(BaseModel, extra="forbid"):
    """Which examples to show; None means all.

    Attributes:
        listed: label issues and doubtful labels.
        differs: label issues: the suggested label differs from the given one, and the example was not reviewed.
        given: this given label.
        suggested: this suggested label.
        label_class: this given or suggested label.
        below: label quality below this.
        state: in this state.
        issue: flagged by this check; in the order of its list.
        text: with this in the name, the text or the columns of the example, in upper or lower case.
    """

    listed: bool = False
    differs: bool = False
    given: Number | None = None
    suggested: Number | None = None
    label_class: Number | None = None
    below: float | None = Field(None, gt=0, le=1)
    state: Literal["open", "accepted", "kept", "changed", "removed", "unsure", "decided", "any"] = "any"
    issue: str | None = Field(None, max_length=100)
    text: str | None = Field(None, max_length=200)


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

    Args:
        run: the finished run.
        rows: table cells of its examples, to search in besides their names.

    Attributes:
        ids: names of the n examples.
        splits: split of each.
        columns: what the page shows of the label table (n,), by name.
        reviewed: which examples were reviewed before the run (n,).
        review_weight: how many labels each of these stood for in a sample (n,), NaN for none.
        log_odds: that given labels are right (n,), NaN if unknown or reviewed.
        issues: issues other than label issues.
        features: (n, d), if the run has them.
    """

    def __init__(self, run: Run, rows: Rows | None = None) -> None:
        table = run.labels()
        self._rows = rows
        self._containing = lru_cache(_SEARCHES)(self._search)
        self._ranked = cache(self._rank)
        self.ids: list[str] = table["id"].to_pylist()
        self.splits: list[str] = table["split"].to_pylist()
        self.columns: dict[str, Array] = {name: table[name].to_numpy() for name in _SHOWN}
        self.given, self.suggested = self.columns["given_label"], self.columns["suggested_label"]
        self.reviewed: Array = table["reviewed"].to_numpy()
        self.review_weight: Array = table["review_weight"].to_numpy()
        self.log_odds: Array = table["log_odds"].to_numpy()
        self._is_label_issue, self._is_doubtful = label_issue_mask(table), doubtful_mask(table)
        self.class_names = run.class_names
        self.issues = Issues(run.other_issues())
        self.features = run.hidden_features
        digests: list[str | None] = table["digest"].to_pylist()
        self._digests = None if None in digests else [str(digest) for digest in digests]
        self._run = run
        self._by_issue = {name: _rank(examples, len(table)) for name, examples in self.issues.lists.items()}
        self._history = run.history()

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def keys(self) -> Keys:
        """What identifies the examples in other runs."""
        numbered = all(name == str(index) for index, name in enumerate(self.ids))
        return Keys(None if numbered else self.ids, self._digests, self.given, self.class_names)

    @cached_property
    def sample(self) -> Sample:
        """A random sample of all labels with a quality; the same whenever the run is opened."""
        return draw_sample(self.log_odds, self.given, derive(self._run.result["seed"], "review sample"))

    def _most_gain_first(self, table: pa.Table) -> Array:
        """Return the examples that one more label helps, most of all first."""
        first, second = (table[f"prob_{name}"].to_numpy().astype(float) for name in ("top1", "top2"))
        known = self._annotations["label_quality"]
        accuracy = float(known.mean()) if len(known) else 1 - (self._run.label_summary.noise_rate or 0.0)
        gain = label_gain(first, second, accuracy, len(self.class_names))
        gain[self.reviewed] = -1.0
        order = most_valuable_first(gain, table["top1"].to_numpy(), self.features)
        return order[gain[order] > 0]

    def annotations(self, index: int) -> list[tuple[str, str, float]]:
        """Return annotator, label and label quality of all annotations of an example."""
        start, end = np.searchsorted(self._annotations["index"], (index, index + 1))
        columns = (self._annotations[name][start:end].tolist() for name in ("annotator", "label", "label_quality"))
        return list(zip(*columns, strict=True))

    @cached_property
    def _annotations(self) -> dict[str, Array]:
        """The columns of annotations.csv, by example; empty with one label per example."""
        table = self._run.annotator_table(layout.ANNOTATIONS)
        if table is None:
            return {name: np.empty(0, object) for name in ("index", "annotator", "label", "label_quality")}
        table = table.sort_by("index")
        return {name: table[name].to_numpy() for name in table.column_names}

    def ranking(self, order: Order, issue: str | None = None) -> Ranking:
        """Return an order of all examples, or of those of an issue as the run lists them."""
        if issue is None:
            return self._ranked(order)
        if issue not in self._by_issue:
            raise InputError(unknown("issue", issue, list(self._by_issue)))
        return self._by_issue[issue]

    def _rank(self, order: Order) -> Ranking:
        """Put all examples in an order; on demand, as it takes a moment."""
        table = self._run.labels()
        orders: dict[Order, Callable[[], Array]] = {
            Order.LOWEST_QUALITY: lambda: lowest_quality_first(table),
            Order.INFORMATIVE: lambda: most_informative_first(table, self.features),
            Order.SAMPLE: lambda: self.sample.order,
            Order.ANNOTATE: lambda: self._most_gain_first(table),
        }
        return _rank(orders[order](), len(self))

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
        mask: Array = self._is_label_issue | self._is_doubtful if selection.listed else np.ones(len(self), bool)
        if selection.differs:
            mask &= self._is_label_issue
        for labels, wanted in ((self.given, selection.given), (self.suggested, selection.suggested)):
            if wanted is not None:
                mask &= labels == wanted
        if (either := selection.label_class) is not None:
            mask &= (self.given == either) | (self.suggested == either)
        if selection.below is not None:
            mask &= self.columns["label_quality"] < selection.below
        if selection.state != "any":
            of = [state for state in State if selection.state in (state.name.lower(), "decided" * state.is_decided)]
            mask &= np.isin(states, of)
        if selection.issue is not None:
            mask &= self.ranking(Order.LOWEST_QUALITY, selection.issue).ranks >= 0
        if selection.text:
            mask &= self._containing(selection.text.strip())
        return mask

    def _search(self, text: str) -> Array:
        """Return which examples have a text in their name or their columns (n,)."""
        return np.asarray(compute.match_substring(self._contents, text, ignore_case=True))

    @cached_property
    def _contents(self) -> pa.Array:
        """What is searched, on demand: the name of each example, then ``column: value`` line by line."""
        rows = self._rows if self._rows is not None and self._rows.named else None
        texts = (name if rows is None else f"{name}\n{rows.words(i)}" for i, name in enumerate(self.ids))
        return pa.array((text.encode(errors="replace") for text in texts), pa.large_binary()).cast(pa.large_string())

    @cached_property
    def pairs(self) -> list[tuple[int, int, int]]:
        """(given, suggested, count) of all pairs that differ, the most frequent first."""
        labels = np.stack([self.given, self.suggested], 1)[self._is_label_issue]
        pairs, counts = np.unique(labels, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(*pair, count) for pair, count in zip(pairs[order].tolist(), counts[order].tolist(), strict=True)]

    def row(self, index: int) -> dict[str, Any]:
        """Return the columns of an example as plain values."""
        row = {name: column[index].item() for name, column in self.columns.items()}
        row = {name: None if value != value else value for name, value in row.items()}  # JSON has no NaN
        row["is_doubtful"] = bool(self._is_doubtful[index])
        return {"index": index, "id": self.ids[index], "split": self.splits[index], **row}

    def history(self, index: int) -> list[dict[str, Any]]:
        """Return every change of an example's label during training."""
        rows = self._history.filter(compute.equal(self._history["index"], index))
        return list(rows.select(["epoch", "old", "new", "confidence"]).to_pylist())

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


class Issues:
    """The flagged issues of examples.

    Attributes:
        lists: examples of each check (m,), by its name, in the order of the file; groups stay together.
    """

    def __init__(self, table: pa.Table | None) -> None:
        table = SCHEMA.empty_table() if table is None else table  # no checks were run
        flagged = table.filter(compute.and_(table["flag"], table["index"].is_valid()))
        self._table = flagged.select(["index", "issue", "reason", "group"])
        self.lists = {name: self._list(name) for name in flagged["issue"].unique().to_pylist()}

    def of(self, example: int) -> list[dict[str, Any]]:
        """Return name, reason and group of the issues of an example; near-duplicates share a group."""
        rows = self._table.filter(compute.equal(self._table["index"], example)).drop_columns("index")
        return list(rows.rename_columns(["name", "reason", "group"]).to_pylist())

    def group(self, example: int) -> list[int]:
        """Return the members of all groups of an example, itself included, by index."""
        members: set[int] = set()
        for issue in self.of(example):
            same = (compute.field("issue") == issue["name"]) & (compute.field("group") == issue["group"])
            members.update(self._table.filter(same)["index"].to_pylist() if issue["group"] is not None else [])
        return sorted(members)

    def _list(self, name: str) -> Array:
        rows = self._table.filter(compute.equal(self._table["issue"], name))
        index: Array = rows["index"].to_numpy()
        groups = rows["group"].fill_null(-1).to_numpy()
        _, first, which = np.unique(groups, return_index=True, return_inverse=True)
        place = np.where(groups < 0, np.arange(len(rows)), first[which])
        ordered = index[np.lexsort((index, place))]
        return ordered[np.sort(np.unique(ordered, return_index=True)[1])]  # each once


def most_informative_first(table: pa.Table, features: Array | None, pool_size: int = 10_000) -> Array:
    """Return the rows (n,) of a label table, the most informative first: active learning by uncertainty and density.

    Args:
        table: see :func:`unflip.runs.labels.label_table`.
        features: (n, d); without them only uncertainty counts.
        pool_size: number of the most uncertain unreviewed examples to rank by :func:`information_density`; all others
            follow by uncertainty. It bounds memory and time.
    """
    columns = {name: table[name].to_numpy() for name in ("label_quality", "prob_given", "prob_suggested")}
    given, suggested = table["given_label"].to_numpy(), table["suggested_label"].to_numpy()
    score = uncertainty(*columns.values(), differs=given != suggested)
    score[table["reviewed"].to_numpy()] = -1.0
    return most_valuable_first(score, suggested, features, pool_size)


def most_valuable_first(score: Array, classes: Array, features: Array | None, pool_size: int = 10_000) -> Array:
    """Return examples (n,) by score and density, classes in turns; those with a negative score last.

    Args:
        score: (n,).
        classes: the most likely class of each (n,).
        features: (n, d); without them only the score counts.
        pool_size: number of examples with the highest scores to rank by :func:`information_density`.
    """
    order = np.argsort(-score, kind="stable")
    pool = np.sort(order[: min(pool_size, int((score >= 0).sum()))])
    worth = score[pool]
    if features is not None and len(pool) > 1:
        worth = information_density(worth, *all_nearest(features[pool], min(_NEIGHBORS, len(pool) - 1)))
    first = pool[classes_in_turns(worth, classes[pool])]
    rest: Array = order[~np.isin(order, first)]
    return np.concatenate([first, rest])


def uncertainty(quality: Array, of_given: Array, of_suggested: Array, *, differs: Array) -> Array:
    """Return the probability (n,) that the suggested label is wrong: least confidence (Lewis and Gale 1994).

    If the suggested label is the given one, this is ``1 - q``. Otherwise the given label is wrong with probability
    ``1 - q``, and then the suggested one is correct with probability ``p_s / (1 - p_g)``, which leaves
    ``1 - (1 - q) p_s / (1 - p_g)``. It is 0 where the label quality is unknown.

    Args:
        quality: label quality q (n,).
        of_given: probability p_g of the given label (n,).
        of_suggested: probability p_s of the suggested label (n,).
        differs: whether the two labels differ (n,).
    """
    q, p_g, p_s = (np.nan_to_num(column.astype(np.float64), nan=1.0) for column in (quality, of_given, of_suggested))
    instead = np.clip(p_s / np.maximum(1 - p_g, _EPS), 0, 1)
    return np.where(differs & ~np.isnan(quality), 1 - (1 - q) * instead, 1 - q)


def information_density(uncertain: Array, neighbors: Array, distances: Array) -> Array:
    """Return the information density of m examples (m,).

    Uncertainty times mean similarity to others (Settles and Craven 2008, EMNLP, with beta = 1):
    ``u_i mean_j exp(-(d_ij / h)^2 / 2)`` over the nearest j, with h the median distance to the last of them.
    Reviewing two similar examples gains little over one, so it is divided by one plus the number of neighbors with a
    higher value (ties: those that come first), each weighted by its similarity.

    Args:
        uncertain: u (m,).
        neighbors: the nearest of the m examples, without itself (m, k).
        distances: d (m, k).
    """
    width = max(float(np.median(distances[:, -1])), _EPS)
    similar = np.exp(-((distances / width) ** 2) / 2)
    worth = uncertain * similar.mean(1)
    others, own = worth[neighbors], worth[:, None]
    first = (others > own) | ((others == own) & (neighbors < np.arange(len(worth))[:, None]))
    return np.asarray(worth / (1 + (similar * first).sum(1)))


def classes_in_turns(worth: Array, classes: Array) -> Array:
    """Return positions (m,): the best of each class, then the second best of each; the best first in each round.

    >>> classes_in_turns(np.array([0.9, 0.8, 0.1, 0.7]), np.array([0, 0, 1, 0]))
    array([0, 2, 1, 3])
    """
    order = np.lexsort((-worth, classes))
    turn = np.empty(len(worth), np.int64)
    turn[order] = np.arange(len(worth)) - np.searchsorted(classes[order], classes[order])
    return np.lexsort((-worth, turn))
