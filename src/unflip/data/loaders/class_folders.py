"""Image folders: one folder per class, either in ``train``, ``val`` and ``test``, or all for training."""

import os
import warnings
from pathlib import Path

import numpy as np

from unflip.data.columns import TEXT, Cells, not_utf8
from unflip.data.dataset import Dataset, Split
from unflip.data.files import IMAGES, FileKind, ImageFiles, as_names, find_files
from unflip.data.images import IMAGENET
from unflip.data.loaders import FOR_IMAGE_FILES, FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError, UnflipWarning
from unflip.options import Options


class ImageFolder(Loader):
    """Images that are not in class folders have no labels: for prediction, or for use with ``--labels``."""

    general = True
    uses = FOR_IMAGE_FILES

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is a folder with folders or images in it, and no arrays; text folders are tried first."""
        if not path.is_dir():
            return False
        entries = list(path.iterdir())
        return any(is_class(entry) or IMAGES.fits(entry.name) for entry in entries) and not any(
            entry.suffix == ".npy" for entry in entries
        )

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """List the images, in the order of their names."""
        parts = find_parts(path)
        sets = {part: _list_images(path, folder) for part, folder in parts.items()} or {"train": _list_images(path, "")}
        train = sets.pop("train")
        return Dataset(
            train=train,
            val=sets.pop("val", None),
            tests=sets,
            class_names=None if train.labels is None else tuple(dict.fromkeys(train.labels.tolist())),
            normalisation=IMAGENET,
            unlabelled="images but no class folders in it",
        )


def _list_images(root: Path, part: str) -> Split:
    files, labels = list_part(root, part, IMAGES)
    names = as_names(files)
    return Split(ImageFiles(root, names), None if labels is None else np.array(labels, np.str_), ids=names)


image_folder = ImageFolder()


_TEXTS = FileKind("texts", (".txt",))


class TextFolder(Loader):
    """Texts that are not in class folders have no labels: for prediction, or for use with ``--labels``."""

    general = True
    uses = FOR_ROWS | {"text_encoder"}

    def recognises(self, path: Path) -> bool:
        """Whether the first file in a class folder of ``path``, or in ``path`` without any, is a text."""
        if not path.is_dir():
            return False
        folders = sorted(entry for entry in path.iterdir() if is_class(entry))
        if not folders:
            names = [entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")]
            return bool(names) and all(_TEXTS.fits(name) for name in names)
        first = next((name for _, _, files in os.walk(folders[0]) for name in sorted(files) if name[0] != "."), "")
        return _TEXTS.fits(first)

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """Read the texts, in the order of their names."""
        parts = find_parts(path)
        sets = {part: _read_texts(path, folder) for part, folder in parts.items()} or {"train": _read_texts(path, "")}
        train = sets.pop("train")
        return Dataset(
            train=train,
            val=sets.pop("val", None),
            tests=sets,
            class_names=None if train.labels is None else tuple(dict.fromkeys(train.labels.tolist())),
            unlabelled="texts but no class folders in it",
        )


def _read_texts(root: Path, part: str) -> Split:
    import pyarrow as pa

    names, labels = list_part(root, part, _TEXTS)
    texts = pa.chunked_array([pa.array([_text(root / name) for name in names], pa.large_string())])
    return Split(
        Cells(pa.table({TEXT: texts})), None if labels is None else np.array(labels, np.str_), ids=as_names(names)
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {not_utf8(path, error)}") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


text_folder = TextFolder()


_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_NO_CLASSES = (
    ".git", ".hg", ".svn", ".dvc", ".DS_Store", ".ipynb_checkpoints", ".cache", ".Trash", ".Spotlight", ".fseventsd",
    ".thumbnails", ".idea", ".vscode", ".venv", ".unflip",
)  # fmt: skip
"""What the names of hidden folders begin with that tools make."""


def find_parts(path: Path) -> dict[str, str]:
    """Return the folder of each part; none where all folders are classes."""
    folders = [entry.name for entry in sorted(path.iterdir()) if is_class(entry)]
    parts = {_PARTS[name.lower()]: name for name in folders if name.lower() in _PARTS}
    others = [name for name in folders if name not in parts.values()]
    if not parts:
        return {}
    if "train" not in parts:
        raise InputError(f"{path}: has a folder '{next(iter(parts.values()))}' but no folder 'train'; add it")
    if others:
        raise InputError(
            f"{path}: '{parts['train']}' next to '{others[0]}': is that a part of the data, or a class? Move the other "
            "folders into the parts"
        )
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}


def list_part(root: Path, part: str, kind: FileKind) -> tuple[list[str], list[str] | None]:
    """Return the files of a part, relative to ``root`` and in order, and the class of each.

    The classes are None where the files lie in no class folders.
    """
    folder = root / part
    entries = sorted(folder.iterdir())
    loose = [entry.name for entry in entries if not entry.is_dir() and kind.fits(entry.name)]
    classes = [entry.name for entry in entries if is_class(entry)]
    if classes and loose:
        raise InputError(f"{folder / loose[0]}: is next to the class folders; move it into one of them")
    _refuse_doubles([folder / name for name in classes])
    _warn_of_hidden(folder, entries, kind)
    found = {
        name: find_files(folder / name, kind, [root, folder, *(folder / other for other in classes if other != name)])
        for name in classes
    }
    empty = next((name for name, files in found.items() if not files), None)
    if empty is not None:
        raise InputError(f"{folder / empty}: no {kind.noun} in it ({kind}); add some or remove the folder")
    if not classes and not loose:
        raise InputError(f"{folder}: no class folders and no {kind.noun} in it ({kind})")
    inner = [f"{name}/{file}" for name, files in found.items() for file in files] or loose
    labels = [name for name, files in found.items() for _ in files] if classes else None
    return [f"{part}/{name}" for name in inner] if part else inner, labels


def _refuse_doubles(classes: list[Path]) -> None:
    """Refuse a class folder that is a link to another one: every example would have two labels."""
    known: dict[Path, Path] = {}
    for path in classes:
        other = known.setdefault(path.resolve(), path)
        if other is not path:
            raise InputError(f"{path}: is the same folder as {other.name}, so its examples have two labels; remove one")


def _warn_of_hidden(folder: Path, entries: list[Path], kind: FileKind) -> None:
    """Name folders that are not taken for classes since they begin with a dot, although examples are in them."""
    hidden = [entry.name for entry in entries if entry.is_dir() and entry.name.startswith(".")]
    lost = [name for name in hidden if not name.startswith(_NO_CLASSES) and find_files(folder / name, kind)]
    if lost:
        warnings.warn(
            f"{folder}: {', '.join(lost)}: hidden, so not a class; rename what is one, without the dot",
            UnflipWarning,
            stacklevel=2,
        )


def is_class(entry: Path) -> bool:
    """Whether an entry of a folder may be a class: a folder that is not hidden."""
    return entry.is_dir() and not entry.name.startswith(".")
