"""The rows of a run's examples for people to look at, where the data is a table or an array of features."""

from collections.abc import Callable
from pathlib import Path

from unflip.data.files.arrays import Array
from unflip.data.images.files import ImageFiles
from unflip.data.loader import find_loader, load_raw
from unflip.data.options import DataOptions
from unflip.data.viewing.pictures import array_rows

_NAMED, _UNNAMED = 200, 24  # most columns shown; numbers without names say little


class Rows:
    """Values by row of a run's labels, with the names of their columns."""

    def __init__(self, row_of: Callable[[int], Array], width: int, names: tuple[str, ...] | None) -> None:
        self._row_of = row_of
        self._shown = min(width, _UNNAMED if names is None else _NAMED)
        self._names = [f"column {i}" for i in range(self._shown)] if names is None else list(names[: self._shown])
        self.left_out = width - self._shown
        """How many columns are not shown."""

    def values(self, index: int) -> list[tuple[str, float]]:
        """Return (name, value) of each column of an example."""
        values = self._row_of(index)[: self._shown]
        return [(name, float(value)) for name, value in zip(self._names, values, strict=True)]


def open_rows(options: DataOptions, count: int) -> Rows | None:
    """Find the rows of a run's ``count`` examples; None where an input is not a row of numbers."""
    if find_loader(Path(options.path)) not in ("arrays", "table"):
        return None
    raw = load_raw(options)
    inputs = raw.train.inputs
    if isinstance(inputs, ImageFiles) or inputs.ndim != 2 or raw.holds_images:
        return None
    return Rows(array_rows(raw, options, count), inputs.shape[1], raw.columns)
