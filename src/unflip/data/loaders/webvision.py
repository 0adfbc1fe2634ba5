"""WebVision-mini: the first 50 classes of WebVision 1.0's Google images (Li et al. 2017), with two test sets."""

from pathlib import Path

import numpy as np

from unflip.data.dataset import Dataset, Split
from unflip.data.files import IMAGES, ImageFiles, as_names, find_files, read_labeled_list, read_list
from unflip.data.images import IMAGENET
from unflip.data.loaders import FOR_IMAGE_FILES, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.options import Options

_CLASSES = 50
_VAL_FOLDERS = ("val_images_256", "val_images")
_IMAGENET_FOLDERS = ("imagenet/val", "imagenet")


class WebVisionOptions(Options):
    """Options of the second test set."""

    imagenet: str | None = None
    """ILSVRC12's validation images, one folder per synset; by default `imagenet/val` in WebVision's folder."""


class WebVision(Loader):
    """The first 50 classes, or as many as ``data.classes`` declares."""

    Options = WebVisionOptions
    uses = FOR_IMAGE_FILES

    def recognizes(self, path: Path) -> bool:
        """Whether ``path`` is a folder with WebVision's list of Google images."""
        return (path / "info" / "train_filelist_google.txt").is_file()

    def load(self, path: Path, options: DataOptions, own: WebVisionOptions) -> Dataset:
        """Read the lists; ILSVRC12's validation images, if found, are the second test set."""
        declared = options.classes if options.classes is not None else _CLASSES
        count = declared if isinstance(declared, int) else len(declared)
        synsets, names = _read_synsets(path / "info" / "synsets.txt", count)
        val = next((folder for folder in _VAL_FOLDERS if (path / folder).is_dir()), None)
        if val is None:
            raise InputError(f"{path}: no folder {' or '.join(_VAL_FOLDERS)} with WebVision's validation images")
        tests = {"webvision": _read(path, "val_filelist.txt", val, count)}
        folders = [path / name for name in _IMAGENET_FOLDERS] if own.imagenet is None else [Path(own.imagenet)]
        if (imagenet := next((folder for folder in folders if folder.is_dir()), None)) is not None:
            tests["imagenet"] = _read_imagenet(imagenet, synsets, count)
        elif own.imagenet is not None:
            raise InputError(f"webvision.imagenet: no such folder: {own.imagenet}")
        return Dataset(
            train=_read(path, "train_filelist_google.txt", "google", count),
            tests=tests,
            class_names=names,
            normalization=IMAGENET,
        )


def _read(root: Path, name: str, folder: str, count: int) -> Split:
    """Read the examples of the first ``count`` classes; the official lists already include ``google/``."""
    path = root / "info" / name
    listed, labels = read_labeled_list(path)
    rows = (labels < count).nonzero()[0]
    names = [listed[row] if listed[row].startswith(f"{folder}/") else f"{folder}/{listed[row]}" for row in rows]
    files = ImageFiles(root, as_names(names), path, rows)
    return Split(files, labels[rows], ids=files.names)


def _read_synsets(path: Path, count: int) -> tuple[list[str], tuple[str, ...] | None]:
    """Return the synsets of the first classes, in order, and the first words of each."""
    if not path.is_file():
        return [], None
    lines = read_list(path)[:count]
    if len(lines) < count:
        raise InputError(f"{path}: {len(lines)} lines for {count} classes; a line is a synset and its words")
    synsets, _, words = zip(*(line.partition(" ") for line in lines), strict=True)
    names = tuple(word.partition(",")[0].strip() for word in words)
    return list(synsets), names if len(set(names)) == count else synsets


def _read_imagenet(folder: Path, synsets: list[str], count: int) -> Split:
    """Read ILSVRC12's validation images from one folder per synset, or per class number."""
    names, labels = [], []
    for number in range(count):
        choices = [*synsets[number : number + 1], str(number)]
        own = next((choice for choice in choices if (folder / choice).is_dir()), None)
        if own is None:
            raise InputError(f"{folder}: no folder {' or '.join(choices)} for class {number}; one per synset is needed")
        images = find_files(folder / own, IMAGES)
        names += [f"{own}/{image}" for image in images]
        labels += [number] * len(images)
    files = ImageFiles(folder, as_names(names))
    return Split(files, np.array(labels, np.int64), ids=files.names)


webvision = WebVision()
