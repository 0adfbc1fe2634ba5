"""WebVision-mini in its official layout, made small."""

from pathlib import Path
from typing import Any

import pytest

from helpers import open_dataset
from pictures import write_webvision
from unflip.data.dataset import Dataset
from unflip.data.options import DataOptions
from unflip.errors import InputError


def opened(root: Path, **options: Any) -> Dataset:
    return open_dataset(DataOptions(path=str(root), val_fraction=0.0, **options))


def test_fifty_classes_train_and_there_are_two_test_sets(tmp_path: Path) -> None:
    dataset = opened(write_webvision(tmp_path / "w"))
    assert dataset.name == "webvision"
    assert dataset.num_classes == 50
    assert dataset.class_names is not None
    assert dataset.class_names[:2] == ("thing 0", "thing 1")
    assert dataset.given.tolist() == [label for label in range(6) for _ in range(4)]
    assert dataset.ids is not None
    assert dataset.ids[5] == "google/q0001/1-1.jpg"
    assert list(dataset.tests) == ["webvision", "imagenet"]
    assert dataset.tests["webvision"].class_numbers.tolist() == list(range(6))
    assert dataset.tests["imagenet"].class_numbers.tolist() == [label for label in range(6) for _ in range(2)]
    assert dataset.source.shape == (3, 224, 224)


def test_imagenet_may_be_left_out(tmp_path: Path) -> None:
    root = write_webvision(tmp_path / "w")
    (root / "imagenet" / "val").rename(tmp_path / "ilsvrc")
    assert list(opened(root).tests) == ["webvision"]


def test_another_number_of_classes_can_be_taken(tmp_path: Path) -> None:
    dataset = opened(write_webvision(tmp_path / "w"), classes=3)
    assert dataset.num_classes == 3
    assert dataset.given.unique().tolist() == [0, 1, 2]


def test_lists_without_the_outer_folder_are_understood(tmp_path: Path) -> None:
    root = write_webvision(tmp_path / "w")
    listed = root / "info" / "train_filelist_google.txt"
    listed.write_text(listed.read_text().replace("google/", ""))
    assert opened(root).ids == opened(write_webvision(tmp_path / "v")).ids


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    root = write_webvision(tmp_path / "w")
    listed = root / "info" / "train_filelist_google.txt"
    text = listed.read_text()
    listed.write_text(text + "google/q0001/new.jpg\n")
    with pytest.raises(
        InputError,
        match=r"train_filelist_google\.txt, row 28: 'google/q0001/new\.jpg' is not a path, a space and a class number",
    ):
        opened(root)
    listed.write_text(text + "google/q0001/new.jpg 3\n")
    with pytest.raises(InputError, match=r"train_filelist_google\.txt, row 28: .*new\.jpg: No such file"):
        opened(root)
    listed.write_text(text)
    (root / "imagenet" / "val" / "n01440766").rename(root / "elsewhere")
    with pytest.raises(InputError, match="n01440766: No such file or directory"):
        opened(root)
    (root / "val_images_256").rename(root / "other")
    with pytest.raises(InputError, match="no folder val_images_256 or val_images"):
        opened(root)
