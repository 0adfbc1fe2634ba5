"""Columns by name from tables (.csv, .parquet and .jsonl files), and the cells of a table that is to be encoded."""

import csv
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unflip.data.arrays import Array
from unflip.errors import InputError, unknown

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, list[Any]]
TEXT = "text"
"""What the only column is called where texts came by themselves."""


@dataclass(frozen=True)
class Table:
    """Rows of a table without its labels and ids (numbers, names, dates, texts, gaps), to be encoded."""

    table: "pa.Table"

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: slice | Array) -> "Table":
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self.table))
            return Table(self.table.slice(start, max(0, stop - start)))
        return Table(self.table.filter(rows) if rows.dtype == bool else self.table.take(rows))

    @classmethod
    def of_array(cls, rows: Array, names: Sequence[str], what: str) -> "Table":
        """Return an array (n, columns) as a table with these names of columns."""
        import pyarrow as pa

        if rows.shape[1:] != (len(names),):
            raise InputError(f"{what}: examples of shape {rows.shape[1:]}, the model takes {len(names)} columns")
        return cls(pa.table({name: rows[:, place] for place, name in enumerate(names)}))

    def numbers(self, what: str) -> Array:
        """Return the table as an array (n, columns), if all its cells are numbers."""
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


def read_columns(path: Path, wanted: Collection[str], what: str) -> tuple[Columns, list[str]]:
    """Return those of the ``wanted`` columns that a table has, and the names of all that it has.

    Cells of a .csv are strings, those of other files keep their types. Names are compared in lower case. Errors call
    the table ``what``.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{what}: cannot read '{path.suffix}'; give .csv, .parquet or .jsonl")
    try:
        columns, header = reader(path, wanted, what)
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: not a text file in UTF-8 ({error.reason})") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"{what}: {getattr(error, 'strerror', None) or error}") from error
    found = [name.lower() for name in header]
    if (twice := next((name for name in columns if found.count(name) > 1), None)) is not None:
        raise InputError(f"{what}: two columns '{twice}', whatever their case; keep one of them")
    return columns, header


def _read_csv(path: Path, wanted: Collection[str], what: str) -> tuple[Columns, list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    header, rows = [cell.strip().lower() for cell in rows[0]] if rows else [], rows[1:]
    uneven = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
    if uneven is not None:
        raise InputError(f"{what}, row {uneven}: {len(rows[uneven])} columns, the header has {len(header)}")
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(header) if name in wanted}, header


def _read_parquet(path: Path, wanted: Collection[str], what: str) -> tuple[Columns, list[str]]:
    import pyarrow.parquet

    try:
        header = pyarrow.parquet.read_schema(path).names
        found = [name for name in header if name.lower() in wanted]
        content = decode_binary(read_parquet(path, found), (), what).to_pydict() if found else {}
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{what}: not a readable Parquet file ({error})") from error
    return {name.lower(): cells for name, cells in content.items()}, header


def _read_jsonl(path: Path, wanted: Collection[str], what: str) -> tuple[Columns, list[str]]:
    rows = []
    for number, line in enumerate(line for line in path.read_text("utf-8-sig").splitlines() if line.strip()):
        try:
            row = {name.lower(): value for name, value in json.loads(line).items()}
        except (AttributeError, ValueError, RecursionError) as error:
            raise InputError(f"{what}, row {number}: not a JSON object ({error})") from error
        rows.append(row)
    header = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in header if name in wanted}, header


_READERS: dict[str, Callable[[Path, Collection[str], str], tuple[Columns, list[str]]]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
}


def read_parquet(path: Path, columns: list[str] | None = None) -> "pa.Table":
    """Read a .parquet file, or some of its columns."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        return file.read(columns)


def decode_binary(table: "pa.Table", ignored: Collection[str], what: str) -> "pa.Table":
    """Return a table with its columns of bytes as text, those besides that are ``ignored``; refuse other than UTF-8."""
    import pyarrow as pa
    import pyarrow.types as types

    for place, field in enumerate(table.schema):
        column = table.column(place)
        try:
            if types.is_binary(field.type) or types.is_large_binary(field.type):
                table = table.set_column(place, field.name, column.cast(pa.string()))
            elif types.is_string(field.type) or types.is_large_string(field.type):
                column.validate(full=True)
        except pa.ArrowException as error:
            if field.name not in ignored:
                row = _first_not_utf8(column)
                raise InputError(f"{what}, column '{field.name}', row {row}: not text in UTF-8; save it so") from error
    return table


def _first_not_utf8(column: "pa.ChunkedArray") -> int:
    import pyarrow as pa

    cells = (cell.as_buffer() for chunk in column.chunks for cell in chunk.cast(pa.large_binary(), safe=False))
    for row, cell in enumerate(cells):
        try:
            (b"" if cell is None else cell.to_pybytes()).decode()
        except UnicodeDecodeError:
            return row
    return 0


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a .csv or .parquet table, in lower case, without reading its rows."""
    if path.suffix.lower() == ".parquet":
        return [name.lower() for name in _read_parquet(path, (), str(path))[1]]
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [cell.strip().lower() for cell in next((row for row in csv.reader(file) if row), [])]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: not a readable table ({error})") from error


def check_separator(path: Path) -> None:
    """Refuse a .csv whose first line is separated by other marks than commas."""
    with path.open("rb") as file:
        first = file.readline(1 << 16).decode(errors="replace")
    separator = next((mark for mark in ";\t|" if mark in first and "," not in first), None)
    if separator is not None:
        raise InputError(f"{path}: its columns are separated by {separator!r}; separate them by commas")


def find_label_column(path: Path, header: Sequence[str], wanted: str | None) -> str | None:
    """Return the name of the label column: the ``wanted`` one, or `label` if there is one."""
    if wanted is not None:
        if wanted not in header:
            raise InputError(f"{path}: --label-column: {unknown('column', wanted, header)}")
        return wanted
    found = [name for name in header if name.lower() == "label"]
    if len(found) > 1:
        raise InputError(f"{path}: columns {' and '.join(found)}; say which holds the labels with --label-column")
    return found[0] if found else None


def check_filled(path: Path, columns: Columns) -> None:
    """Refuse empty cells, naming row and column."""
    for name, cells in columns.items():
        empty = next((i for i, cell in enumerate(cells) if cell is None or cell == ""), None)
        if empty is not None:
            raise InputError(f"{path}, row {empty}: the column '{name}' is empty; fill it, or remove the column")


def rows_by_split(path: Path, cells: Sequence[Any]) -> dict[str, Array]:
    """Return the rows of each split, in the order of the splits' names; `train` is there even if it has none."""
    splits = np.array(cells, np.str_)
    wrong = ~(np.isin(splits, ("train", "val")) | np.char.startswith(splits, "test"))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"{path}, row {row}: split '{splits[row]}'; must be train, val or test (or test2, ...); rename the column "
            "if it is no split"
        )
    return {split: (splits == split).nonzero()[0] for split in sorted({"train", *splits.tolist()})}


def label_cells(cells: Sequence[Any]) -> list[Any]:
    """Return labels with "" for those that are missing, in whatever way."""
    missing = (cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()) for cell in cells)
    return ["" if empty else cell for cell, empty in zip(cells, missing, strict=True)]
