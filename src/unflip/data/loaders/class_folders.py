"""Class folders of images or .txt files: one per class, either in ``train``, ``val`` and ``test``, or all to train."""

import os
from pathlib import Path

import numpy as np

from unflip.data.columns import TEXT, Table
from unflip.data.dataset import Dataset, Split
from unflip.data.files import IMAGES, FileKind, ImageFiles, as_names, find_files
from unflip.data.images import IMAGENET
from unflip.data.loaders import FOR_IMAGE_FILES, FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.data.sources import Standardization
from unflip.errors import InputError
from unflip.options import Options

_TEXTS = FileKind("texts", (".txt",))
_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class _ClassFolders(Loader):
    """Files that are not in class folders have no labels: for prediction, or for use with ``--labels``."""

    general = True
    kind: FileKind
    normalization: Standardization | None = None

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """List the files, in the order of their names; texts are read."""
        parts = find_parts(path) or {"train": ""}
        sets = {part: self._read(path, folder) for part, folder in parts.items()}
        labels = sets["train"].labels
        return Dataset(
            sets["train"],
            class_names=None if labels is None else tuple(dict.fromkeys(labels.tolist())),
            normalization=self.normalization,
            unlabeled=f"{self.kind.noun} but no class folders in it",
        ).with_parts(sets)

    def _read(self, root: Path, part: str) -> Split:
        files, labels = list_part(root, part, self.kind)
        names = as_names(files)
        inputs = ImageFiles(root, names) if self.kind is IMAGES else _read_texts(root, files)
        return Split(inputs, None if labels is None else np.array(labels, np.str_), ids=names)


class ImageFolder(_ClassFolders):
    """Images in class folders."""

    uses = FOR_IMAGE_FILES
    kind = IMAGES
    normalization = IMAGENET

    def recognizes(self, path: Path) -> bool:
        """Whether ``path`` is a folder with folders or images in it, and no arrays; text folders are tried first."""
        entries = list(path.iterdir()) if path.is_dir() else []
        return any(is_class(entry) or IMAGES.fits(entry.name) for entry in entries) and not any(
            entry.suffix == ".npy" for entry in entries
        )


class TextFolder(_ClassFolders):
    """Texts in class folders."""

    uses = FOR_ROWS | {"text_encoder"}
    kind = _TEXTS

    def recognizes(self, path: Path) -> bool:
        """Whether the first file in a class folder of ``path``, or in ``path`` without any, is a text."""
        if not path.is_dir():
            return False
        folders = sorted(entry for entry in path.iterdir() if is_class(entry))
        if not folders:
            names = [entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")]
            return bool(names) and all(_TEXTS.fits(name) for name in names)
        first = next((name for _, _, files in os.walk(folders[0]) for name in sorted(files) if name[0] != "."), "")
        return _TEXTS.fits(first)


def _read_texts(root: Path, names: list[str]) -> Table:
    import pyarrow as pa

    texts = []
    for name in names:
        try:
            texts.append((root / name).read_text("utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{root / name}: not a readable text file in UTF-8 ({error})") from error
    return Table(pa.table({TEXT: pa.chunked_array([pa.array(texts, pa.large_string())])}))


def find_parts(path: Path) -> dict[str, str]:
    """Return the folder of each part; none where all folders are classes."""
    folders = [entry.name for entry in sorted(path.iterdir()) if is_class(entry)]
    parts = {_PARTS[name.lower()]: name for name in folders if name.lower() in _PARTS}
    others = [name for name in folders if name not in parts.values()]
    if parts and "train" not in parts:
        raise InputError(f"{path}: has a folder '{next(iter(parts.values()))}' but no folder 'train'; add it")
    if parts and others:
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
    found = {name: find_files(folder / name, kind) for name in classes}
    empty = next((name for name, files in found.items() if not files), "" if not (classes or loose) else None)
    if empty is not None:
        raise InputError(f"{folder / empty}: no {kind.noun} in it ({kind}); add some or remove the folder")
    inner = [f"{name}/{file}" for name, files in found.items() for file in files] or loose
    labels = [name for name, files in found.items() for _ in files] if classes else None
    return [f"{part}/{name}" for name in inner] if part else inner, labels


def is_class(entry: Path) -> bool:
    """Whether an entry of a folder may be a class: a folder that is not hidden."""
    return entry.is_dir() and not entry.name.startswith(".")


image_folder = ImageFolder()
text_folder = TextFolder()
