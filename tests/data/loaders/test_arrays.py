"""Feature arrays: one .npz, one .npy, or a folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import blobs, write_npz
from unflip.data.dataset import Dataset
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.errors import InputError


def load_from(path: Path, **options: Any) -> Dataset:
    return load_raw(DataOptions(path=str(path), **options))


def write_folder(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir()
    for name, array in content.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def test_an_npz_and_a_folder_hold_the_same(tmp_path: Path) -> None:
    content = blobs() | {"class_names": np.array(["a", "b", "c"])}
    one, other = load_from(write_npz(tmp_path / "a.npz", **content)), load_from(write_folder(tmp_path / "a", content))
    for found in (one, other):
        np.testing.assert_array_equal(found.train.inputs, content["train"])
        np.testing.assert_array_equal(found.train.labels, content["train_labels"])
        np.testing.assert_array_equal(found.tests["test"].inputs, content["test"])
        np.testing.assert_array_equal(found.tests["test"].class_numbers, content["test_labels"])
        assert found.val is None
        assert found.class_names == ("a", "b", "c")


def test_a_lone_npy_is_train_without_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(3))
    found = load_from(tmp_path / "a.npy")
    np.testing.assert_array_equal(found.train.inputs, np.eye(3))
    assert found.train.labels is None
    assert found.tests == {}


@pytest.mark.parametrize(("mmap_threshold_mb", "mapped"), [(0.0, True), (1024.0, False)])
def test_large_files_are_mapped(tmp_path: Path, mmap_threshold_mb: float, mapped: bool) -> None:
    folder = write_folder(tmp_path / "a", blobs())
    found = load_from(folder, mmap_threshold_mb=mmap_threshold_mb)
    for array in (found.train.inputs, found.tests["test"].inputs):
        assert isinstance(array, np.memmap) is mapped


def test_every_test_and_val_set_is_found_with_its_ids(tmp_path: Path) -> None:
    x, y = np.eye(3), np.arange(3)
    content = {"train": x, "train_labels": y, "train_ids": np.array(["p", "q", "r"])}
    for name in ("val", "test", "test_hard"):
        content |= {name: x, f"{name}_labels": y}
    found = load_from(write_npz(tmp_path / "a.npz", **content, other=np.zeros(2), val_ids=y, test_ids=y))
    assert list(found.tests) == ["test", "test_hard"]
    assert found.val is not None
    assert found.train.ids is not None
    assert found.train.ids.tolist() == ["p", "q", "r"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (np.zeros(3), r"'train': shape \(3,\); features must be \(examples, columns\)"),
        (np.zeros((3, 0)), r"'train': shape \(3, 0\)"),
        (np.array([["a"]]), "'train': type <U1; features must be numbers"),
        (np.zeros((2, 2), np.complex64), "'train': type complex64"),
    ],
)
def test_features_of_a_wrong_kind_are_refused(tmp_path: Path, train: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_from(write_npz(tmp_path / "a.npz", train=train))


def test_without_train_it_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no array 'train' among test, x$"):
        load_from(write_npz(tmp_path / "a.npz", x=np.eye(2), test=np.eye(2))).check_trainable("a.npz")
    with pytest.raises(InputError, match=r"no array 'train' among x$"):
        load_from(write_npz(tmp_path / "a.npz", x=np.eye(2)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no array 'train' among no arrays; a folder holds train\.npy, or one folder"):
        load_from(tmp_path / "empty")
