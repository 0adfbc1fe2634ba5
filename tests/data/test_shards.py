"""Shards: several files behave as one array."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unflip.data.arrays import Shards
from unflip.data.loaders.arrays import open_shards, shard_name
from unflip.errors import InputError


def write(folder: Path, *lengths: int) -> np.ndarray:
    whole = np.random.default_rng(0).standard_normal((sum(lengths), 3)).astype(np.float16)
    for number, rows in enumerate(np.split(whole, np.cumsum(lengths)[:-1])):
        np.save(folder / shard_name("train", number), rows)
    return whole


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.data())
def test_rows_are_those_of_the_whole_array(lengths: list[int], data: st.DataObject) -> None:
    whole = np.arange(2 * sum(lengths)).reshape(-1, 2)
    shards = Shards(np.split(whole, np.cumsum(lengths)[:-1]))
    count = len(whole)
    assert (shards.shape, shards.dtype, shards.ndim, len(shards)) == (whole.shape, whole.dtype, 2, count)
    np.testing.assert_array_equal(np.asarray(shards), whole)
    start, stop = data.draw(st.integers(-3, count + 3)), data.draw(st.integers(-3, count + 3))
    np.testing.assert_array_equal(np.asarray(shards[start:stop]), whole[start:stop])
    np.testing.assert_array_equal(np.asarray(shards[start:stop][1:]), whole[start:stop][1:])
    if count:
        rows = np.array(data.draw(st.lists(st.integers(0, count - 1))), np.int64)
        np.testing.assert_array_equal(shards[rows], whole[rows])
        np.testing.assert_array_equal(shards[whole[:, 0] % 4 == 0], whole[whole[:, 0] % 4 == 0])
        np.testing.assert_array_equal(shards[count - 1], whole[count - 1])


def test_files_are_mapped_in_order(tmp_path: Path) -> None:
    whole = write(tmp_path, 4, 1, 3)
    shards = open_shards(tmp_path, "train")
    assert shards is not None
    assert all(isinstance(array, np.memmap) for array in shards._arrays)
    np.testing.assert_array_equal(np.asarray(shards), whole)
    assert open_shards(tmp_path, "test") is None


def test_a_missing_or_a_different_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, 4, 1, 3)
    np.save(tmp_path / "train-00002.npy", np.zeros((2, 5), np.float16))
    with pytest.raises(InputError, match=r"train-00002\.npy: shape \(2, 5\), type float16, unlike .*\(4, 3\)"):
        open_shards(tmp_path, "train")
    (tmp_path / "train-00001.npy").unlink()
    with pytest.raises(InputError, match=r"train-00001\.npy is missing"):
        open_shards(tmp_path, "train")
