"""The rows of a run's examples for people to look at, where the data is a table, texts or an array of features."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from unflip.data.cells import Cells
from unflip.data.loader import find_loader, load_raw
from unflip.data.options import DataOptions
from unflip.data.viewing.pictures import example_rows

_NAMED, _UNNAMED = 200, 24  # most columns shown; numbers without names say little
_LONG = 40  # characters from which on a cell is a text to read
Cell = float | str


class Rows:
    """Values by row of a run's labels, with the names of their columns."""

    def __init__(self, row_of: Callable[[int], Sequence[Cell]], width: int, names: Sequence[str] | None) -> None:
        self._row_of = row_of
        self._shown = min(width, _UNNAMED if names is None else _NAMED)
        self._names = [f"column {i}" for i in range(self._shown)] if names is None else list(names[: self._shown])
        self.left_out = width - self._shown
        """How many columns are not shown."""

    def values(self, index: int) -> list[tuple[str, Cell]]:
        """Return (name, value) of each column of an example: numbers as numbers, all else as people write it."""
        return list(zip(self._names, self._row_of(index)[: self._shown], strict=True))

    def text(self, index: int) -> str | None:
        """Return the longest text of an example; None if no cell is one."""
        texts = [value for _, value in self.values(index) if isinstance(value, str)]
        longest = max(texts, key=len, default="")
        return longest if len(longest) >= _LONG or len(self._names) == 1 else None


def open_rows(options: DataOptions, count: int) -> Rows | None:
    """Find the rows of a run's ``count`` examples; None where an input is not a row."""
    if find_loader(Path(options.path)) not in ("arrays", "table", "texts"):
        return None
    raw = load_raw(options)
    inputs = raw.train.inputs
    if isinstance(inputs, Cells):
        row_of = example_rows(raw, options, count)
        return Rows(lambda index: _readable(row_of(index)), inputs.shape[1], inputs.table.column_names)
    if not isinstance(inputs, np.ndarray) or inputs.ndim != 2 or raw.holds_images:
        return None
    row_of = example_rows(raw, options, count)
    return Rows(lambda index: [float(value) for value in row_of(index)], inputs.shape[1], None)


def _readable(row: Cells) -> list[Cell]:
    cells = [column[0].as_py() for column in row.table.columns]
    return [
        cell if isinstance(cell, float) else float(cell) if type(cell) is int else "" if cell is None else str(cell)
        for cell in cells
    ]
