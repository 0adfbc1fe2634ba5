"""Images of the web, with lists of their labels, in the official layouts: Clothing1M and WebVision-mini."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from unflip.data.arrays import Array
from unflip.data.dataset import Dataset, Split
from unflip.data.files import IMAGES, ImageFiles, as_names, find_files, read_text
from unflip.data.images import IMAGENET, byte_normalization
from unflip.data.loaders import FOR_IMAGE_FILES, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.options import Options

_CLOTHES = (
    "T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker",
    "Jacket", "Down Coat", "Suit", "Shawl", "Dress", "Vest", "Underwear",
)  # fmt: skip
_MEAN, _STD = (0.6959, 0.6537, 0.6371), (0.3113, 0.3192, 0.3214)  # DivideMix's code
_NUM_CLASSES = 50
_VAL_FOLDERS = ("val_images_256", "val_images")


class Clothing1MOptions(Options):
    """Which of the lists are used."""

    train: Literal["noisy", "clean"] = "noisy"
    """The training list."""
    val: Literal["clean", "noisy"] = "clean"
    """The clean validation list, or `data.val_fraction` of the (noisy) training examples."""


class Clothing1M(Loader):
    """Clothing1M (Xiao et al. 2015): key lists, label files, and images under ``images/``.

    The lists may also be in ``annotations/``, and the image folders ``0`` to ``9`` in the main folder itself.
    """

    Options = Clothing1MOptions
    uses = FOR_IMAGE_FILES

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether ``path`` is a folder with the list of the noisy training images."""
        return (_lists(path) / "noisy_train_key_list.txt").is_file()

    def load(self, path: Path, options: DataOptions, own: Clothing1MOptions) -> Dataset:
        """Read the lists: noisy labels (or the 50,000 clean ones) to train, clean ones to validate and test."""
        return Dataset(
            train=_read_clothing1m(path, own.train, "train"),
            val=_read_clothing1m(path, "clean", "val") if own.val == "clean" else None,
            tests={"test": _read_clothing1m(path, "clean", "test")},
            class_names=_CLOTHES,
            normalization=byte_normalization(_MEAN, _STD),
            clean_val=own.val == "clean",
        )


def _lists(path: Path) -> Path:
    return path / "annotations" if (path / "annotations").is_dir() else path


def _read_clothing1m(root: Path, kind: str, part: str) -> Split:
    keys_path, labels_path = _lists(root) / f"{kind}_{part}_key_list.txt", _lists(root) / f"{kind}_label_kv.txt"
    keys = _read_list(keys_path)
    known = dict(zip(*_read_labeled_list(labels_path), strict=True))
    missing = next((row for row, key in enumerate(keys) if key not in known), None)
    if missing is not None:
        raise InputError(f"{keys_path}, row {missing}: {keys[missing]} has no label in {labels_path.name}")
    outer = "" if (root / "images").is_dir() else "images/"  # the archives hold the folders 0 to 9 without it
    names = as_names([key.removeprefix(outer) for key in keys])
    files = ImageFiles(root, names, keys_path, np.arange(len(keys)))
    return Split(files, np.array([known[key] for key in keys], np.int64), ids=names)


class WebVision(Loader):
    """WebVision-mini: the first 50 classes, or as many as ``data.classes`` declares, of WebVision 1.0's Google images.

    See Li et al. (2017); there are two test sets.
    """

    uses = FOR_IMAGE_FILES

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether ``path`` is a folder with WebVision's list of Google images."""
        return (path / "info" / "train_filelist_google.txt").is_file()

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """Read the lists; ILSVRC12's validation images, if they are in ``imagenet/val``, are the second test set."""
        declared = options.classes if options.classes is not None else _NUM_CLASSES
        count = declared if isinstance(declared, int) else len(declared)
        synsets, names = _read_synsets(path / "info" / "synsets.txt", count)
        val = next((folder for folder in _VAL_FOLDERS if (path / folder).is_dir()), None)
        if val is None:
            raise InputError(f"{path}: no folder {' or '.join(_VAL_FOLDERS)} with WebVision's validation images")
        tests = {"webvision": _read_webvision(path, "val_filelist.txt", val, count)}
        if (imagenet := path / "imagenet" / "val").is_dir():
            tests["imagenet"] = _read_imagenet(imagenet, synsets)
        return Dataset(
            train=_read_webvision(path, "train_filelist_google.txt", "google", count),
            tests=tests,
            class_names=names,
            normalization=IMAGENET,
        )


def _read_webvision(root: Path, name: str, folder: str, count: int) -> Split:
    """Read the examples of the first ``count`` classes; the official lists already include ``google/``."""
    path = root / "info" / name
    listed, labels = _read_labeled_list(path)
    rows = (labels < count).nonzero()[0]
    names = [listed[row] if listed[row].startswith(f"{folder}/") else f"{folder}/{listed[row]}" for row in rows]
    files = ImageFiles(root, as_names(names), path, rows)
    return Split(files, labels[rows], ids=files.names)


def _read_synsets(path: Path, count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the synsets of the first classes, in order, and the first words of each."""
    lines = _read_list(path)[:count]
    if len(lines) < count:
        raise InputError(f"{path}: {len(lines)} lines for {count} classes; a line is a synset and its words")
    synsets, _, words = zip(*(line.partition(" ") for line in lines), strict=True)
    names = tuple(word.partition(",")[0].strip() for word in words)
    return synsets, names if len(set(names)) == count else synsets


def _read_imagenet(folder: Path, synsets: Sequence[str]) -> Split:
    """Read ILSVRC12's validation images from one folder per synset."""
    found = [[f"{synset}/{image}" for image in find_files(folder / synset, IMAGES)] for synset in synsets]
    files = ImageFiles(folder, as_names([*chain.from_iterable(found)]))
    return Split(files, np.repeat(np.arange(len(found)), [*map(len, found)]), ids=files.names)


def _read_list(path: Path) -> list[str]:
    """Return the lines of a text file, without empty ones."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def _read_labeled_list(path: Path) -> tuple[list[str], Array]:
    """Return the paths and class numbers in a list of lines ``path number``."""
    names, labels = [], []
    for row, line in enumerate(_read_list(path)):
        name, _, label = line.rpartition(" ")
        if not name or not label.isdecimal():
            raise InputError(f"{path}, row {row}: '{line}' is not a path, a space and a class number")
        names.append(name.strip())
        labels.append(int(label))
    return names, np.array(labels, np.int64)


clothing1m = Clothing1M()
webvision = WebVision()
