"""Class folders: one folder per class, either in ``train``, ``val`` and ``test``, or all for training."""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from unflip.errors import InputError, UnflipWarning

_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_NO_CLASSES = (
    ".git", ".hg", ".svn", ".dvc", ".DS_Store", ".ipynb_checkpoints", ".cache", ".Trash", ".Spotlight", ".fseventsd",
    ".thumbnails", ".idea", ".vscode", ".venv", ".unflip",
)  # fmt: skip
"""What the names of hidden folders begin with that tools make."""


class FileKind(NamedTuple):
    """Files that are examples."""

    noun: str
    suffixes: tuple[str, ...]

    def fits(self, name: str) -> bool:
        """Whether a file name is that of an example."""
        return name.lower().endswith(self.suffixes) and not name.startswith(".")

    def __str__(self) -> str:
        return ", ".join(self.suffixes)


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


def find_files(folder: Path, kind: FileKind, besides: Iterable[Path] = ()) -> list[str]:
    """Return the files of a kind in ``folder`` and below, relative to it, in order; hidden folders are skipped.

    Links to folders are followed, but no folder is entered twice, nor one of ``besides``, so that a link cannot lead
    round in circles. Of a folder and a link to it, the folder is taken.
    """
    found: list[str] = []
    entered = {_identity(path) for path in besides} - {_identity(folder)}
    starts = [folder]
    for start in starts:  # links are appended while the folders are searched
        for where, folders, files in os.walk(start):
            identity = _identity(Path(where))
            if identity in entered:
                folders.clear()
                continue
            entered.add(identity)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            starts += [inner for name in folders if (inner := Path(where, name)).is_symlink()]
            inside = os.path.relpath(where, folder)
            before = "" if inside == os.curdir else inside.replace(os.sep, "/") + "/"
            found += [before + name for name in files if kind.fits(name)]
    return sorted(found)


def _identity(folder: Path) -> tuple[int, int]:
    state = folder.stat()
    return state.st_dev, state.st_ino
