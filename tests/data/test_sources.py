"""Sources: the same batches from memory, from a map and from several parts; standardization."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import unflip.data.sources
from unflip.data.sources import (
    ArraySource,
    JoinedSource,
    Standardization,
    check_finite,
)
from unflip.errors import InputError

Array = np.ndarray[Any, Any]
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 4))
TABLES = arrays(np.float32, SHAPES, elements=st.floats(-1e3, 1e3, width=32))


def as_map(folder: Path, array: Array) -> Array:
    np.save(folder / "map.npy", array)
    mapped: Array = np.load(folder / "map.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    return mapped


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("shape", [(9, 3), (9, 2, 2)])
def test_a_map_gives_the_batches_of_the_array(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    array: np.ndarray[Any, Any] = (np.random.default_rng(0).normal(size=shape) * 20).astype(dtype)
    standardize = Standardization.fit(array, one_scale=False)
    memory, mapped = ArraySource(array, standardize), ArraySource(as_map(tmp_path, array), standardize)
    assert memory.shape == mapped.shape == shape[1:]
    assert len(memory) == len(mapped) == 9
    for indices in (torch.arange(9), torch.tensor([4, 0, 4, 8]), torch.tensor([], dtype=torch.long)):
        assert torch.equal(memory.fetch(indices), mapped.fetch(indices))
        assert memory.fetch(indices).dtype == torch.float32
        assert memory.fetch(indices).shape == (len(indices), *shape[1:])


def test_a_map_is_read_by_batch_and_not_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = as_map(tmp_path, np.zeros((1000, 3), np.float32))
    rows_read: list[int] = []
    take = np.memmap.__getitem__

    def counting(self: Array, key: Any) -> Any:
        found = take(self, key)
        rows_read.append(len(found))
        return found

    monkeypatch.setattr(np.memmap, "__getitem__", counting)
    ArraySource(array).fetch(torch.arange(7))
    assert sum(rows_read) == 7


def test_without_standardization_the_rows_are_as_they_came() -> None:
    array = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(ArraySource(array).fetch(torch.tensor([3, 1])).numpy(), array[[3, 1]])


def test_views_of_features_are_the_rows_unless_there_is_jitter() -> None:
    array = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    rows = torch.randperm(500)
    plain, jittered = ArraySource(array), ArraySource(array, jitter=0.5)
    assert not plain.augments
    assert torch.equal(plain.view(rows, torch.Generator()), plain.fetch(rows))
    one, same, other = (jittered.view(rows, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert float((one - jittered.fetch(rows)).std()) == pytest.approx(0.5, rel=0.1)
    assert torch.equal(jittered.fetch(rows), plain.fetch(rows))  # the rows themselves stay


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_joined_sources_are_one_after_the_other(lengths: list[int], data: st.DataObject) -> None:
    total = sum(lengths)
    whole = np.arange(total * 2, dtype=np.float32).reshape(total, 2)
    parts = np.split(whole, np.cumsum(lengths)[:-1])
    source = JoinedSource([ArraySource(part) for part in parts]).to(torch.device("cpu"))
    assert len(source) == total
    assert source.shape == (2,)
    indices = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=10))
    np.testing.assert_array_equal(source.fetch(torch.tensor(indices)).numpy(), whole[indices])


@given(TABLES, st.integers(1, 5))
def test_standardization_is_that_of_numpy_however_it_is_cut(array: Array, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unflip.data.sources, "BLOCK_VALUES", chunk)
        fitted = Standardization.fit(array, one_scale=False)
    exact = array.astype(np.float64)
    std = exact.std(axis=0)
    std[np.ptp(exact, axis=0) == 0] = 1.0
    np.testing.assert_allclose(fitted.mean, exact.mean(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fitted.std, std, rtol=1e-4)
    assert ArraySource(array, fitted).fetch(torch.arange(len(array))).isfinite().all()


def test_standardized_columns_have_mean_zero_and_deviation_one() -> None:
    array = np.random.default_rng(0).normal(loc=[1e4, -3.0], scale=[5.0, 1e-3], size=(500, 2))
    standardized = ArraySource(array, Standardization.fit(array, one_scale=False)).fetch(torch.arange(500)).double()
    assert standardized.mean(0).abs().max() < 1e-3
    torch.testing.assert_close(standardized.std(0, correction=0), torch.ones(2).double(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e20, 1e-30, 1e-60])
def test_a_constant_column_becomes_zero_and_keeps_its_scale(value: float) -> None:
    array = np.full((7, 2), value)
    array[:, 1] = np.arange(7)
    fitted = Standardization.fit(array, one_scale=False)
    assert float(fitted.std[0]) == 1.0
    assert ArraySource(array, fitted).fetch(torch.arange(7))[:, 0].abs().max() <= abs(value) * 1e-6


@pytest.mark.parametrize("one_scale", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(("center", "spread"), [(1e9, 1.0), (-1e12, 10.0), (0.0, 1e-30), (0.0, 1e38)])
def test_columns_far_from_zero_or_tiny_keep_their_differences(
    tmp_path: Path, center: float, spread: float, mapped: bool, one_scale: bool
) -> None:
    plain = np.random.default_rng(0).uniform(-1, 1, size=(200, 2))
    array = center + spread * plain
    fitted = Standardization.fit(array, one_scale=one_scale)
    source = ArraySource(as_map(tmp_path, array) if mapped else array, fitted)
    inputs = source.fetch(torch.arange(200))
    assert inputs.dtype == torch.float32
    scale = np.sqrt(plain.var(axis=0).mean()) if one_scale else plain.std(axis=0)
    np.testing.assert_allclose(inputs, (plain - plain.mean(axis=0)) / scale, rtol=0, atol=1e-4)


def test_ordinary_columns_are_standardized_in_single_precision() -> None:
    array = np.random.default_rng(0).normal(loc=[0.0, 2000.0, 7.0], scale=[1e-6, 3.0, 0.0], size=(50, 3))
    fitted = Standardization.fit(array, one_scale=False)
    mean, std = array.mean(axis=0).astype(np.float32), np.sqrt(np.square(array - array.mean(axis=0)).mean(axis=0))
    std[2] = 1.0
    expected = (array.astype(np.float32) - mean) / std.astype(np.float32)
    assert torch.equal(ArraySource(array, fitted).fetch(torch.arange(50)), torch.from_numpy(expected))


def test_one_scale_for_all_keeps_the_columns_in_proportion() -> None:
    array = np.random.default_rng(0).normal(loc=[5.0, -3.0], scale=[10.0, 0.1], size=(500, 2))
    fitted = Standardization.fit(array, one_scale=True)
    exact = array - array.mean(axis=0)
    np.testing.assert_allclose(fitted.mean, array.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(fitted.std, np.full(2, np.sqrt((exact**2).mean())), rtol=1e-5)


def test_one_scale_of_constant_columns_is_one() -> None:
    assert Standardization.fit(np.full((5, 2), 3.0), one_scale=True).std.tolist() == [1.0, 1.0]


def test_standardization_is_by_column_of_any_shape() -> None:
    array = np.random.default_rng(0).normal(size=(20, 2, 3))
    fitted = Standardization.fit(array, one_scale=False)
    assert fitted.mean.shape == fitted.std.shape == (2, 3)
    np.testing.assert_allclose(fitted.mean, array.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("row", [0, 3, 6])
def test_what_is_not_finite_is_named_by_row_and_value(monkeypatch: pytest.MonkeyPatch, value: float, row: int) -> None:
    monkeypatch.setattr(unflip.data.sources, "BLOCK_VALUES", 2)
    array = np.zeros((7, 3))
    array[row, 1] = value
    array[6, 2] = np.nan if row < 6 else value
    with pytest.raises(InputError, match=rf"^x, row {row}: {str(value).replace('+', '.')} among the features"):
        check_finite(array, "x")


def test_what_is_too_large_is_not_called_infinite() -> None:
    with pytest.raises(InputError, match=r"^x, row 0: 1e\+300 among the features is too large for float32"):
        check_finite(np.array([[1e300, 1.0]]), "x")


def test_finite_features_of_any_kind_pass() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.int64, np.uint8):
        check_finite(np.ones((3, 2, 2), dtype), "x")


def test_standardization_is_a_division_by_column() -> None:
    standardize = Standardization(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    assert standardize(torch.tensor([[3.0, 2.0]])).tolist() == [[1.0, 0.0]]
