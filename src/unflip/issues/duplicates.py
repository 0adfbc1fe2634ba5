"""Alike: which examples of a data set are the same or nearly so, over all of its parts.

Candidates are neighbors in feature space; a comparison of what came (pictures, texts, rows) confirms them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from unflip.data.arrays import Array, Shards
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Encoding, Inputs, Split
from unflip.data.files import ImageFiles
from unflip.data.split import identities, repeats_by_nature
from unflip.encoders.table import TableEncoder, text_columns
from unflip.issues import similarity
from unflip.progress import Track, untracked
from unflip.stats.nearest import all_nearest

_NEIGHBORS = 10  # of each example that are candidates
_NEAR = 0.9  # pictures are compared up to this share of the distance to the tenth neighbor
_SAMPLE = 100_000  # rows that the spread of columns is measured by
_ROWS = 4096  # pairs of rows compared at once
_BELOW_ONE = 1 - 1e-6  # the score of what is not equal, at most
_TINY = 1e-12
_FAR = 30.0  # spreads from the median, beyond which all is equally far
_BY_CHANCE = 0.01  # pairs of rows as close that may be expected without any duplicate
_IMAGE = 4  # axes of an array of images


@dataclass(frozen=True)
class DuplicateIndex:
    """Examples that are the same or nearly so; rows are those of all parts, one after the other.

    Attributes:
        parts: how many examples each part has: train, val if there is one, then the test sets.
        keys: a number per row (n,), the same for examples that are equal.
        pairs: pairs of such numbers (p, 2) whose examples are nearly the same.
        scores: how similar they are (p,), below 1.
    """

    parts: Mapping[str, int]
    keys: Array
    pairs: Array
    scores: Array

    def rows_of(self, part: str) -> slice:
        """Return the rows of a part."""
        names = [*self.parts]
        start = sum(self.parts[name] for name in names[: names.index(part)])
        return slice(start, start + self.parts[part])

    def group(self, count: int) -> tuple[Array, Array]:
        """Return a number per example (count,) of the first rows, the same in a group, and how alike each is (count,).

        In a group all are equal to, or nearly the same as, one of them, that with the most such partners: examples are
        not chained. An example without partner is alone and has 0.
        """
        numbers, own, sizes = np.unique(self.keys[:count], return_inverse=True, return_counts=True)
        place = np.full(int(self.keys.max(initial=0)) + 1, -1)
        place[numbers] = np.arange(len(numbers))
        known = (place[self.pairs] >= 0).all(1)
        pairs, scores = place[self.pairs[known]], self.scores[known]
        leader, likeness = _stars(pairs, scores, len(numbers))
        return leader[own], np.where(sizes[own] > 1, 1.0, likeness[own])

    def partners(self, rows: slice, others: slice) -> tuple[Array, Array, Array]:
        """Return which of ``rows`` (q,) are alike which of ``others`` (q,), and how alike they are (q,).

        Each of ``rows`` is there once, with the most alike of the others.
        """
        first = np.full(int(self.keys.max(initial=0)) + 1, -1)  # of the others, by key
        first[self.keys[others][::-1]] = np.arange(others.start, others.stop)[::-1]
        own = self.keys[rows]
        best, score = first.copy(), (first >= 0).astype(float)
        both = np.concatenate([self.pairs, self.pairs[:, ::-1]])
        order = np.argsort(np.tile(self.scores, 2), kind="stable")  # the highest is written last
        order = order[(first[both[order, 1]] >= 0) & (score[both[order, 0]] < 1)]
        best[both[order, 0]], score[both[order, 0]] = first[both[order, 1]], np.tile(self.scores, 2)[order]
        found = np.flatnonzero(best[own] >= 0)
        return rows.start + found, best[own[found]], score[own[found]]

    def without(self, removed: Array) -> "DuplicateIndex":
        """Return this where those of the first rows that were removed (m,) are alike nothing."""
        keys, gone = self.keys.copy(), np.flatnonzero(removed)
        keys[gone] = int(keys.max(initial=-1)) + 1 + np.arange(len(gone))
        return replace(self, keys=keys)

    def mark_groups(self, data: Dataset) -> Dataset:
        """Return the data with the groups of its training examples, so that they share a fold."""
        return replace(data, train=replace(data.train, duplicates=self.group(self.parts["train"])[0]))

    def mark_leakage(self, data: Dataset) -> Dataset:
        """Return the data with the test examples that are alike others, so that they are counted apart."""
        leak = {name: np.zeros(len(part.inputs), bool) for name, part in data.tests.items()}
        seen = slice(0, sum(self.parts[name] for name in self.parts if name not in data.tests))
        for name, mask in leak.items():
            rows = self.rows_of(name)
            mask[self.partners(rows, seen)[0] - rows.start] = True
        tests = {name: replace(part, leaked=leak[name]) for name, part in data.tests.items()}
        return replace(data, tests=tests)


class Scored(NamedTuple):
    """Pairs of examples that may be nearly the same.

    Attributes:
        rows: (p, 2), the lower number first.
        scores: how similar they are (p,), from 0 to 1.
        least: from which score on they are nearly the same.
    """

    rows: Array
    scores: Array
    least: float


def find_duplicates(data: Dataset, came: Mapping[str, Inputs], track: Track = untracked) -> DuplicateIndex:
    """Find examples that are the same or nearly so in all parts of a data set; none where rows repeat by nature.

    Args:
        data: as rows of features.
        came: the examples of each part as they came: pictures, cells of a table, or the rows themselves.
        track: shows how many pairs of pictures are compared.
    """
    parts = {"train": data.train} | ({"val": data.val} if data.val else {}) | dict(data.tests)
    _, first, keys = np.unique(
        np.concatenate([identities(part) for part in parts.values()]), return_index=True, return_inverse=True
    )
    counts = {name: len(part.inputs) for name, part in parts.items()}
    if len(first) < len(keys) and repeats_by_nature(data.train):
        return DuplicateIndex(counts, np.arange(len(keys)), np.empty((0, 2), np.int64), np.empty(0))
    scored = score_pairs(data, {name: (part, came[name]) for name, part in parts.items()}, first, track)
    kept = scored.scores >= scored.least
    return DuplicateIndex(counts, keys, keys[scored.rows[kept]], np.minimum(scored.scores[kept], _BELOW_ONE))


def score_pairs(
    data: Dataset, parts: Mapping[str, tuple[Split, Inputs]], first: Array, track: Track = untracked
) -> Scored:
    """Return the candidates among the rows ``first`` of all parts, and how alike the examples of each pair are."""
    came = [inputs for _, inputs in parts.values()]
    features: list[Any] = [part.inputs for part, _ in parts.values()]
    rows = _Stacked(Shards(features), first)
    if len(first) < 2:
        return Scored(np.empty((0, 2), np.int64), np.empty(0), 1.0)
    images = [
        inputs
        for inputs in came
        if isinstance(inputs, ImageFiles) or (isinstance(inputs, np.ndarray) and inputs.ndim == _IMAGE)
    ]
    if images and data.encoding is not None and data.encoding.encoder == "images":
        pairs, closeness = _neighbors(rows)
        pairs = pairs[closeness < _NEAR]
        pictures = similarity.Pictures(images)
        return Scored(first[pairs], similarity.compare_images(pictures, first[pairs], track), similarity.LEAST_IMAGE)
    names = text_columns(data.encoding) if data.encoding is not None else ()
    if names and data.encoding is not None and all(isinstance(cells, Table) for cells in came):
        texts = _texts([cells for cells in came if isinstance(cells, Table)], names, first)
        pairs = np.unique(np.concatenate([_neighbors(rows)[0], _equal_pairs(texts)]), axis=0)
        scores = similarity.compare_texts(texts, pairs)
        others = ~_of_texts(data.encoding)
        if others.any():
            scores = np.where(_row_scores(rows.spread(others), pairs) >= similarity.LEAST_ROW, scores, 0)
        return Scored(first[pairs], scores, similarity.LEAST_TEXT)
    rows = rows.spread()
    pairs, closeness = _neighbors(rows.clipped())
    pairs = pairs[_by_chance(closeness, len(rows), min(_NEIGHBORS, len(rows) - 1)) < _BY_CHANCE]
    return Scored(first[pairs], _row_scores(rows, pairs), similarity.LEAST_ROW)


@dataclass(frozen=True)
class _Stacked:
    """Some rows of several parts as one array (n, d), in units of a scale; read when they are asked for.

    Attributes:
        all: the rows of all parts.
        chosen: which of them (n,).
        columns: which columns; None for all.
        middle: what is subtracted from each column.
        scale: what each column is divided by.
        most: values are clipped to this, up and down.
    """

    all: Shards
    chosen: Array
    columns: Array | None = None
    middle: Array | float = 0.0
    scale: Array | float = 1.0
    most: float = np.inf

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self), int(np.prod(self.all.shape[1:])) if self.columns is None else int(self.columns.sum())

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, rows: Any) -> Array:
        found = np.asarray(self.all[self.chosen[rows]], np.float32)
        flat: Array = found.reshape(len(found), -1)
        scaled = ((flat if self.columns is None else flat[:, self.columns]) - self.middle) / self.scale
        return scaled if self.most == np.inf else scaled.clip(-self.most, self.most)

    def spread(self, columns: Array | None = None) -> "_Stacked":
        """Return these rows, or some of their columns, from the columns' medians on, in units of their spread.

        It is half the distance between the 16th and the 84th percentile, the standard deviation of a Gaussian, which a
        few huge values leave as it is; where that is 0, the standard deviation.
        """
        part = replace(self, columns=columns)
        few = part[np.linspace(0, len(self) - 1, min(len(self), _SAMPLE)).astype(np.int64)].astype(np.float64)
        low, middle, high = np.quantile(few, (0.16, 0.5, 0.84), axis=0)
        scale = np.where(high > low, (high - low) / 2, few.std(axis=0))
        scale = np.where(scale > 0, scale, 1)
        return replace(part, middle=middle.astype(np.float32), scale=scale.astype(np.float32))

    def clipped(self) -> "_Stacked":
        """Return these rows for the search of neighbors: one value far away would cost all others their digits."""
        return replace(self, most=_FAR)


def _neighbors(rows: _Stacked) -> tuple[Array, Array]:
    """Return pairs (p, 2) of which one is among the other's neighbors, the lower first, and their closeness (p,).

    It is their distance over that to the last of the neighbors, the larger of the two.
    """
    indices, distances = all_nearest(rows, min(_NEIGHBORS, len(rows) - 1))
    reach = np.maximum(distances[:, -1], _TINY)
    one = np.repeat(np.arange(len(rows)), indices.shape[1])
    other, apart = indices.ravel(), distances.ravel()
    one, other, apart = (array[indices.ravel() >= 0] for array in (one, other, apart))
    pairs, place = np.unique(np.sort(np.stack([one, other], 1), axis=1), axis=0, return_index=True)
    return pairs, apart[place] / np.maximum(reach[pairs[:, 0]], reach[pairs[:, 1]])


def _by_chance(closeness: Array, rows: int, neighbors: int) -> Array:
    """Return how many pairs so close are expected by chance in all the data (p,).

    Among k neighbors of a point in D dimensions ``k (r / r_k)^D`` are within r where the density is even. D is the
    inverse of the mean of ``log(r_k / r)``.

    Levina, E., Bickel, P. (2004). Maximum likelihood estimation of intrinsic dimension. NeurIPS 17; with the correction
    of MacKay and Ghahramani, which averages inverses.
    """
    inside = closeness[(closeness > 0) & (closeness < 1)]
    dimensions = 1 / max(-float(np.log(inside).mean()), _TINY) if len(inside) else 1.0
    return rows * neighbors * closeness**dimensions / 2


def _equal_pairs(texts: Array) -> Array:
    """Return pairs (p, 2) of texts that are equal: each with the first such."""
    _, first, place = np.unique(texts, return_index=True, return_inverse=True)
    later = np.flatnonzero(first[place] != np.arange(len(texts)))
    return np.stack([first[place[later]], later], 1)


def _texts(parts: Sequence[Table], columns: Sequence[str], rows: Array) -> Array:
    """Return the plain texts of some rows of all parts, an object each; those of several columns are joined."""
    found: list[str] = []
    for cells in parts:
        lists = [cells.table[name].to_pylist() for name in columns]
        found += [
            "\n".join(similarity.plain_text(str(text or "")) for text in texts) for texts in zip(*lists, strict=True)
        ]
    return np.array(found, object)[rows]


def _of_texts(encoding: Encoding) -> Array:
    """Return which features are those of texts (d,)."""
    columns = TableEncoder.restore(encoding).columns
    return np.repeat([column.kind == "text" for column in columns], [column.width for column in columns])


def _row_scores(rows: _Stacked, pairs: Array) -> Array:
    blocks = (pairs[start : start + _ROWS].T for start in range(0, len(pairs), _ROWS))
    return np.concatenate([np.empty(0), *(similarity.compare_rows(rows[a], rows[b]) for a, b in blocks)])


def _stars(pairs: Array, scores: Array, count: int) -> tuple[Array, Array]:
    """Return the leader of each of ``count`` nodes, itself where it has none, and how alike they are (both (count,)).

    Nodes lead in the order of how many partners they have; each takes those of its partners that nobody has.
    """
    leader, likeness = np.arange(count), np.zeros(count)
    both, twice = np.concatenate([pairs, pairs[:, ::-1]]), np.tile(scores, 2)
    order = np.argsort(both[:, 0], kind="stable")
    both, twice = both[order], twice[order]
    nodes, starts, degrees = np.unique(both[:, 0], return_index=True, return_counts=True)
    free = np.ones(count, bool)
    for place in np.argsort(-degrees, kind="stable").tolist():  # of examples with near-duplicates alone
        node = nodes[place]
        if not free[node]:
            continue
        some = slice(starts[place], starts[place] + degrees[place])
        taken = free[both[some, 1]]
        members = both[some, 1][taken]
        if len(members):
            leader[members], likeness[members] = node, twice[some][taken]
            likeness[node] = twice[some][taken].max()
            free[members] = free[node] = False
    return leader, likeness
