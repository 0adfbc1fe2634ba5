"""Image folders: a folder a class."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import open_dataset
from pictures import write_picture
from unflip.data.dataset import Dataset
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.errors import InputError


def write(root: Path, *names: str, size: tuple[int, int] = (20, 20)) -> Path:
    for name in names:
        write_picture(root / name, 0, size)
    return root


def opened(root: Path, **options: object) -> Dataset:
    return open_dataset(DataOptions.model_validate({"path": str(root), "val_fraction": 0.0} | options), seed=0)


def test_class_folders_are_the_training_examples_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path, "dog/b.png", "dog/a.JPG", "cat/deep/er/c.png", "dog/.hidden.png", "cat/.cache/d.png")
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "README.txt").write_text("no class")
    dataset = opened(tmp_path)
    assert dataset.name == tmp_path.name
    assert dataset.class_names == ("cat", "dog")
    assert dataset.ids == ("cat/deep/er/c.png", "dog/a.JPG", "dog/b.png")
    assert dataset.given.tolist() == [0, 1, 1]
    assert dataset.tests == {}
    assert dataset.source.fetch(torch.arange(3)).shape == (3, 3, 20, 20)


def test_train_val_and_test_stand_side_by_side(tmp_path: Path) -> None:
    write(tmp_path, "train/x/1.png", "train/y/2.png", "train/z/3.png", "val/y/4.png", "test/z/5.png", "test/x/6.png")
    dataset = opened(tmp_path)
    assert dataset.class_names == ("x", "y", "z")
    assert dataset.ids == ("train/x/1.png", "train/y/2.png", "train/z/3.png", "val/y/4.png")
    assert dataset.given.tolist() == [0, 1, 2, 1]
    assert dataset.is_val.tolist() == [False, False, False, True]
    assert dataset.tests["test"].class_numbers.tolist() == [0, 2]
    assert not dataset.clean_val


@pytest.mark.parametrize(
    ("names", "folders", "message"),
    [
        (["train/x/1.png"], ["train/y"], r"train/y: no images in it \(\.bmp, .*\); add some or remove the folder"),
        (["x/1.png"], ["y"], r"/y: no images in it"),
        (["1.png", "2.png"], [], "images but no class folders in it; give a file with --labels"),
        (["x/1.png", "y/1.png", "3.png"], [], r"3\.png: is next to the class folders"),
        (["x/1.png", "x/2.png"], [], "1 class among 2 labels; at least two are needed"),
        (["test/x/1.png"], [], "has a folder 'test' but no folder 'train'"),
        (["train/x/1.png", "train/y/1.png", "test/1.png"], [], "'test' has no labels"),
        (["train/x/1.png", "train/y/1.png"], ["val"], "val: no images in it"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, names: list[str], folders: list[str], message: str) -> None:
    write(tmp_path, *names)
    for folder in folders:
        (tmp_path / folder).mkdir()
    with pytest.raises(InputError, match=message) as error:
        opened(tmp_path)
    assert "\n" not in str(error.value)


def test_a_test_set_of_another_size_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "train/x/1.png", "train/y/1.png")
    write(tmp_path, "test/x/1.png", size=(30, 30))
    message = r"'test': examples of shape \(3, 30, 30\), but \(3, 20, 20\) in training; "
    with pytest.raises(InputError, match=message + r"to resize images: --set data\.image_size=20$"):
        opened(tmp_path)


def test_labels_from_a_file_and_skipped_images_stay_in_step(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "1.png", "3.png", "4.png", "5.png")
    (root / "2.png").write_text("no image")
    labels = tmp_path / "labels.csv"
    labels.write_text("label\na\nb\nb\nc\na\n")
    dataset = opened(root, labels=str(labels), skip_broken=True, max_broken=0.5, limit=4)
    assert dataset.ids == ("1.png", "3.png", "4.png")
    assert dataset.given.tolist() == [0, 1, 2]
    assert [image.id for image in dataset.skipped] == ["2.png"]


def test_at_most_so_many_of_each_class_are_used(tmp_path: Path) -> None:
    write(tmp_path, *(f"x/{i}.png" for i in range(5)), *(f"y/{i}.png" for i in range(2)))
    assert opened(tmp_path, per_class=3).ids == ("x/0.png", "x/1.png", "x/2.png", "y/0.png", "y/1.png")


def test_a_folder_of_arrays_is_not_taken_for_images(tmp_path: Path) -> None:
    write(tmp_path, "figures/1.png")
    (tmp_path / "train.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"train\.npy"):
        load_raw(DataOptions(path=str(tmp_path)))


def test_parts_may_be_called_as_people_call_them_and_are_not_mixed_with_classes(tmp_path: Path) -> None:
    write(tmp_path / "a", "Train/x/1.png", "Train/y/2.png", "valid/x/3.png", "Test/y/4.png")
    raw = load_raw(DataOptions(path=str(tmp_path / "a")))
    assert raw.val is not None
    assert list(raw.tests) == ["test"]
    assert raw.class_names == ("x", "y")
    write(tmp_path / "b", "train/1.png", "cat/2.png")
    with pytest.raises(InputError, match="'cat' next to 'train'; move classes into the splits"):
        load_raw(DataOptions(path=str(tmp_path / "b")))


@pytest.mark.parametrize("path", ["", "x", "x/inner"])
def test_a_folder_that_cannot_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "x" / "inner").mkdir(parents=True)
    for name in ("x/1.png", "y/1.png"):
        write_picture(tmp_path / name, 1, (9, 9))

    def refuse(read: Any, folder: Any) -> Any:  # as the system does, but not to the superuser
        if Path(folder) == tmp_path / path:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return read(folder)

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, partial(refuse, getattr(os, name)))
    with pytest.raises(InputError, match=f"^{tmp_path / path}: Permission denied$"):
        load_raw(DataOptions(path=str(tmp_path)))
