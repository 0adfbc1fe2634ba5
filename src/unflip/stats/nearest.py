"""Nearest neighbors: of a few points among many rows, and of every row among all others.

Rows may be in half precision, mapped from a file, or lie in several: they are read in blocks.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

Array = np.ndarray[Any, Any]
_EXACT = 20_000  # rows up to which every row is compared with all others
_VALUES = 2**22  # numbers widened at once
_QUERIES = 2**13  # points at once
_SPARE = 8  # extra candidates, since rounding may swap neighbors at almost the same distance
_MEMBERS = 500  # rows per list of the index, about
_SAMPLE = 40  # rows per list that lists are made from
_ROUNDS = 8  # of k-means, which makes the lists
_LISTS = 32  # that neighbors of a row are looked for in
_CANDIDATES = 16  # whose distances are computed, per neighbor
_NARROW = 128  # columns up to which each is coded by itself, else two together
_HALF_MOST = 6e4
_TINY = 1e-30


class Rows(Protocol):
    """Rows of numbers (n, d): an array, or what gives arrays for slices and for numbers of rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Neighbors(NamedTuple):
    """The neighbors of each point, the nearest first; at the same distance, the one with the lower index first."""

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
        leave_out: for each query the index of a feature to leave out (q,), usually its own.
    """
    faiss = _library()
    points = queries.astype(np.float32)
    # Relative to the mean of the points: far from the origin, rounding errors would dominate.
    middle = points.mean(0) if len(points) else np.zeros(features.shape[1], np.float32)
    centered = points - middle
    wanted = k + (leave_out is not None) + _SPARE
    best, found = np.empty((len(points), 0), np.float32), np.empty((len(points), 0), np.int64)
    for places in _blocks(len(features) if rows is None else len(rows), _VALUES // max(1, features.shape[1])):
        chosen: Any = places if rows is None else rows[places]
        block = _wide(features, chosen) - middle
        distances, at = faiss.knn(centered, block, min(wanted, len(block)))
        best = np.hstack([best, distances])
        found = np.hstack([found, places.start + at if rows is None else chosen[at]])
        if best.shape[1] > wanted:
            kept = np.argpartition(best, wanted - 1, axis=1)[:, :wanted]
            best, found = np.take_along_axis(best, kept, 1), np.take_along_axis(found, kept, 1)
    return _ranked(features, points, found, k, leave_out)


def all_nearest(features: Rows, k: int = 10) -> Neighbors:
    """Find the ``k`` other features that are nearest to each of the features (n, d).

    Exactly up to 20,000 rows. Above, by an inverted-file index: k-means puts rows into lists of about 500; each row is
    compared by product-quantized codes with those of the nearest lists, and the distances to the best candidates are
    computed. The same rows give the same neighbors. The index takes about 2.5 bytes per number.

    Jégou, H., Douze, M., Schmid, C. (2011). Product quantization for nearest neighbor search. IEEE TPAMI 33(1).
    """
    count, own = len(features), np.arange(len(features))
    if count <= _EXACT:
        return nearest(features, _wide(features, slice(0, count)), k, leave_out=own)
    sample = _wide(features, np.linspace(0, count - 1, _SAMPLE * (count // _MEMBERS)).astype(np.int64))
    middle, scale = sample.mean(0), 1 / max(float(sample.std()), _TINY)  # the index holds numbers of half precision

    def points(block: Array) -> Array:
        return np.pad((block - middle) * scale, ((0, 0), (0, block.shape[1] % 2))).clip(-_HALF_MOST, _HALF_MOST)

    index = _trained_index(points(sample), count // _MEMBERS)
    for rows in _blocks(count, _QUERIES):
        index.add(points(_wide(features, rows)))
    indices, distances = np.empty((count, k), np.int64), np.empty((count, k), np.float32)
    for rows in _blocks(count, _QUERIES):
        block = _wide(features, rows)
        found = index.search(points(block), k + 1)[1]
        indices[rows], distances[rows] = _ranked(features, block, found, k, own[rows])
    return Neighbors(indices, distances)


def _trained_index(sample: Array, lists: int) -> Any:
    """Return an empty index with so many lists, made from sampled rows of an even number of columns."""
    faiss = _library()
    columns = sample.shape[1]
    codes = columns if columns <= _NARROW else columns // 2
    index = faiss.index_factory(columns, f"IVF{lists},PQ{codes}x4fs,Refine(SQfp16)")
    inverted = faiss.extract_index_ivf(index)
    inverted.nprobe, index.k_factor = _LISTS, _CANDIDATES
    inverted.cp.niter, inverted.cp.min_points_per_centroid = _ROUNDS, 1
    index.train(sample)
    return index


def _ranked(features: Rows, points: Array, found: Array, k: int, leave_out: Array | None) -> Neighbors:
    """Return the k nearest of the candidates (q, c) of each point, by exact distances; -1 is no candidate."""
    indices = np.full((len(points), k), -1)
    distances = np.full((len(points), k), np.inf, np.float32)
    found = np.sort(found, axis=1)  # so that ties go to the lower index
    for part in _blocks(len(points), _VALUES // max(1, found.shape[1] * points.shape[1])):
        some = found[part]
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
    """Return rows in single precision, in one piece."""
    return np.ascontiguousarray(np.asarray(features[rows]), np.float32)


def _blocks(count: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))


def _library() -> Any:
    """Return faiss, which is loaded when it is used, with as many threads as torch has."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss
