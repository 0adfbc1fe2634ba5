"""The middle of many rows of numbers, exactly."""

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PART = 512  # numbers; numpy sorts so few in vector registers, at a fifth of the time per number of long rows


def even_length(n: int) -> int:
    """Return the least length from ``n`` on that can be cut into equal parts of at most 512."""
    parts = -(-n // _PART)
    return parts * -(-n // parts)


def middle_two(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the numbers that come at m // 2 - 1 and at m // 2 in each row (r, m) once it is sorted; it reorders them.

    m is an `even_length`. Parts of a row are sorted by themselves and the middle of each is kept, as wide as four
    standard deviations of where the row's median comes in a random part; the middle of what is kept is the row's if no
    part was cut on the wrong side of it. Rows where one was, such as those that were sorted before, are sorted whole.
    """
    m = rows.shape[1]
    parts = -(-m // _PART)
    cut = rows.reshape(len(rows), parts, -1)
    cut.sort(axis=2)
    if parts == 1:
        return rows[:, m // 2 - 1], rows[:, m // 2]
    half, reach = cut.shape[2] // 2, 2 * isqrt(cut.shape[2]) + 2
    kept = cut[:, :, half - reach : half + reach]
    least, most = kept[:, :, 0].max(axis=1), kept[:, :, -1].min(axis=1)
    kept = np.sort(kept.reshape(len(rows), -1), axis=1)
    position = m // 2 - parts * (half - reach)
    lower, upper = kept[:, position - 1], kept[:, position]
    unsure = ~((least <= lower) & (upper <= most))
    if unsure.any():
        whole = np.sort(rows[unsure], axis=1)
        lower[unsure], upper[unsure] = whole[:, m // 2 - 1], whole[:, m // 2]
    return lower, upper
