"""Cells: the columns of a table as they came (numbers, names, dates, texts, gaps), to be encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unflip.data.files.arrays import Array
from unflip.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = "text"
"""What the only column is called where texts came by themselves."""


@dataclass(frozen=True)
class Cells:
    """Rows of a table without its labels and ids; the inputs of a :class:`unflip.data.raw.LabelledSet`."""

    table: "pa.Table"

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: slice | Array) -> "Cells":
        import numpy as np

        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self.table))
            if step == 1:
                return Cells(self.table.slice(start, max(0, stop - start)))
            rows = np.arange(start, stop, step)
        return Cells(self.table.filter(rows) if rows.dtype == bool else self.table.take(rows))

    @classmethod
    def of_array(cls, rows: Array, names: Sequence[str], what: str) -> "Cells":
        """Return an array (n, columns) as a table with these names of columns."""
        import pyarrow as pa

        if rows.shape[1:] != (len(names),):
            raise InputError(f"{what}: examples of shape {rows.shape[1:]}, the model takes {len(names)} columns")
        return cls(pa.table({name: rows[:, place] for place, name in enumerate(names)}))

    def numbers(self, what: str) -> Array:
        """Return the table as an array (n, columns), if all its cells are numbers."""
        import numpy as np
        import pyarrow as pa

        try:
            columns = [column.cast(pa.float64()) for column in self.table.columns]
        except pa.ArrowException as error:
            raise InputError(f"{what}: not all of its columns are numbers, which the model takes ({error})") from error
        empty = next((i for i, column in enumerate(columns) if column.null_count), None)
        if empty is not None:
            raise InputError(f"{what}: the column '{self.table.column_names[empty]}' has empty cells; fill them")
        return np.column_stack([column.to_numpy() for column in columns])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, before they are encoded."""
        return self.table.num_rows, self.table.num_columns
