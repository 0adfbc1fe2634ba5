"""The most informative order of a review: active learning by uncertainty and density."""

import numpy as np
import pyarrow as pa

from unflip.data.arrays import Array
from unflip.stats.nearest import all_nearest

_NEIGHBORS = 10
_EPS = 1e-6  # keeps divisions finite


def most_informative_first(table: pa.Table, features: Array | None, pool_size: int = 10_000) -> Array:
    """Return the rows (n,) of a label table, the most informative first.

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
    order = np.argsort(-score, kind="stable")
    pool = np.sort(order[: min(pool_size, int((score >= 0).sum()))])
    worth = score[pool]
    if features is not None and len(pool) > 1:
        worth = information_density(worth, *all_nearest(features[pool], min(_NEIGHBORS, len(pool) - 1)))
    first = pool[classes_in_turns(worth, suggested[pool])]
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
    wrong: Array = np.where(differs & ~np.isnan(quality), 1 - (1 - q) * instead, 1 - q)
    return wrong


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
    result: Array = worth / (1 + (similar * first).sum(1))
    return result


def classes_in_turns(worth: Array, classes: Array) -> Array:
    """Return positions (m,): the best of each class, then the second best of each; the best first in each round.

    >>> classes_in_turns(np.array([0.9, 0.8, 0.1, 0.7]), np.array([0, 0, 1, 0]))
    array([0, 2, 1, 3])
    """
    order = np.lexsort((-worth, classes))
    starts = np.flatnonzero(np.append(True, np.diff(classes[order]) != 0))
    turn = np.empty(len(worth), np.int64)
    turn[order] = np.arange(len(worth)) - np.repeat(starts, np.diff(np.append(starts, len(worth))))
    result: Array = np.lexsort((-worth, turn))
    return result
