"""Nearest neighbours of a few features among many, which may be in half precision and mapped from a file."""

from typing import NamedTuple

import torch
from torch import Tensor

from unflip.errors import InputError

_VALUES = 2**18  # numbers widened at once: they fit in the CPU's cache
_QUERIES = 64  # queries at once, at most
_DISTANCES = 2**24  # of queries to features at once, so that they take little memory
_SPARE = 8  # extra candidates, since rounding may swap neighbours at almost the same distance


class Neighbours(NamedTuple):
    """The neighbours of each query, the nearest first; at the same distance, the one with the lower index first."""

    indices: Tensor
    """(q, k), into the features; -1 where there are fewer than k."""
    distances: Tensor
    """(q, k), Euclidean; infinite where there are fewer than k."""


@torch.no_grad()
def nearest(
    features: Tensor, queries: Tensor, k: int, *, rows: Tensor | None = None, leave_out: Tensor | None = None
) -> Neighbours:
    """Find the ``k`` of the features (n, d) that are nearest to each query (q, d), on the CPU.

    Args:
        features: of any floating-point type; they are widened in parts.
        queries: points in the same space.
        k: the number of neighbours.
        rows: indices of the features to search (m,), without repeats; all by default.
        leave_out: for each query the index of a feature to leave out (q,), usually its own.
    """
    if features.ndim != 2 or queries.ndim != 2 or features.shape[1] != queries.shape[1]:
        raise InputError(
            f"neighbours: features {tuple(features.shape)} and queries {tuple(queries.shape)} must be (n, d) and (q, d)"
        )
    if k < 1:
        raise InputError(f"neighbours: k must be 1 or more, not {k}")
    indices = torch.full((len(queries), k), -1)
    distances = torch.full((len(queries), k), torch.inf)
    size = max(1, min(_QUERIES, _DISTANCES // max(1, len(features) if rows is None else len(rows))))
    for start in range(0, len(queries), size):
        part = slice(start, start + size)
        points = queries[part].float()
        scores = _scores(features, points, rows)  # (q, m)
        if leave_out is not None:
            places = torch.arange(len(features)) if rows is None else rows
            scores[leave_out[part, None] == places] = torch.inf
        candidates = scores.topk(min(k + _SPARE, scores.shape[1]), largest=False)
        found = candidates.indices if rows is None else rows[candidates.indices]
        exact = torch.linalg.vector_norm(features[found].float() - points[:, None], dim=2)
        exact.masked_fill_(candidates.values.isinf(), torch.inf)
        found, order = found.sort(dim=1)  # so that ties go to the lower index
        exact, nearer = exact.gather(1, order).sort(dim=1, stable=True)
        exact, found = exact[:, :k], found.gather(1, nearer)[:, :k]
        distances[part, : exact.shape[1]] = exact
        indices[part, : exact.shape[1]] = found.masked_fill(exact.isinf(), -1)
    return Neighbours(indices, distances)


def _scores(features: Tensor, points: Tensor, rows: Tensor | None) -> Tensor:
    """Return |h|² - 2 hᵀ q, which orders features h as their distance from q does, for every point q: (q, m).

    Both are relative to the mean of the points: far from the origin, rounding errors would dominate.
    """
    count, columns = len(features) if rows is None else len(rows), features.shape[1]
    size = max(1, _VALUES // max(1, columns))
    wide = torch.empty(size, columns)
    middle = points.mean(0)
    directions = -2 * (points - middle).T
    scores = torch.empty(count, len(points))
    for start in range(0, count, size):
        part = features[start : start + size] if rows is None else features[rows[start : start + size]]
        block = wide[: len(part)].copy_(part).sub_(middle)
        squares = torch.linalg.vector_norm(block, dim=1).square_()[:, None]
        torch.addmm(squares, block, directions, out=scores[start : start + size])
    return scores.T.contiguous()
