"""Pictures and rows of a run's examples for people to look at; only files that the data lists are ever opened."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


_QUALITY = 85  # of JPEG
_NAMED, _UNNAMED = 200, 24  # most columns shown; numbers without names say little
_LONG = 40  # characters from which on a cell is a text to read, where nobody knows the columns of texts
_EXACT = 2**53  # integers up to that are numbers of the same value
Cell = float | str


class Pictures:
    """The pictures of a run's examples, by row of its labels; each is read on demand.

    Attributes:
        media_type: of every thumbnail: ``image/jpeg`` for files, ``image/png`` for arrays.
    """

    media_type: str

    def __init__(self, count: int, media_type: str, read: Callable[[int, int], "Image"]) -> None:
        self._count, self.media_type, self._read = count, media_type, read

    def __len__(self) -> int:
        return self._count

    def thumbnail(self, index: int, size: int) -> bytes:
        """Return the picture of an example with sides of at most ``size`` pixels; a smaller one stays as it is."""
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
    """Find the pictures of a run's examples, called ``ids``, in this order; None for data without pictures.

    Lists are read, images are not. ``own`` holds options of loaders by name.
    """
    try:
        if find_loader(Path(options.path)) == "arrays":
            return None
        raw = load_raw(options, own)
    except InputError as error:
        raise InputError(f"{error}; pictures are read from where the run found its data: has it moved?") from error
    if isinstance(raw.train.inputs, ImageFiles):
        return _of_files([part.inputs for part in (raw.train, raw.val) if part is not None], options, ids)
    return _of_arrays(raw, options, len(ids))


def _of_files(parts: Sequence[Inputs], options: DataOptions, ids: Sequence[str]) -> Pictures:
    """Find files by id, the name that the data lists them by, not by position: a run has no rows for broken files."""
    listed = {
        str(name): files.root for files in parts if isinstance(files, ImageFiles) for name in files.names.tolist()
    }
    missing = next((name for name in ids if name not in listed), None)
    if missing is not None:
        raise InputError(f"data {options.path}: no image {missing} in it, which the run had; is it another data set?")

    def read(index: int, size: int) -> "Image":
        from PIL import Image

        path = listed[ids[index]].joinpath(ids[index])
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
    """Return a function that finds the input of each of a run's ``count`` examples: a row of an array, or of cells."""
    # Only `per_class` needs the labels, which may be in another file.
    train = raw.train[: options.limit] if options.per_class is None else choose_labels(raw, options)[0]
    parts = [part.inputs for part in (train, raw.val) if part is not None and not isinstance(part.inputs, ImageFiles)]
    if (found := sum(map(len, parts))) != count:
        raise InputError(f"data {options.path}: {found} examples, the run had {count}; is it another data set?")

    def row_of(index: int) -> Any:
        part, row = (parts[0], index) if index < len(parts[0]) else (parts[1], index - len(parts[0]))
        return part[row : row + 1] if isinstance(part, Table) else part[row]

    return row_of


def _bytes_to_pixels(image: Array) -> Array:
    """Turn channels (c, h, w) into what Pillow takes: (h, w, 3), or (h, w) where there is one."""
    return np.ascontiguousarray(image.transpose(1, 2, 0).squeeze(2) if len(image) == 1 else image.transpose(1, 2, 0))


class Rows:
    """Values by row of a run's labels, with the names of their columns."""

    def __init__(
        self,
        row_of: Callable[[int], Sequence[Cell]],
        width: int,
        names: Sequence[str] | None,
        texts: Sequence[str] | None = None,
    ) -> None:
        self._row_of = row_of
        self._all_names = list(names or ())
        self._texts = texts
        self._shown = min(width, _UNNAMED if names is None else _NAMED)
        self._names = [f"column {i}" for i in range(self._shown)] if names is None else list(names[: self._shown])
        self.left_out = width - self._shown
        """How many columns are not shown."""

    def values(self, index: int) -> list[tuple[str, Cell]]:
        """Return (name, value) of each column of an example: numbers as numbers, all else as people write it."""
        return list(zip(self._names, self._row_of(index)[: self._shown], strict=True))

    def text(self, index: int) -> str | None:
        """Return the longest text of an example; None if no cell is one."""
        found = self.named_text(index)
        return None if found is None else found[1]

    def words(self, index: int) -> str:
        """Return an example to read in one piece: a line ``name: value`` for each column, or the only cell as it is."""
        cells = [(name, value if isinstance(value, str) else f"{value:.15g}") for name, value in self.values(index)]
        return cells[0][1] if len(cells) == 1 else "\n".join(f"{name}: {value}" for name, value in cells)

    def cell(self, index: int, column: str) -> Cell:
        """Return the value of one column of an example."""
        return self._row_of(index)[self._all_names.index(column)]

    def named_text(self, index: int) -> tuple[str, str] | None:
        """Return the longest text of an example after the name of its column; None if no cell is one."""
        if self._texts == () or not self._all_names:
            return None
        cells = [cell for cell in zip(self._all_names, self._row_of(index), strict=True) if isinstance(cell[1], str)]
        if self._texts is not None:
            texts = [(name, str(value)) for name, value in cells if name in self._texts]
        else:
            alone = len(self._all_names) == 1
            texts = [(name, str(value)) for name, value in cells if alone or len(str(value)) >= _LONG]
        return max(texts, key=lambda cell: len(cell[1]), default=None)


def open_rows(options: DataOptions, count: int, texts: Sequence[str] | None = None) -> Rows | None:
    """Find the rows of a run's ``count`` examples; None where an input is not a row.

    ``texts`` are the columns that hold texts to read; where that is not known, long cells are taken for texts.
    """
    if find_loader(Path(options.path)) not in ("arrays", "table", "texts"):
        return None
    raw = load_raw(options)
    inputs = raw.train.inputs
    if isinstance(inputs, Table):
        row_of = example_rows(raw, options, count)
        return Rows(lambda index: _readable(row_of(index)), inputs.shape[1], inputs.table.column_names, texts)
    if not isinstance(inputs, np.ndarray | Shards) or inputs.ndim != 2 or raw.holds_images:
        return None
    row_of = example_rows(raw, options, count)
    return Rows(lambda index: [_cell(float(value)) for value in row_of(index)], inputs.shape[1], None)


def _readable(row: Table) -> list[Cell]:
    return [_cell(column[0].as_py()) for column in row.table.columns]


def _cell(value: object) -> Cell:
    if value is None:
        return ""
    if (type(value) is int and abs(value) <= _EXACT) or (isinstance(value, float) and math.isfinite(value)):
        return float(value)
    return str(value)


@contextmanager
def ask_where() -> Iterator[None]:
    """Add to an error of opening a run's data that ``--data`` says where it is now."""
    try:
        yield
    except InputError as error:
        name = " Name" if str(error).endswith("?") else "; name"
        raise InputError(f"{error}{name} its location with --data") from error
