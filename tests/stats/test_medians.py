"""The middle of rows against a full sort."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from unflip.stats.robust_mean import divisible_length, middle_two


@pytest.mark.parametrize("n", [1, 2, 3, 511, 512, 513, 1_023, 1_025, 4_153, 20_001])
def test_a_divisible_length_is_a_little_longer_and_can_be_cut(n: int) -> None:
    length = divisible_length(n)
    parts = -(-length // 512)
    assert n <= length < n + parts
    assert length % parts == 0


def rectified(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.maximum(rows, 0)


def ordered(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.sort(rows, axis=1)


def drifting(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows + np.linspace(0, 3, rows.shape[1], dtype=np.float32)


def whole(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.round(rows)


def infinite(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    rows[:, ::3], rows[:, 1::3] = -np.inf, np.inf
    return rows


@pytest.mark.parametrize("change", [np.copy, rectified, ordered, drifting, whole, infinite, np.zeros_like])
@pytest.mark.parametrize("n", [1, 2, 7, 300, 512, 513, 1_100, 4_153])
def test_it_is_the_middle_of_a_full_sort(n: int, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> None:
    rows = change(np.random.default_rng(n).normal(size=(20, divisible_length(n))).astype(np.float32))
    middle = rows.shape[1] // 2
    expected = np.sort(rows, axis=1)
    lower, upper = middle_two(rows)
    np.testing.assert_array_equal(upper, expected[:, middle])
    if n > 1:
        np.testing.assert_array_equal(lower, expected[:, middle - 1])


def test_what_is_not_a_number_is_no_error() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 1_026)).astype(np.float32)
    rows[1, 5::2] = np.nan
    expected = np.sort(rows, axis=1)
    np.testing.assert_array_equal(middle_two(rows)[1], expected[:, 513])
