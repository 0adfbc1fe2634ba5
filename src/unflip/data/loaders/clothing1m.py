"""Clothing1M (Xiao et al. 2015) in its official layout: key lists, label files, and images under ``images/``."""

from pathlib import Path
from typing import Literal

import numpy as np

from unflip.data.dataset import Dataset, Split
from unflip.data.files import ImageFiles, as_names, read_labeled_list, read_list
from unflip.data.images import byte_normalization
from unflip.data.loaders import FOR_IMAGE_FILES, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.options import Options

_CLASSES = (
    "T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker",
    "Jacket", "Down Coat", "Suit", "Shawl", "Dress", "Vest", "Underwear",
)  # fmt: skip
_MEAN, _STD = (0.6959, 0.6537, 0.6371), (0.3113, 0.3192, 0.3214)  # DivideMix's code


class Clothing1MOptions(Options):
    """Which of the lists are used."""

    train: Literal["noisy", "clean"] = "noisy"
    """The training list."""
    val: Literal["clean", "noisy"] = "clean"
    """The clean validation list, or `data.val_fraction` of the (noisy) training examples."""


class Clothing1M(Loader):
    """The lists may also be in ``annotations/``, and the image folders ``0`` to ``9`` in the main folder itself."""

    Options = Clothing1MOptions
    uses = FOR_IMAGE_FILES

    def recognizes(self, path: Path) -> bool:
        """Whether ``path`` is a folder with the list of the noisy training images."""
        return (_lists(path) / "noisy_train_key_list.txt").is_file()

    def load(self, path: Path, options: DataOptions, own: Clothing1MOptions) -> Dataset:
        """Read the lists: noisy labels (or the 50,000 clean ones) to train, clean ones to validate and test."""
        return Dataset(
            train=_read(path, own.train, "train"),
            val=_read(path, "clean", "val") if own.val == "clean" else None,
            tests={"test": _read(path, "clean", "test")},
            class_names=_CLASSES,
            normalization=byte_normalization(_MEAN, _STD),
            clean_val=own.val == "clean",
        )


def _lists(path: Path) -> Path:
    return path / "annotations" if (path / "annotations").is_dir() else path


def _read(root: Path, kind: str, part: str) -> Split:
    keys_path, labels_path = _lists(root) / f"{kind}_{part}_key_list.txt", _lists(root) / f"{kind}_label_kv.txt"
    keys = read_list(keys_path)
    known = dict(zip(*read_labeled_list(labels_path), strict=True))
    missing = next((row for row, key in enumerate(keys) if key not in known), None)
    if missing is not None:
        raise InputError(f"{keys_path}, row {missing}: {keys[missing]} has no label in {labels_path.name}")
    outer = "" if (root / "images").is_dir() else "images/"  # the archives hold the folders 0 to 9 without it
    names = as_names([key.removeprefix(outer) for key in keys])
    files = ImageFiles(root, names, keys_path, np.arange(len(keys)))
    return Split(files, np.array([known[key] for key in keys], np.int64), ids=names)


clothing1m = Clothing1M()
