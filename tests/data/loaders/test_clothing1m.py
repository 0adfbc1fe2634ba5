"""Clothing1M in its official layout, made small."""

from pathlib import Path
from typing import Any

import pytest

from helpers import open_dataset
from pictures import write_clothing
from unflip.data.dataset import Dataset
from unflip.data.loaders.web_images import Clothing1MOptions
from unflip.data.options import DataOptions
from unflip.errors import InputError


def opened(root: Path, own: Clothing1MOptions | None = None, **options: Any) -> Dataset:
    return open_dataset(DataOptions(path=str(root), **options), clothing1m=own or Clothing1MOptions())


@pytest.mark.parametrize(("lists", "images"), [(".", "images/"), ("annotations", "images/"), (".", "")])
def test_noisy_labels_train_and_clean_ones_validate_and_test(tmp_path: Path, lists: str, images: str) -> None:
    dataset = opened(write_clothing(tmp_path / "c", lists=lists, images=images))
    assert dataset.name == "clothing1m"
    assert dataset.num_classes == 14
    assert dataset.class_names is not None
    assert [dataset.class_names[i] for i in (0, 8, 13)] == ["T-Shirt", "Down Coat", "Underwear"]
    assert dataset.given.tolist() == [i % 14 for i in range(28)] + list(range(7))
    assert dataset.is_val.tolist() == [False] * 28 + [True] * 7
    assert dataset.clean_val
    assert dataset.tests["test"].class_numbers.tolist() == list(range(7))
    assert dataset.ids is not None
    assert dataset.ids[3] == f"{images}3/03/3,noisy_train.jpg"
    assert dataset.clean is None


def test_which_lists_train_and_validate_can_be_chosen(tmp_path: Path) -> None:
    root = write_clothing(tmp_path / "c")
    assert len(opened(root, Clothing1MOptions(train="clean", val="noisy"), val_fraction=0.0).given) == 14
    dataset = opened(root, Clothing1MOptions(val="noisy"), val_fraction=0.5)
    assert not dataset.clean_val
    assert (len(dataset.given), int(dataset.is_val.sum())) == (28, 14)


def test_a_key_without_a_label_or_an_image_is_named(tmp_path: Path) -> None:
    root = write_clothing(tmp_path / "c")
    keys = root / "noisy_train_key_list.txt"
    text = keys.read_text()
    keys.write_text(text + "images/0/00/new.jpg\n")
    message = r"noisy_train_key_list\.txt, row 28: images/0/00/new\.jpg has no label in noisy_label_kv\.txt"
    with pytest.raises(InputError, match=message):
        opened(root)
    keys.write_text(text)
    (root / "images/4/04/4,clean_test.jpg").unlink()
    with pytest.raises(InputError, match=r"clean_test_key_list\.txt, row 4: .*4,clean_test\.jpg: No such file"):
        opened(root)
    (root / "clean_label_kv.txt").unlink()
    with pytest.raises(InputError, match=r"clean_label_kv\.txt: No such file"):
        opened(root)


def test_a_label_file_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    root = write_clothing(tmp_path / "c")
    (root / "noisy_label_kv.txt").write_text("images/0/00/a.jpg shirt\n")
    with pytest.raises(
        InputError,
        match=r"noisy_label_kv\.txt, row 0: 'images/0/00/a\.jpg shirt' is not a path, a space and a class number",
    ):
        opened(root)
