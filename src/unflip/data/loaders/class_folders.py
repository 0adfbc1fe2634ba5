"""Class folders of images or .txt files: one per class, in ``train``, ``val`` and ``test``, or all for training."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from unflip.data.columns import TEXT, Table
from unflip.data.dataset import Dataset, Inputs, Split
from unflip.data.files import IMAGES, FileKind, ImageFiles, as_names, find_files, read_text
from unflip.data.images import IMAGENET
from unflip.data.loaders import FOR_IMAGE_FILES, FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError

_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class ClassFolders(Loader):
    """Files in class folders; other files have no labels: for prediction, or for use with ``--labels``."""

    general = True
    kind: FileKind

    def load(self, path: Path, options: DataOptions) -> Dataset:
        """List the files, sorted by name; texts are read."""
        sets = {part: self._read(path, folder) for part, folder in (find_parts(path) or {"train": ""}).items()}
        names = {name for part in sets.values() if part.labels is not None for name in part.labels.tolist()}
        return Dataset(
            sets["train"],
            class_names=tuple(sorted(names)) or None,
            normalization=IMAGENET if self.kind is IMAGES else None,
            unlabeled=f"{self.kind.noun} but no class folders in it",
        ).with_parts(sets)

    def _read(self, root: Path, part: str) -> Split:
        """List the files of a split, sorted and relative to ``root``, with their classes if there are class folders."""
        folder, kind = root / part, self.kind
        entries = sorted(folder.iterdir())
        loose = [entry.name for entry in entries if not entry.is_dir() and kind.fits(entry.name)]
        classes = [entry.name for entry in entries if is_class(entry)]
        if classes and loose:
            raise InputError(f"{folder / loose[0]}: is next to the class folders; move it into one of them")
        by_class = {name: find_files(folder / name, kind) for name in classes}
        empty = next((name for name, files in by_class.items() if not files), None if classes or loose else "")
        if empty is not None:
            raise InputError(f"{folder / empty}: no {kind.noun} in it ({kind}); add some or remove the folder")
        inner = [f"{name}/{file}" for name, files in by_class.items() for file in files] or loose
        labels = np.repeat(np.array(classes, np.str_), [len(by_class[name]) for name in classes]) if classes else None
        names = as_names([f"{part}/{name}" for name in inner] if part else inner)
        inputs: Inputs = ImageFiles(root, names)
        if kind is not IMAGES:
            texts = pa.chunked_array([[read_text(root / name) for name in names]], pa.large_string())
            inputs = Table(pa.table({TEXT: texts}))
        return Split(inputs, labels, ids=names)


class ImageFolder(ClassFolders):
    """Images in class folders."""

    uses = FOR_IMAGE_FILES
    kind = IMAGES

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether ``path`` is a folder with folders or images in it, and no arrays; text folders are tried first."""
        entries = list(path.iterdir()) if path.is_dir() else []
        images = any(is_class(entry) or IMAGES.fits(entry.name) for entry in entries)
        return images and not any(entry.suffix == ".npy" for entry in entries)


class TextFolder(ClassFolders):
    """Texts in class folders."""

    uses = FOR_ROWS | {"text_encoder"}
    kind = FileKind("texts", (".txt",))

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether the first file in a class folder of ``path``, or every file in ``path`` without any, is a text."""
        if not path.is_dir():
            return False
        folders = sorted(entry for entry in path.iterdir() if is_class(entry))
        if not folders:
            names = [entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")]
            return bool(names) and all(map(self.kind.fits, names))
        first = next((name for _, _, files in os.walk(folders[0]) for name in sorted(files) if name[0] != "."), "")
        return self.kind.fits(first)


def find_parts(path: Path) -> dict[str, str]:
    """Return the folder of each split; none if all folders are classes."""
    folders = [entry.name for entry in sorted(path.iterdir()) if is_class(entry)]
    parts = {_PARTS[name.lower()]: name for name in folders if name.lower() in _PARTS}
    others = [name for name in folders if name not in parts.values()]
    if parts and "train" not in parts:
        raise InputError(f"{path}: has a folder '{next(iter(parts.values()))}' but no folder 'train'; add it")
    if parts and others:
        raise InputError(f"{path}: '{others[0]}' next to '{parts['train']}'; move classes into the splits")
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}


def is_class(entry: Path) -> bool:
    """Whether an entry of a folder may be a class folder: not hidden."""
    return entry.is_dir() and not entry.name.startswith(".")


images = ImageFolder()
texts = TextFolder()
