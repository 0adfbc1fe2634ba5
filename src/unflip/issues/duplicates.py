"""Near-duplicates over all splits: copies, also re-encoded, cropped or retyped, in groups; leakage, those in test sets.

Candidates are neighbors in feature space, confirmed by comparing the original pictures, texts or rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy.sparse import coo_array

from unflip.data.arrays import Array, Shards
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Encoding, Inputs
from unflip.data.files import ImageFiles
from unflip.data.split import identities, repeats_by_nature
from unflip.encoders.table import TableEncoder, text_columns
from unflip.issues import similarity
from unflip.issues.audit import AuditInput, CheckResult, no_issues
from unflip.progress import Track, untracked
from unflip.runs.labels import names_of
from unflip.stats.nearest import all_nearest

_NEIGHBORS = 10  # candidates per example
_NEAR = 0.9  # pictures are compared up to this fraction of the distance to the tenth neighbor
_SAMPLE = 100_000  # rows from which the scale of columns is estimated
_BLOCK = 4096  # pairs of rows compared at once
_BELOW_ONE = 1 - 1e-6  # the highest score of examples that are not equal
_TINY = 1e-12
_CLIP = 30.0  # standardized values are clipped to this in the neighbor search
_BY_CHANCE = 0.01  # expected number of pairs as close without any duplicate
_IMAGE_AXES = 4


@dataclass(frozen=True)
class DuplicateIndex:
    """Equal and near-equal examples; the n rows are those of all splits, one after the other.

    Attributes:
        parts: number of examples of each split: train, val if there is one, then the test sets.
        keys: a number per row (n,), the same for equal examples.
        pairs: pairs (p, 2) of keys of near-duplicates.
        scores: similarity of each pair (p,), below 1.
    """

    parts: Mapping[str, int]
    keys: Array
    pairs: Array
    scores: Array

    def rows_of(self, part: str) -> slice:
        """Return the rows of a split."""
        names = [*self.parts]
        start = sum(self.parts[name] for name in names[: names.index(part)])
        return slice(start, start + self.parts[part])

    def group(self, count: int) -> tuple[Array, Array]:
        """Group the first ``count`` rows; return a group number and a similarity per row, both (count,).

        All rows of a group are duplicates of one of them, the one with the most duplicates: groups are not chained. A
        row without duplicates is alone in its group, with similarity 0.
        """
        numbers, own, sizes = np.unique(self.keys[:count], return_inverse=True, return_counts=True)
        known = np.isin(self.pairs, numbers).all(1)
        leader, best = _stars(np.searchsorted(numbers, self.pairs[known]), self.scores[known], len(numbers))
        return leader[own], np.where(sizes[own] > 1, 1.0, best[own])

    def partners(self, rows: slice, others: slice) -> tuple[Array, Array, Array]:
        """Return which ``rows`` have a duplicate in ``others``, the most similar one, and its score, all (q,)."""
        first = np.full(int(self.keys.max(initial=0)) + 1, -1)  # of the others, by key
        first[self.keys[others][::-1]] = np.arange(others.start, others.stop)[::-1]
        own = self.keys[rows]
        best, score = first.copy(), (first >= 0).astype(float)
        both = np.concatenate([self.pairs, self.pairs[:, ::-1]])
        order = np.argsort(np.tile(self.scores, 2), kind="stable")  # the highest is written last
        order = order[(first[both[order, 1]] >= 0) & (score[both[order, 0]] < 1)]
        best[both[order, 0]], score[both[order, 0]] = first[both[order, 1]], np.tile(self.scores, 2)[order]
        matched = np.flatnonzero(best[own] >= 0)
        return rows.start + matched, best[own[matched]], score[own[matched]]

    def without(self, removed: Array) -> "DuplicateIndex":
        """Return a copy in which rows removed by reviewers, a mask of the first m (m,), have no duplicates."""
        keys, gone = self.keys.copy(), np.flatnonzero(removed)
        keys[gone] = int(keys.max(initial=-1)) + 1 + np.arange(len(gone))
        return replace(self, keys=keys)

    def mark_groups(self, data: Dataset) -> Dataset:
        """Return the data with duplicate groups of training examples, which then share a fold."""
        return replace(data, train=replace(data.train, duplicates=self.group(self.parts["train"])[0]))

    def mark_leakage(self, data: Dataset) -> Dataset:
        """Return the data with leaked test examples marked, so that accuracy is also reported without them."""
        seen = slice(0, sum(self.parts[name] for name in self.parts if name not in data.tests))
        tests = {}
        for name, part in data.tests.items():
            rows = self.rows_of(name)
            leaked = np.isin(np.arange(rows.start, rows.stop), self.partners(rows, seen)[0])
            tests[name] = replace(part, leaked=leaked)
        return replace(data, tests=tests)


def find_near_duplicates(audited: AuditInput) -> CheckResult:
    """Return all examples with a near-duplicate; see :meth:`DuplicateIndex.group`."""
    table = audited.table
    if audited.duplicates is None:
        return no_issues()
    leaders, scores = audited.duplicates.group(len(table))
    keys = audited.duplicates.keys
    rows = np.flatnonzero(np.bincount(leaders)[leaders] > 1)
    given = np.array([name if name is not None else "no label" for name in names_of(table, "given_label").to_pylist()])
    groups, differ = _order_groups(leaders[rows], scores[rows], table["given_label"].to_numpy()[rows])
    ids = table["id"].to_pylist()
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(len(groups) + 1))

    @cache
    def heads(group: int) -> list[int]:
        """Return two examples of a group, and one with another label than the first, if any."""
        members = rows[order[starts[group] : starts[group + 1]]]
        return [*members[:2], *members[given[members] != given[members[0]]][:1]]

    def reason(position: int) -> str:
        group, row = int(groups[position]), rows[position]
        other = min((given[head] == given[row], head) for head in heads(group) if head != row)[1]
        more = int(starts[group + 1] - starts[group]) - 2
        also = f" and {more:,} more" if more else ""
        labeled = f", and labeled {given[row]}" if differ[position] else ""
        return f"{_how(keys[row] == keys[other])} {ids[other]} ({given[other]}){also}{labeled}"

    return CheckResult(rows, scores[rows], np.ones(len(rows), bool), reason, groups)


def _how(equal: bool) -> str:
    return "the same as" if equal else "nearly the same as"


def _order_groups(groups: Array, scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return group numbers (m,) in listing order (different labels first, then by score), and which groups differ.

    Examples without a label, -1, differ from none.
    """
    _, numbers = np.unique(groups, return_inverse=True)
    labeled = np.stack([numbers, labels])[:, labels >= 0]
    differ = np.bincount(np.unique(labeled, axis=1)[0], minlength=int(numbers.max(initial=-1)) + 1) > 1
    best = np.zeros(len(differ))
    np.maximum.at(best, numbers, scores)
    rank = np.lexsort((-best, ~differ)).argsort()
    return rank[numbers], differ[numbers]


def find_leakage(audited: AuditInput) -> CheckResult:
    """Return the training and validation examples with a near-duplicate in another split, each with the closest one."""
    duplicates = audited.duplicates
    if duplicates is None or len(duplicates.parts) == 1:
        return no_issues()
    count = len(duplicates.keys)
    splits = [duplicates.rows_of(name) for name in ("train", "val") if name in duplicates.parts]
    matches = [duplicates.partners(rows, slice(rows.stop, count)) for rows in splits]  # with the splits that follow
    rows, others, scores = (np.concatenate(column) for column in zip(*matches, strict=True))

    def reason(position: int) -> str:
        name = next(name for name in duplicates.parts if others[position] < duplicates.rows_of(name).stop)
        part, row = audited.data.parts()[name], int(others[position]) - duplicates.rows_of(name).start
        example = f"example {row}" if part.ids is None else part.ids[row]
        label = "" if part.labels is None else f" ({part.labels[row]})"
        return f"{_how(scores[position] == 1)} {example}{label} of '{name}'"

    return CheckResult(rows, scores, np.ones(len(rows), bool), reason)


def find_duplicates(data: Dataset, originals: Mapping[str, Inputs], track: Track = untracked) -> DuplicateIndex:
    """Find equal and near-equal examples in all splits of a data set; none where rows repeat by nature.

    Args:
        data: as feature rows.
        originals: the examples of each split before encoding: pictures, a table, or the rows themselves.
        track: progress of comparing pictures.
    """
    parts = {"train": data.train} | ({"val": data.val} if data.val else {}) | dict(data.tests)
    every = np.concatenate([identities(part) for part in parts.values()])
    _, first, keys = np.unique(every, return_index=True, return_inverse=True)
    counts = {name: len(part.inputs) for name, part in parts.items()}
    repeats = len(first) < len(keys) and repeats_by_nature(data.train)
    if repeats or len(first) < 2:
        return DuplicateIndex(counts, np.arange(len(keys)) if repeats else keys, np.empty((0, 2), int), np.empty(0))
    features: list[Any] = [part.inputs for part in parts.values()]
    before = [originals[name] for name in parts]
    pairs, scores, threshold = score_pairs(Shards(features), first, data.encoding, before, track)
    near = scores >= threshold
    return DuplicateIndex(counts, keys, keys[first[pairs[near]]], np.minimum(scores[near], _BELOW_ONE))


def score_pairs(
    features: Shards, chosen: Array, encoding: Encoding | None, originals: Sequence[Inputs], track: Track = untracked
) -> tuple[Array, Array, float]:
    """Score candidate pairs of near-duplicates.

    Args:
        features: the rows of all splits.
        chosen: indices of the rows to compare (n,).
        encoding: how the features were made; None if they are the original rows.
        originals: the examples of each split before encoding.
        track: progress of comparing pictures.

    Returns:
        pairs (p, 2) of positions in ``chosen``, their similarity (p,), and the threshold for near-duplicates.
    """
    rows = _Stacked(features, chosen)
    pictures = [part for part in originals if not isinstance(part, Table)]
    images = [part for part in pictures if isinstance(part, ImageFiles) or len(part.shape) == _IMAGE_AXES]
    if images and encoding is not None and encoding.encoder == "images":
        similarity_of = similarity.picture_similarity(images, track)
        pairs, closeness = _neighbors(rows)
        pairs = pairs[closeness < _NEAR]
        return pairs, similarity_of(rows.chosen[pairs]), similarity.MIN_IMAGE
    tables = [part for part in originals if isinstance(part, Table)]
    names = text_columns(encoding) if encoding is not None else ()
    if names and encoding is not None and len(tables) == len(originals):
        texts = _texts(tables, names)[rows.chosen]
        pairs = np.unique(np.concatenate([_neighbors(rows)[0], _equal_pairs(texts)]), axis=0)
        scores = similarity.text_similarity(texts, pairs)
        others = ~_is_text(encoding)
        if others.any():
            scores = np.where(_row_scores(rows.standardized(others), pairs) >= similarity.MIN_ROW, scores, 0)
        return pairs, scores, similarity.MIN_TEXT
    rows = rows.standardized()
    pairs, closeness = _neighbors(replace(rows, limit=_CLIP))  # one huge value would cost all others their digits
    pairs = pairs[_by_chance(closeness, len(rows), min(_NEIGHBORS, len(rows) - 1)) < _BY_CHANCE]
    return pairs, _row_scores(rows, pairs), similarity.MIN_ROW


@dataclass(frozen=True)
class _Stacked:
    """Some rows of several splits as one standardized array (n, d), read on demand.

    Attributes:
        all: the rows of all splits.
        chosen: indices of the rows (n,).
        columns: mask of the columns; None for all.
        center: subtracted from each column.
        scale: divides each column.
        limit: values are clipped to plus or minus this.
    """

    all: Shards
    chosen: Array
    columns: Array | None = None
    center: Array | float = 0.0
    scale: Array | float = 1.0
    limit: float = np.inf

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self), int(np.prod(self.all.shape[1:])) if self.columns is None else int(self.columns.sum())

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, rows: Any) -> Array:
        block = np.asarray(self.all[self.chosen[rows]])
        flat: Array = block.reshape(len(block), -1)
        centered = (flat if self.columns is None else flat[:, self.columns]) - self.center  # in full precision
        scaled: Array = centered.astype(np.float32) / self.scale
        return scaled if self.limit == np.inf else scaled.clip(-self.limit, self.limit)

    def standardized(self, columns: Array | None = None) -> "_Stacked":
        """Return these rows, or some of their columns, centered on the median and divided by a robust scale.

        The scale is half the distance between the 16th and 84th percentile, the standard deviation of a Gaussian, which
        a few huge values do not change; where that is 0, the standard deviation.
        """
        part = replace(self, columns=columns)
        few = np.linspace(0, len(self) - 1, min(len(self), _SAMPLE)).astype(np.int64)
        rows = np.asarray(self.all[self.chosen[few]], np.float64).reshape(len(few), -1)
        sample = rows if columns is None else rows[:, columns]
        low, center, high = np.quantile(sample, (0.16, 0.5, 0.84), axis=0)
        scale = np.where(high > low, (high - low) / 2, sample.std(axis=0))
        scale = np.where(scale > 0, scale, 1)
        exact = np.result_type(self.all.dtype, np.float32)
        return replace(part, center=center.astype(exact), scale=scale.astype(np.float32))


def _neighbors(rows: _Stacked) -> tuple[Array, Array]:
    """Return pairs (p, 2) of neighbors, the lower index first, and their closeness (p,).

    Closeness is the distance divided by that to the last neighbor, the larger of the two.
    """
    indices, distances = all_nearest(rows, min(_NEIGHBORS, len(rows) - 1))
    reach = np.maximum(distances[:, -1], _TINY)
    one = np.repeat(np.arange(len(rows)), indices.shape[1])
    other, apart = indices.ravel(), distances.ravel()
    one, other, apart = (array[indices.ravel() >= 0] for array in (one, other, apart))
    pairs, place = np.unique(np.sort(np.stack([one, other], 1), axis=1), axis=0, return_index=True)
    return pairs, apart[place] / np.maximum(reach[pairs[:, 0]], reach[pairs[:, 1]])


def _by_chance(closeness: Array, rows: int, neighbors: int) -> Array:
    """Return how many pairs as close as each are expected by chance in all the data (p,).

    Of the k neighbors of a point in D dimensions, ``k (r / r_k)^D`` are within r under a uniform density. D is the
    inverse of the mean of ``log(r_k / r)``.

    Levina, E., Bickel, P. (2004). Maximum likelihood estimation of intrinsic dimension. NeurIPS 17; with the correction
    of MacKay and Ghahramani, which averages inverses.
    """
    inside = closeness[(closeness > 0) & (closeness < 1)]
    dimensions = 1 / max(-float(np.log(inside).mean()), _TINY) if len(inside) else 1.0
    return rows * neighbors * closeness**dimensions / 2


def _equal_pairs(texts: Array) -> Array:
    """Return pairs (p, 2) of equal texts: each with the first one."""
    _, first, place = np.unique(texts, return_index=True, return_inverse=True)
    later = np.flatnonzero(first[place] != np.arange(len(texts)))
    return np.stack([first[place[later]], later], 1)


def _texts(parts: Sequence[Table], columns: Sequence[str]) -> Array:
    """Return the plain texts of all rows, as objects; several columns are joined."""
    texts: list[str] = []
    for part in parts:
        cells = zip(*(part.table[name].to_pylist() for name in columns), strict=True)
        texts += ["\n".join(similarity.plain_text(str(text or "")) for text in row) for row in cells]
    return np.array(texts, object)


def _is_text(encoding: Encoding) -> Array:
    """Return which features encode texts (d,)."""
    columns = TableEncoder.restore(encoding).columns
    return np.repeat([column.kind == "text" for column in columns], [column.width for column in columns])


def _row_scores(rows: _Stacked, pairs: Array) -> Array:
    """Return the similarity (p,) of pairs (p, 2) of standardized rows: 1 - the largest difference."""
    blocks = (pairs[start : start + _BLOCK].T for start in range(0, len(pairs), _BLOCK))
    return np.concatenate([np.empty(0), *(1 - np.abs(rows[a] - rows[b]).max(1, initial=0) for a, b in blocks)])


def _stars(pairs: Array, scores: Array, count: int) -> tuple[Array, Array]:
    """Return the leader of each of ``count`` nodes, itself where it has none, and their similarity, both (count,).

    Nodes become leaders in the order of their degree; each takes those of its neighbors that are still free.
    """
    leader, best, free = np.arange(count), np.zeros(count), np.ones(count, bool)
    graph = coo_array((scores, tuple(pairs.T)), (count, count)).tocsr()
    graph += graph.T
    degrees = np.diff(graph.indptr)
    order = np.argsort(-degrees, kind="stable")[: np.count_nonzero(degrees)].tolist()
    for node in filter(free.__getitem__, order):
        edges = slice(*graph.indptr[node : node + 2])
        taken = free[graph.indices[edges]]
        if taken.any():
            members, similar = graph.indices[edges][taken], graph.data[edges][taken]
            leader[members], best[members], best[node] = node, similar, similar.max()
            free[members] = free[node] = False
    return leader, best
