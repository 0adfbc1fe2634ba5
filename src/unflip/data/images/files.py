"""ImageFiles: image files by name, and how they are found."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unflip.data.files.arrays import Array
from unflip.data.files.class_folders import FileKind, find_files
from unflip.data.options import Resample
from unflip.errors import check_text

IMAGES = FileKind("images", (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))


@dataclass(frozen=True)
class Frame:
    """An image is scaled until its shorter side is ``resize``; the network sees the central ``size`` x ``size``."""

    size: int
    resize: int
    resample: Resample = "bilinear"


@dataclass(frozen=True)
class ImageFiles:
    """Images that are read when they are needed."""

    root: Path
    names: Array
    """Paths relative to ``root``, or absolute ones: strings (n,)."""
    listed_in: Path | None = None
    """The file that lists them, and their rows in it (n,) below; both None where the folder itself was searched."""
    rows: Array | None = None
    frame: Frame | None = None
    """What the network sees of an image; chosen once the files are opened."""

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: slice | Array) -> "ImageFiles":
        return replace(self, names=self.names[rows], rows=None if self.rows is None else self.rows[rows])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an array of what the network sees, (n, 3, size, size)."""
        assert self.frame is not None
        return (len(self), 3, self.frame.size, self.frame.size)

    def path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root.joinpath(self.names[index])

    def where(self, index: int) -> str:
        """Return what errors call an image: its path, after the row that lists it."""
        listed = "" if self.listed_in is None or self.rows is None else f"{self.listed_in}, row {self.rows[index]}: "
        return f"{listed}{self.path(index)}"


class Skipped(NamedTuple):
    """An image that was left out."""

    part: str
    id: str
    reason: str


def skipped_csv(skipped: tuple[Skipped, ...]) -> str:
    """Return the images that were left out as a CSV table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([Skipped._fields, *skipped])
    return text.getvalue()


def as_names(names: list[str]) -> Array:
    """Return names as an array to index with masks; of objects, since one long name would widen all strings."""
    for name in names:
        check_text(name, "image")
    array = np.empty(len(names), object)
    array[:] = names
    return array


def is_image(name: str) -> bool:
    """Whether a file name is that of an image."""
    return IMAGES.fits(name)


def find_images(folder: Path, besides: Iterable[Path] = ()) -> list[str]:
    """Return the images in ``folder`` and below; see :func:`unflip.data.files.class_folders.find_files`."""
    return find_files(folder, IMAGES, besides)
