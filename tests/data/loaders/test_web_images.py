"""Tables of Clothing1M and WebVision-mini, written from their official layouts, made small."""

from pathlib import Path
from typing import Any

import pytest

import web_images
from helpers import open_dataset
from pictures import write_clothing, write_webvision
from unflip.data.dataset import Dataset
from unflip.data.options import DataOptions


def opened(path: Path, **options: Any) -> Dataset:
    return open_dataset(DataOptions(path=str(path), **options))


@pytest.mark.parametrize(("lists", "images"), [(".", "images/"), ("annotations", "images/"), (".", "")])
def test_noisy_labels_train_and_clean_ones_validate_and_test(tmp_path: Path, lists: str, images: str) -> None:
    root = write_clothing(tmp_path / "c", lists=lists, images=images)
    dataset = opened(web_images.clothing1m(root, clean_val=True))
    assert dataset.name == "clothing1m-clean-val.parquet"
    assert dataset.num_classes == 14
    assert dataset.class_names == web_images.CLOTHES
    assert dataset.given.tolist() == [i % 14 for i in range(28)] + list(range(7))
    assert dataset.is_val.tolist() == [False] * 28 + [True] * 7
    assert dataset.clean_val
    assert dataset.tests["test"].class_numbers.tolist() == list(range(7))
    assert dataset.ids is not None
    assert dataset.ids[3] == f"{images}3/03/3,noisy_train.jpg"
    assert dataset.clean is None


def test_noisy_labels_may_validate(tmp_path: Path) -> None:
    dataset = opened(web_images.clothing1m(write_clothing(tmp_path / "c")), val_fraction=0.5)
    assert not dataset.clean_val
    assert (len(dataset.given), int(dataset.is_val.sum())) == (28, 14)


def test_a_key_without_a_label_and_a_line_without_a_number_are_named(tmp_path: Path) -> None:
    root = write_clothing(tmp_path / "c")
    keys = root / "noisy_train_key_list.txt"
    keys.write_text(keys.read_text() + "images/0/00/new.jpg\n")
    with pytest.raises(SystemExit, match=r"images/0/00/new\.jpg has no label in noisy_label_kv\.txt"):
        web_images.clothing1m(root)
    (root / "noisy_label_kv.txt").write_text("images/0/00/a.jpg shirt\n")
    with pytest.raises(
        SystemExit, match=r"row 0: 'images/0/00/a\.jpg shirt' is not a path, a space and a class number"
    ):
        web_images.clothing1m(root)


def test_fifty_classes_train_and_there_are_two_test_sets(tmp_path: Path) -> None:
    dataset = opened(web_images.webvision(write_webvision(tmp_path / "w")), val_fraction=0.0)
    assert dataset.num_classes == 50
    assert dataset.class_names is not None
    assert dataset.class_names[:2] == ("thing 0", "thing 1")
    assert dataset.given.tolist() == [label for label in range(6) for _ in range(4)]
    assert dataset.ids is not None
    assert dataset.ids[5] == "google/q0001/1-1.jpg"
    assert list(dataset.tests) == ["test", "test-imagenet"]
    assert dataset.tests["test"].class_numbers.tolist() == list(range(6))
    assert dataset.tests["test-imagenet"].class_numbers.tolist() == [label for label in range(6) for _ in range(2)]


def test_other_classes_no_imagenet_and_lists_without_the_outer_folder(tmp_path: Path) -> None:
    root = write_webvision(tmp_path / "w")
    (root / "imagenet" / "val").rename(tmp_path / "ilsvrc")
    listed = root / "info" / "train_filelist_google.txt"
    listed.write_text(listed.read_text().replace("google/", ""))
    dataset = opened(web_images.webvision(root, classes=3), val_fraction=0.0)
    assert (dataset.num_classes, list(dataset.tests)) == (3, ["test"])
    assert dataset.ids is not None
    assert dataset.ids[5] == "google/q0001/1-1.jpg"
