"""Helpful: the order of a review by what a decision teaches, beside that by doubt."""

import numpy as np
import pyarrow as pa

from unflip.data.arrays import Array
from unflip.stats.nearest import all_nearest

_POOL = 10_000  # the most uncertain examples, among which neighbors are looked for
_NEIGHBORS = 10
_LEAST = 1e-6  # keeps divisions finite


def most_informative_first(table: pa.Table, features: Array | None) -> Array:
    """Return the rows (n,) of a table of labels in the order in which decisions teach most.

    Only the 10,000 most uncertain examples that nobody has decided about are compared with each other, so that memory
    and time are bounded; all others follow, the more uncertain first. Without ``features`` (n, d) nothing is known of
    density, and only uncertainty counts.
    """
    columns = {name: table[name].to_numpy() for name in ("label_quality", "prob_given", "prob_suggested")}
    given, suggested = table["given_label"].to_numpy(), table["suggested_label"].to_numpy()
    doubt = uncertainty(*columns.values(), differs=given != suggested)
    doubt[table["reviewed"].to_numpy()] = -1.0
    order = np.argsort(-doubt, kind="stable")
    pool = np.sort(order[: min(_POOL, int((doubt >= 0).sum()))])
    worth = doubt[pool]
    if features is not None and len(pool) > 1:
        worth = information_density(worth, *all_nearest(features[pool], min(_NEIGHBORS, len(pool) - 1)))
    first = pool[classes_in_turns(worth, suggested[pool])]
    rest: Array = order[~np.isin(order, first)]
    return np.concatenate([first, rest])


def uncertainty(quality: Array, of_given: Array, of_suggested: Array, *, differs: Array) -> Array:
    """Return how likely each suggested label (n,) is wrong: least confidence (Lewis and Gale 1994).

    Where the suggestion is the given label that is ``1 - q``. Elsewhere the given label is wrong with probability
    ``1 - q``, and what replaces it is the suggested label with probability ``p_s / (1 - p_g)``, so that
    ``1 - (1 - q) p_s / (1 - p_g)`` remains. It is 0 where quality is not known.

    Args:
        quality: q (n,), how likely the given label is right.
        of_given: p_g (n,), what the method believes of the given label.
        of_suggested: p_s (n,), what it believes of the suggested one.
        differs: (n,) whether the two labels differ.
    """
    q, p_g, p_s = (np.nan_to_num(column.astype(np.float64), nan=1.0) for column in (quality, of_given, of_suggested))
    instead = np.clip(p_s / np.maximum(1 - p_g, _LEAST), 0, 1)
    wrong: Array = np.where(differs & ~np.isnan(quality), 1 - (1 - q) * instead, 1 - q)
    return wrong


def information_density(uncertain: Array, neighbors: Array, distances: Array) -> Array:
    """Return what a decision about each of m examples teaches (m,).

    It is the information density of Settles and Craven (2008, EMNLP), uncertainty times mean similarity to others,
    with beta = 1: ``u_i mean_j exp(-(d_ij / h)^2 / 2)`` over the nearest j, h the median distance to the last of them.
    Two decisions about nearly the same example teach little more than one, so it is divided by one plus the number of
    neighbors with a higher value (of equals, those that come first), each weighted by its similarity.

    Args:
        uncertain: u (m,).
        neighbors: (m, k), the nearest of the m examples, without itself.
        distances: d (m, k), to them.
    """
    width = max(float(np.median(distances[:, -1])), _LEAST)
    similar = np.exp(-((distances / width) ** 2) / 2)
    worth = uncertain * similar.mean(1)
    others, own = worth[neighbors], worth[:, None]
    first = (others > own) | ((others == own) & (neighbors < np.arange(len(worth))[:, None]))
    result: Array = worth / (1 + (similar * first).sum(1))
    return result


def classes_in_turns(worth: Array, classes: Array) -> Array:
    """Return positions (m,): the best of each class first, then the second of each; within a turn the best first.

    >>> classes_in_turns(np.array([0.9, 0.8, 0.1, 0.7]), np.array([0, 0, 1, 0]))
    array([0, 2, 1, 3])
    """
    order = np.lexsort((-worth, classes))
    starts = np.flatnonzero(np.append(True, np.diff(classes[order]) != 0))
    turn = np.empty(len(worth), np.int64)
    turn[order] = np.arange(len(worth)) - np.repeat(starts, np.diff(np.append(starts, len(worth))))
    result: Array = np.lexsort((-worth, turn))
    return result
