"""Thumbnails and rows of a run's examples for reports and reviews; only files that the data lists are opened."""

import math
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from unflip.data.arrays import Array, Shards
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Inputs
from unflip.data.decoding import reason_of, to_upright_rgb
from unflip.data.files import ImageFiles
from unflip.data.labeling import choose_labels
from unflip.data.loaders import find_loader, load_raw
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.options import Options

if TYPE_CHECKING:
    from PIL.Image import Image


_ROWS = ("arrays", "table", "texts")  # loaders of data without pictures
_QUALITY = 85  # of JPEG
_NAMED, _UNNAMED = 200, 24  # columns to show, with and without names
_LONG = 40  # a cell of this many characters is a text, if the columns of texts are unknown
_EXACT = 2**53  # integers up to this are exact as floats
Cell = float | str


class Pictures:
    """The pictures of a run's examples, by row of its labels, read on demand.

    Args:
        count: the number of examples.
        media_type: of thumbnails: ``image/jpeg`` for files, ``image/png`` for arrays.
        read: returns the picture of an example; its second argument is the size of the thumbnail.
    """

    def __init__(self, count: int, media_type: str, read: Callable[[int, int], "Image"]) -> None:
        self._count, self.media_type, self._read = count, media_type, read

    def __len__(self) -> int:
        return self._count

    def thumbnail(self, index: int, size: int) -> bytes:
        """Return the encoded picture of an example, scaled down to sides of at most ``size`` pixels."""
        if not 0 <= index < self._count:
            raise InputError(f"picture {index}: there are {self._count}, counted from 0")
        image = self._read(index, size)
        if max(image.size) > size:
            image.thumbnail((size, size))
        content = BytesIO()
        if self.media_type == "image/jpeg":
            image.save(content, "JPEG", quality=_QUALITY)
        else:
            image.save(content, "PNG", optimize=True)
        return content.getvalue()


def open_pictures(
    options: DataOptions, ids: Sequence[str], own: Mapping[str, Options] = MappingProxyType({})
) -> Pictures | None:
    """Find the pictures of a run's examples; images are not read yet.

    Args:
        options: which data.
        ids: the names of the examples, in the order of the run.
        own: options of loaders by name.

    Returns:
        None for data without pictures.
    """
    raw = _load(options, own, rows=False)
    if raw is None:
        return None
    if isinstance(raw.train.inputs, ImageFiles):
        return _of_files([part.inputs for part in (raw.train, raw.val) if part is not None], options, ids)
    return _of_arrays(raw, options, len(ids))


def _of_files(parts: Sequence[Inputs], options: DataOptions, ids: Sequence[str]) -> Pictures:
    """Find files by their ids, not by position: a run has no rows for broken files."""
    roots = {str(name): files.root for files in parts if isinstance(files, ImageFiles) for name in files.names.tolist()}
    missing = next((name for name in ids if name not in roots), None)
    if missing is not None:
        raise InputError(f"data {options.path}: no image {missing}, which the run had; is it another data set?")

    def read(index: int, size: int) -> "Image":
        from PIL import Image

        path = roots[ids[index]].joinpath(ids[index])
        try:
            with path.open("rb") as file:
                image = Image.open(file)
                image.draft("RGB", (size, size))
                return to_upright_rgb(image)
        except Exception as error:  # image libraries raise all kinds of errors for broken files
            raise InputError(f"{path}: {reason_of(error)}") from error

    return Pictures(len(ids), "image/jpeg", read)


def _of_arrays(raw: Dataset, options: DataOptions, count: int) -> Pictures | None:
    as_pixels = _bytes_to_pixels if raw.holds_images else raw.as_pixels
    if as_pixels is None:
        return None
    row_of = example_rows(raw, options, count)

    def read(index: int, size: int) -> "Image":
        from PIL import Image

        return Image.fromarray(as_pixels(row_of(index)))

    return Pictures(count, "image/png", read)


def example_rows(raw: Dataset, options: DataOptions, count: int) -> Callable[[int], Any]:
    """Return a function from the number of an example, of ``count``, to its input: a row of an array or of a table."""
    # Labels, which may be in another file, matter with `per_class` only.
    train = raw.train[: options.limit] if options.per_class is None else choose_labels(raw, options)[0]
    parts = [part.inputs for part in (train, raw.val) if part is not None and not isinstance(part.inputs, ImageFiles)]
    if (total := sum(map(len, parts))) != count:
        raise InputError(f"data {options.path}: {total} examples, the run had {count}; is it another data set?")

    def row_of(index: int) -> Any:
        part, row = (parts[0], index) if index < len(parts[0]) else (parts[1], index - len(parts[0]))
        return part[row : row + 1] if isinstance(part, Table) else part[row]

    return row_of


def _bytes_to_pixels(image: Array) -> Array:
    """Convert (c, h, w) to what Pillow takes: (h, w, 3), or (h, w) for one channel."""
    return np.ascontiguousarray(image.transpose(1, 2, 0).squeeze(2) if len(image) == 1 else image.transpose(1, 2, 0))


class Rows:
    """The values of a run's examples, by row of its labels.

    Args:
        row_of: returns the values of an example.
        width: the number of columns.
        names: of the columns, if they have any.
        texts: the columns of texts; if unknown, long cells are texts.
    """

    def __init__(
        self,
        row_of: Callable[[int], Sequence[Cell]],
        width: int,
        names: Sequence[str] | None,
        texts: Sequence[str] | None = None,
    ) -> None:
        self._row_of = row_of
        self._names = list(names or ())
        self._texts = texts
        self._titles = list(names or [f"column {i}" for i in range(width)])[: _NAMED if names else _UNNAMED]
        self.left_out = width - len(self._titles)
        """The number of columns that are not shown."""

    def values(self, index: int) -> list[tuple[str, Cell]]:
        """Return (name, value) of each column to show: numbers as floats, everything else as text."""
        return list(zip(self._titles, self._row_of(index), strict=False))

    def text(self, index: int) -> str | None:
        """Return the longest text of an example; None without one."""
        named = self.named_text(index)
        return None if named is None else named[1]

    def words(self, index: int) -> str:
        """Return an example as text: a line ``name: value`` for each column, or the value of a single column."""
        cells = [(name, value if isinstance(value, str) else f"{value:.15g}") for name, value in self.values(index)]
        return cells[0][1] if len(cells) == 1 else "\n".join(f"{name}: {value}" for name, value in cells)

    def cell(self, index: int, column: str) -> Cell:
        """Return the value of one column of an example."""
        return self._row_of(index)[self._names.index(column)]

    def named_text(self, index: int) -> tuple[str, str] | None:
        """Return the longest text of an example, after the name of its column; None without one."""
        if self._texts == () or not self._names:
            return None
        length = 0 if len(self._names) == 1 else _LONG
        texts = [
            (name, value)
            for name, value in zip(self._names, self._row_of(index), strict=True)
            if isinstance(value, str) and (len(value) >= length if self._texts is None else name in self._texts)
        ]
        return max(texts, key=lambda cell: len(cell[1]), default=None)


def open_rows(options: DataOptions, count: int, texts: Sequence[str] | None = None) -> Rows | None:
    """Find the rows of a run's ``count`` examples; None for images. ``texts``: see :class:`Rows`."""
    raw = _load(options, {}, rows=True)
    if raw is None:
        return None
    inputs = raw.train.inputs
    if isinstance(inputs, Table):
        row_of = example_rows(raw, options, count)
        return Rows(lambda index: _readable(row_of(index)), inputs.shape[1], inputs.table.column_names, texts)
    if not isinstance(inputs, np.ndarray | Shards) or inputs.ndim != 2:
        return None
    row_of = example_rows(raw, options, count)
    return Rows(lambda index: [_cell(float(value)) for value in row_of(index)], inputs.shape[1], None)


def _load(options: DataOptions, own: Mapping[str, Options], *, rows: bool) -> Dataset | None:
    """Load data of rows, or of images; None if it is of the other kind."""
    try:
        return load_raw(options, own) if (find_loader(Path(options.path)) in _ROWS) == rows else None
    except InputError as error:
        raise InputError(f"{error}; if the data was moved, name its location with --data") from error


def _readable(row: Table) -> list[Cell]:
    return [_cell(column[0].as_py()) for column in row.table.columns]


def _cell(value: object) -> Cell:
    if value is None:
        return ""
    if (type(value) is int and abs(value) <= _EXACT) or (isinstance(value, float) and math.isfinite(value)):
        return float(value)
    return str(value)
