"""Duplicates: keys that are equal where rows are, and groups that join."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unflip.data import split
from unflip.data.arrays import Array
from unflip.data.dataset import Split
from unflip.data.files import ImageFiles
from unflip.data.split import identities, repeats_by_nature, row_hashes, same_examples

DTYPES = [np.uint8, np.int16, np.float16, np.float32, np.float64]


def rows_of(dtype: Any, columns: int, count: int = 200, seed: int = 0) -> Array:
    """Rows of few different values, so that many are equal."""
    values = np.random.default_rng(seed).integers(0, 3, (count, columns))
    return values.astype(dtype)


def by_loop(keys: list[Any]) -> list[int]:
    """Number keys by where they appear first."""
    return [keys.index(key) for key in keys]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 3, 5, 8, 17])
def test_hashes_are_equal_where_rows_are(dtype: Any, columns: int) -> None:
    rows = rows_of(dtype, columns)
    hashes = row_hashes(rows)
    assert (hashes.dtype, hashes.shape) == (np.uint64, (200,))
    assert by_loop(hashes.tolist()) == by_loop([row.tobytes() for row in rows])


@given(st.integers(0, 10_000), st.sampled_from(DTYPES), st.integers(1, 21))
def test_one_changed_bit_changes_the_hash(seed: int, dtype: Any, columns: int) -> None:
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, columns * np.dtype(dtype).itemsize, dtype=np.uint8)
    changed = raw.copy()
    changed[random.integers(len(raw))] ^= np.uint8(1 << random.integers(8))
    first, second = row_hashes(np.stack([raw, changed]).view(dtype))
    assert first != second


def test_bits_of_a_hash_look_random() -> None:
    """Rows that differ by little differ in half of the bits, so the chance of equal hashes is that of 64 bits."""
    hashes = row_hashes(np.arange(4000, dtype=np.uint16)[:, None])
    bits = np.unpackbits(hashes.view(np.uint8).reshape(4000, 8), axis=1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.05
    assert np.abs((bits[1:] != bits[:-1]).mean() - 0.5) < 0.01


def test_the_order_of_columns_matters_and_their_place_in_memory_does_not() -> None:
    rows = rows_of(np.float64, 6)
    assert row_hashes(rows[:, ::-1]).tolist() == row_hashes(np.ascontiguousarray(rows[:, ::-1])).tolist()
    assert row_hashes(np.asfortranarray(rows)).tolist() == row_hashes(rows).tolist()
    assert row_hashes(rows.reshape(200, 2, 3)).tolist() == row_hashes(rows).tolist()
    swapped = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert len(set(row_hashes(swapped).tolist())) == 2


@pytest.mark.parametrize("block", [1, 7, 4096])
def test_keys_are_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    rows = rows_of(np.float64, 3)
    monkeypatch.setattr(split, "BLOCK_ROWS", block)
    assert identities(Split(rows, None)).tolist() == row_hashes(rows).tolist()


def test_pictures_are_the_same_by_their_digest() -> None:
    digests = np.array(["a", "b", "a"])
    part = Split(np.arange(3.0)[:, None], None, digests=digests)
    assert identities(part).tolist() == ["a", "b", "a"]
    same = same_examples(part)
    assert same is not None
    assert by_loop(same.tolist()) == [0, 1, 0]


def wide(values: Sequence[int] | Array) -> Array:
    """Return a row of 64 numbers for each value, the same for the same."""
    rows: Array = np.random.default_rng(0).random((max(values) + 1, 64))[np.array(values)]
    return rows


@given(st.integers(0, 1000), st.integers(2, 40))
def test_equal_rows_and_groups_join_step_by_step(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    rows, groups = random.integers(0, count, count), random.integers(0, count, count)
    rows[0], rows[-1] = 0, 1
    same = same_examples(Split(wide(rows), None, groups=groups))
    number = list(range(count))
    for _ in range(count):  # the smallest number spreads until nothing changes
        for i in range(count):
            for j in range(count):
                if rows[i] == rows[j] or groups[i] == groups[j]:
                    number[i] = number[j] = min(number[i], number[j])
    if len(set(number)) == count:
        assert same is None
    else:
        assert same is not None
        assert by_loop(same.tolist()) == number


def test_groups_may_have_names_and_join_rows_that_join_groups() -> None:
    rows = wide([1, 2, 2, 3, 4])
    same = same_examples(Split(rows, None, groups=np.array(["x", "x", "y", "y", "z"])))
    assert same is not None
    assert by_loop(same.tolist()) == [0, 0, 0, 0, 4]


def test_where_all_differ_there_is_nothing_to_say() -> None:
    rows = np.arange(5.0)[:, None]
    assert same_examples(Split(rows, None)) is None
    assert same_examples(Split(rows, None, groups=np.arange(5))) is None
    images = ImageFiles(Path("nowhere"), np.array(["a.png", "b.png", "c.png"]))
    assert same_examples(Split(images, None)) is None  # their files are not read for this
    same = same_examples(Split(images, None, groups=np.array([7, 3, 7])))
    assert same is not None
    assert by_loop(same.tolist()) == [0, 1, 0]


def test_examples_that_are_alike_join_those_that_are_equal() -> None:
    rows = wide([1, 1, 2, 3, 4])
    same = same_examples(Split(rows, None, duplicates=np.array([7, 5, 5, 3, 2])))
    assert same is not None
    assert by_loop(same.tolist()) == [0, 0, 0, 3, 4]


def test_rows_that_repeat_by_nature_are_no_copies() -> None:
    """A few categories give equal rows; one of them among numbers, or many categories, do not."""
    random = np.random.default_rng(0)
    few = random.integers(0, 3, (300, 3)).astype(np.float32)
    assert repeats_by_nature(Split(few, None))
    assert same_examples(Split(few, None)) is None
    many = random.integers(0, 3, (300, 30)).astype(np.float32)
    many[7] = many[3]
    assert not repeats_by_nature(Split(many, None))
    same = same_examples(Split(many, None))
    assert same is not None
    assert by_loop(same.tolist()) == [3 if i == 7 else i for i in range(300)]
    mixed = np.hstack([few, random.normal(size=(300, 3)).astype(np.float32)])
    mixed[7] = mixed[3]
    assert not repeats_by_nature(Split(mixed, None))
    assert not repeats_by_nature(Split(few, None, digests=np.zeros(300, np.int64)))


@given(st.integers(0, 100), st.integers(1, 4))
def test_how_many_equal_rows_are_expected_is_what_independent_columns_have(seed: int, columns: int) -> None:
    """Against the mean over columns that are shuffled, where at least a few pairs are equal."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, 5, (200, columns))
    counts = []
    for _ in range(20):
        shuffled = random.permuted(rows, axis=0)
        sizes = np.unique(shuffled, axis=0, return_counts=True)[1]
        counts.append((sizes * (sizes - 1) / 2).sum())
    assert repeats_by_nature(Split(rows, None)) == (np.mean(counts) >= 0.01)


def test_equal_numbers_are_equal_whatever_the_file_has() -> None:
    rows = np.random.default_rng(0).random((5, 8)).astype(np.float32)
    rows[0, 0] = 0.0
    other = rows.astype(np.float64)
    other[0, 0] = -0.0
    assert identities(Split(rows, None)).tolist() == identities(Split(other, None)).tolist()
