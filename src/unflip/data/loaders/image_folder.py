"""Image folders: one folder per class, either in ``train``, ``val`` and ``test``, or all for training."""

import warnings
from pathlib import Path

import numpy as np

from unflip.data.images.files import SUFFIXES, ImageFiles, as_names, find_images, is_image
from unflip.data.images.sources import IMAGENET
from unflip.data.loader import FOR_IMAGE_FILES, Loader
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.errors import InputError, UnflipWarning
from unflip.options import Options

_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_NO_CLASSES = (
    ".git", ".hg", ".svn", ".dvc", ".DS_Store", ".ipynb_checkpoints", ".cache", ".Trash", ".Spotlight", ".fseventsd",
    ".thumbnails", ".idea", ".vscode", ".venv", ".unflip",
)  # fmt: skip
"""What the names of hidden folders begin with that tools make."""


class ImageFolder(Loader):
    """Images that are not in class folders have no labels: for prediction, or for use with ``--labels``."""

    general = True
    uses = FOR_IMAGE_FILES

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is a folder with folders or images in it, and no arrays."""
        if not path.is_dir():
            return False
        entries = list(path.iterdir())
        return any(_is_class(entry) or is_image(entry.name) for entry in entries) and not any(
            entry.suffix == ".npy" for entry in entries
        )

    def load(self, path: Path, options: DataOptions, own: Options) -> RawData:
        """List the images, in the order of their names."""
        parts = _find_parts(path)
        sets = {part: _list(path, folder) for part, folder in parts.items()} or {"train": _list(path, "")}
        train = sets.pop("train")
        return RawData(
            train=train,
            val=sets.pop("val", None),
            tests=sets,
            class_names=None if train.labels is None else tuple(dict.fromkeys(train.labels.tolist())),
            normalisation=IMAGENET,
            unlabelled="images but no class folders in it",
        )


def _find_parts(path: Path) -> dict[str, str]:
    """Return the folder of each part; none where all folders are classes."""
    folders = [entry.name for entry in sorted(path.iterdir()) if _is_class(entry)]
    parts = {_PARTS[name.lower()]: name for name in folders if name.lower() in _PARTS}
    others = [name for name in folders if name not in parts.values()]
    if not parts:
        return {}
    if "train" not in parts:
        raise InputError(f"{path}: has a folder '{next(iter(parts.values()))}' but no folder 'train'; add it")
    if others:
        raise InputError(
            f"{path}: '{parts['train']}' next to '{others[0]}': is that a part of the data, or a class? Move the other "
            "folders into the parts, or list the images in a .csv of path,label"
        )
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}


def _list(root: Path, part: str) -> LabelledSet:
    folder = root / part
    entries = sorted(folder.iterdir())
    loose = [entry.name for entry in entries if not entry.is_dir() and is_image(entry.name)]
    classes = [entry.name for entry in entries if _is_class(entry)]
    if classes and loose:
        raise InputError(f"{folder / loose[0]}: is next to the class folders; move it into one of them")
    _refuse_doubles([folder / name for name in classes])
    _warn_of_hidden(folder, entries)
    found = {
        name: find_images(folder / name, [root, folder, *(folder / other for other in classes if other != name)])
        for name in classes
    }
    empty = next((name for name, images in found.items() if not images), None)
    if empty is not None:
        raise InputError(f"{folder / empty}: no images in it ({', '.join(SUFFIXES)}); add some or remove the folder")
    if not classes and not loose:
        raise InputError(f"{folder}: no class folders and no images in it ({', '.join(SUFFIXES)})")
    inner = [f"{name}/{image}" for name, images in found.items() for image in images] or loose
    names = as_names([f"{part}/{name}" for name in inner] if part else inner)
    labels = np.repeat(np.array(classes, np.str_), [len(images) for images in found.values()]) if classes else None
    return LabelledSet(ImageFiles(root, names), labels, ids=names)


def _refuse_doubles(classes: list[Path]) -> None:
    """Refuse a class folder that is a link to another one: every image would have two labels."""
    known: dict[Path, Path] = {}
    for path in classes:
        other = known.setdefault(path.resolve(), path)
        if other is not path:
            raise InputError(f"{path}: is the same folder as {other.name}, so its images have two labels; remove one")


def _warn_of_hidden(folder: Path, entries: list[Path]) -> None:
    """Name folders that are not taken for classes since they begin with a dot, although images are in them."""
    hidden = [entry.name for entry in entries if entry.is_dir() and entry.name.startswith(".")]
    lost = [name for name in hidden if not name.startswith(_NO_CLASSES) and find_images(folder / name)]
    if lost:
        warnings.warn(
            f"{folder}: {', '.join(lost)}: hidden, so not a class; rename what is one, without the dot",
            UnflipWarning,
            stacklevel=2,
        )


def _is_class(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


image_folder = ImageFolder()
