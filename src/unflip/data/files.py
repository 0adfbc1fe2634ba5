"""Files as examples: how they are found in folders and lists, and images that are read when needed."""

import csv
import io
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unflip.data.arrays import Array
from unflip.data.options import Resample
from unflip.errors import InputError, check_text


class FileKind(NamedTuple):
    """A kind of file, by its suffixes."""

    noun: str
    suffixes: tuple[str, ...]

    def fits(self, name: str) -> bool:
        """Whether a file name has one of the suffixes and is not hidden."""
        return name.lower().endswith(self.suffixes) and not name.startswith(".")

    def __str__(self) -> str:
        return ", ".join(self.suffixes)


IMAGES = FileKind("images", (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))


@dataclass(frozen=True)
class ResizeCrop:
    """An image is scaled until its shorter side is ``resize``; the network sees the central ``size`` x ``size``."""

    size: int
    resize: int
    resample: Resample = "bilinear"


@dataclass(frozen=True)
class ImageFiles:
    """Images that are read when they are needed.

    Attributes:
        names: paths relative to ``root``, or absolute ones: strings (n,).
        listed_in: the file that lists them; None if they were found in a folder.
        rows: their rows in that file (n,).
        frame: how an image is resized and cropped; chosen once the files are opened.
    """

    root: Path
    names: Array
    listed_in: Path | None = None
    rows: Array | None = None
    frame: ResizeCrop | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: slice | Array) -> "ImageFiles":
        return replace(self, names=self.names[rows], rows=None if self.rows is None else self.rows[rows])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all images after resizing and cropping, (n, 3, size, size)."""
        assert self.frame is not None
        return (len(self), 3, self.frame.size, self.frame.size)

    def path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root.joinpath(self.names[index])

    def where(self, index: int) -> str:
        """Return the name of an image in errors: its path, after the row that lists it."""
        listed = "" if self.listed_in is None or self.rows is None else f"{self.listed_in}, row {self.rows[index]}: "
        return f"{listed}{self.path(index)}"


class Skipped(NamedTuple):
    """An image that was skipped."""

    part: str
    id: str
    reason: str


def skipped_csv(skipped: tuple[Skipped, ...]) -> str:
    """Return the skipped images as a CSV table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([Skipped._fields, *skipped])
    return text.getvalue()


def as_names(names: list[str]) -> Array:
    """Return names as an array of objects: a single long name would widen an array of strings."""
    for name in names:
        check_text(name, "image")
    array = np.empty(len(names), object)
    array[:] = names
    return array


def is_image(name: str) -> bool:
    """Whether a file name has an image suffix."""
    return IMAGES.fits(name)


def read_text(path: Path, what: str = "") -> str:
    """Return the content of a text file in UTF-8; errors call it ``what``, by default by its path."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what or path}: not a text file in UTF-8 ({error.reason})") from error
    except OSError as error:
        raise InputError(f"{what or path}: {error.strerror}") from error


def read_list(path: Path) -> list[str]:
    """Return the lines of a text file, without empty ones."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def read_labeled_list(path: Path) -> tuple[list[str], Array]:
    """Return the paths and class numbers in a list of lines ``path number``."""
    names, labels = [], []
    for row, line in enumerate(read_list(path)):
        name, _, label = line.rpartition(" ")
        if not name or not label.isdecimal():
            raise InputError(f"{path}, row {row}: '{line}' is not a path, a space and a class number")
        names.append(name.strip())
        labels.append(int(label))
    return names, np.array(labels, np.int64)


def find_files(folder: Path, kind: FileKind) -> list[str]:
    """Return the files of a kind in ``folder`` and below, relative to it and sorted; hidden folders are skipped.

    Links to folders are followed, but no folder is entered twice.
    """
    paths: list[str] = []
    entered: set[tuple[int, int]] = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        state = Path(where).stat()
        if (state.st_dev, state.st_ino) in entered:
            folders.clear()
            continue
        entered.add((state.st_dev, state.st_ino))
        visible = (name for name in folders if not name.startswith("."))
        folders[:] = sorted(visible, key=lambda name: (Path(where, name).is_symlink(), name))
        paths += [Path(where, name).relative_to(folder).as_posix() for name in files if kind.fits(name)]
    return sorted(paths)
