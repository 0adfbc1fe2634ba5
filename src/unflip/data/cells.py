"""Cells: the columns of a table as they came (numbers, names, dates, texts, gaps), to be encoded."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unflip.data.files.arrays import Array

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Cells:
    """Rows of a table without its labels and ids; the inputs of a :class:`unflip.data.raw.LabelledSet`."""

    table: "pa.Table"

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: slice | Array) -> "Cells":
        import numpy as np

        if isinstance(rows, slice):
            rows = np.arange(len(self.table))[rows]
        return Cells(self.table.filter(rows) if rows.dtype == bool else self.table.take(rows))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, before they are encoded."""
        return self.table.num_rows, self.table.num_columns
