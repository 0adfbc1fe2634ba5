"""Nearest neighbors: of a few points among many rows, and of every row among all others.

Rows may be in half precision, memory-mapped, or in several files: they are read in blocks.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

Array = np.ndarray[Any, Any]
EXACT_ROWS = 20_000
"""Rows up to which every row is compared with all others."""
BLOCK_VALUES = 2**22
"""Values widened at once."""
QUERY_ROWS = 2**13
"""Points searched at once."""
_SPARE = 8  # extra candidates, since rounding may swap neighbors at almost the same distance
LIST_ROWS = 500
"""Approximate number of rows per list of the index."""
_SAMPLE = 40  # rows per list in the k-means sample
_ROUNDS = 8  # of k-means
_LISTS = 32  # searched per row
_CANDIDATES = 16  # per neighbor, whose exact distances are computed
_NARROW = 128  # columns up to which each has its own code; beyond, two share one
_MAX_HALF = 6e4


class Rows(Protocol):
    """Rows (n, d): an array, or an object that returns arrays for slices and index arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Neighbors(NamedTuple):
    """The neighbors of each point, nearest first; ties in the order of indices."""

    indices: Array  # (q, k), into the features; -1 where there are fewer than k
    distances: Array  # (q, k), Euclidean; infinite where there are fewer than k


def nearest(
    features: Rows, queries: Array, k: int, *, rows: Array | None = None, leave_out: Array | None = None
) -> Neighbors:
    """Find the ``k`` of the features (n, d) that are nearest to each query (q, d), exactly.

    Args:
        features: of any floating-point type.
        queries: points in the same space.
        k: the number of neighbors.
        rows: indices of the features to search (m,), without repeats; all by default.
        leave_out: index of a feature to exclude for each query (q,), usually its own.
    """
    faiss = _library()
    points = queries.astype(np.float32)
    # Relative to the mean of the points: far from the origin, rounding errors would dominate.
    middle = points.mean(0) if len(points) else np.zeros(features.shape[1], np.float32)
    centered = points - middle
    count = k + (leave_out is not None) + _SPARE
    best, indices = np.empty((len(points), 0), np.float32), np.empty((len(points), 0), np.int64)
    for places in _blocks(len(features) if rows is None else len(rows), BLOCK_VALUES // max(1, features.shape[1])):
        chosen: Any = places if rows is None else rows[places]
        block = _wide(features, chosen) - middle
        distances, at = faiss.knn(centered, block, min(count, len(block)))
        best = np.hstack([best, distances])
        indices = np.hstack([indices, places.start + at if rows is None else chosen[at]])
        if best.shape[1] > count:
            order = np.argpartition(best, count - 1, axis=1)[:, :count]
            best, indices = np.take_along_axis(best, order, 1), np.take_along_axis(indices, order, 1)
    return _rank(features, points, indices, k, leave_out)


def all_nearest(features: Rows, k: int = 10) -> Neighbors:
    """Find the ``k`` other features that are nearest to each of the features (n, d).

    Exactly up to 20,000 rows. Above, by an inverted-file index: k-means puts rows into lists of about 500; each row is
    compared by product-quantized codes with those of the nearest lists, and the exact distances to the best candidates
    are computed. The result is deterministic. The index takes about 2.5 bytes per number.

    Jégou, H., Douze, M., Schmid, C. (2011). Product quantization for nearest neighbor search. IEEE TPAMI 33(1).
    """
    count, own = len(features), np.arange(len(features))
    if count <= EXACT_ROWS:
        return nearest(features, _wide(features, slice(0, count)), k, leave_out=own)
    sample = _wide(features, np.linspace(0, count - 1, _SAMPLE * (count // LIST_ROWS)).astype(np.int64))
    middle, scale = sample.mean(0), 1 / max(float(sample.std()), 1e-30)  # the index holds numbers of half precision

    def points(block: Array) -> Array:
        return np.pad((block - middle) * scale, ((0, 0), (0, block.shape[1] % 2))).clip(-_MAX_HALF, _MAX_HALF)

    index = _trained_index(points(sample), count // LIST_ROWS)
    for rows in _blocks(count, QUERY_ROWS):
        index.add(points(_wide(features, rows)))
    indices, distances = np.empty((count, k), np.int64), np.empty((count, k), np.float32)
    for rows in _blocks(count, QUERY_ROWS):
        block = _wide(features, rows)
        candidates = index.search(points(block), k + 1)[1]
        indices[rows], distances[rows] = _rank(features, block, candidates, k, own[rows])
    return Neighbors(indices, distances)


def _trained_index(sample: Array, lists: int) -> Any:
    """Return an empty index with the given number of lists, trained on a sample with an even number of columns."""
    faiss = _library()
    columns = sample.shape[1]
    codes = columns if columns <= _NARROW else columns // 2
    index = faiss.index_factory(columns, f"IVF{lists},PQ{codes}x4fs,Refine(SQfp16)")
    inverted = faiss.extract_index_ivf(index)
    inverted.nprobe, index.k_factor = _LISTS, _CANDIDATES
    inverted.cp.niter, inverted.cp.min_points_per_centroid = _ROUNDS, 1
    index.train(sample)
    return index


def _rank(features: Rows, points: Array, candidates: Array, k: int, leave_out: Array | None) -> Neighbors:
    """Return the k nearest of the candidates (q, c) of each point, by exact distances; -1 is no candidate."""
    indices = np.full((len(points), k), -1)
    distances = np.full((len(points), k), np.inf, np.float32)
    candidates = np.sort(candidates, axis=1)  # ties go to the lower index
    for part in _blocks(len(points), BLOCK_VALUES // max(1, candidates.shape[1] * points.shape[1])):
        some = candidates[part]
        near = _wide(features, some.ravel().clip(min=0)).reshape(*some.shape, points.shape[1])
        exact = np.linalg.norm(near - points[part, None], axis=2)
        exact[some < 0] = np.inf
        if leave_out is not None:
            exact[some == leave_out[part, None]] = np.inf
        order = np.argsort(exact, axis=1, kind="stable")[:, :k]
        width = order.shape[1]
        distances[part, :width] = np.take_along_axis(exact, order, 1)
        indices[part, :width] = np.where(np.isinf(distances[part, :width]), -1, np.take_along_axis(some, order, 1))
    return Neighbors(indices, distances)


def _wide(features: Rows, rows: slice | Array) -> Array:
    """Return rows as one contiguous float32 array."""
    return np.ascontiguousarray(np.asarray(features[rows]), np.float32)


def _blocks(count: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))


def _library() -> Any:
    """Import faiss lazily, with as many threads as torch has."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss
