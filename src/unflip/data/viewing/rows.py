"""The rows of a run's examples for people to look at, where the data is a table, texts or an array of features."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from unflip.data.cells import Cells
from unflip.data.files.shards import Shards
from unflip.data.loader import find_loader, load_raw
from unflip.data.options import DataOptions
from unflip.data.viewing.pictures import example_rows

_NAMED, _UNNAMED = 200, 24  # most columns shown; numbers without names say little
_LONG = 40  # characters from which on a cell is a text to read, where nobody knows the columns of texts
_EXACT = 2**53  # integers up to that are numbers of the same value
Cell = float | str


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
    if isinstance(inputs, Cells):
        row_of = example_rows(raw, options, count)
        return Rows(lambda index: _readable(row_of(index)), inputs.shape[1], inputs.table.column_names, texts)
    if not isinstance(inputs, np.ndarray | Shards) or inputs.ndim != 2 or raw.holds_images:
        return None
    row_of = example_rows(raw, options, count)
    return Rows(lambda index: [_cell(float(value)) for value in row_of(index)], inputs.shape[1], None)


def _readable(row: Cells) -> list[Cell]:
    return [_cell(column[0].as_py()) for column in row.table.columns]


def _cell(value: object) -> Cell:
    if value is None:
        return ""
    if (type(value) is int and abs(value) <= _EXACT) or (isinstance(value, float) and math.isfinite(value)):
        return float(value)
    return str(value)
