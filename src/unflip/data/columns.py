"""Tables in .csv, .parquet and .jsonl files: how they are read, and which of their columns have a role."""

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unflip.data.arrays import Array
from unflip.errors import InputError, unknown

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, list[Any]]
TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
TEXT = "text"
"""The name of the only column of text data that is not a table."""
_LARGEST_BLOCK = 2**31 - 1  # bytes that pyarrow can parse at once


@dataclass(frozen=True)
class Table:
    """Rows of a table without its labels and ids (numbers, categories, dates, texts, missing values), to be encoded."""

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
        """Return an array (n, columns) as a table with these column names."""
        import pyarrow as pa

        if rows.shape[1:] != (len(names),):
            raise InputError(f"{what}: examples of shape {rows.shape[1:]}, the model takes {len(names)} columns")
        return cls(pa.table({name: rows[:, place] for place, name in enumerate(names)}))

    def numbers(self, what: str) -> Array:
        """Return the table as an array (n, columns); every column must be numeric, without missing values."""
        import pyarrow as pa

        try:
            columns = [column.cast(pa.float64()) for column in self.table.columns]
        except pa.ArrowException as error:
            raise InputError(f"{what}: the model takes numbers only, but not all columns are ({error})") from error
        for name, column in zip(self.table.column_names, columns, strict=True):
            if column.null_count:
                raise InputError(f"{what}: missing values in column '{name}'; fill them")
        return np.column_stack([column.to_numpy() for column in columns])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns, before encoding."""
        return self.table.num_rows, self.table.num_columns


def read_table(path: Path, what: str, as_text: Collection[str] | None = None) -> "pa.Table":
    """Read a .csv, .parquet or .jsonl file; columns of a .csv that are named ``as_text`` are not parsed: 007 is not 7.

    Args:
        path: the file.
        what: the name of the table in errors.
        as_text: columns of a .csv to read as strings; by default all of them.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise InputError(f"{what}: cannot read '{path.suffix}'; must be .csv, .parquet or .jsonl")
    try:
        if suffix == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                return file.read()
        # In one block, since a row may be longer than the default block.
        size = min(path.stat().st_size + 1, _LARGEST_BLOCK)
        if suffix == ".jsonl":
            return pa.json.read_json(path, pa.json.ReadOptions(block_size=size))
        header = column_names(path, what)
        strings = header if as_text is None else as_text
        table = pa.csv.read_csv(
            path,
            pa.csv.ReadOptions(block_size=size),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(column_types=dict.fromkeys(strings, pa.string())),
        )
        last = [cell for row in table.slice(max(0, len(table) - 1)).to_pylist() for cell in row.values()]
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise InputError(f"{what}: {getattr(error, 'strerror', None) or f'not a readable table ({error})'}") from error
    if any(isinstance(cell, str) and "\n" in cell for cell in last) and path.read_bytes().count(b'"') % 2:
        raise InputError(f"{what}: a quote in row {len(table) - 1} is never closed; close it, or double it")
    return table


def column_names(path: Path, what: str = "") -> list[str]:
    """Return the column names of a .csv or .parquet file without reading its rows.

    Raises InputError for a .csv that is not separated by commas.
    """
    import pyarrow.parquet

    try:
        if path.suffix.lower() == ".parquet":
            return list(pyarrow.parquet.read_schema(path).names)
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:  # the rows may be ignored
            header = next((row for row in csv.reader(file) if row), [])
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{what or path}: {getattr(error, 'strerror', None) or f'not a readable table ({error})'}"
        ) from error
    separator = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    if separator is not None:
        raise InputError(f"{what or path}: columns are separated by {separator!r}; separate them by commas")
    return header


def decode_text(table: "pa.Table", what: str) -> "pa.Table":
    """Return a table with binary columns as text; raise InputError for text that is not UTF-8."""
    import pyarrow as pa
    import pyarrow.types as types

    for place, field in enumerate(table.schema):
        try:
            if types.is_binary(field.type) or types.is_large_binary(field.type):
                table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
            else:
                table.column(place).validate(full=True)
        except pa.ArrowException as error:
            raise InputError(f"{what}, column '{field.name}': not text in UTF-8; convert it or ignore it") from error
    return table


def read_columns(path: Path, names: Collection[str], what: str) -> tuple[Columns, list[str]]:
    """Read columns by name, in lower case.

    Args:
        path: a .csv, .parquet or .jsonl file; cells of a .csv are strings, others keep their types.
        names: the columns to return, where the table has them.
        what: the name of the table in errors.

    Returns:
        The cells by column, and the names of all columns.
    """
    table = read_table(path, what)
    header = [name.strip().lower() for name in table.column_names]
    present = [place for place, name in enumerate(header) if name in names]
    if twice := {header[place] for place in present if header.count(header[place]) > 1}:
        raise InputError(f"{what}: two columns '{min(twice)}'; rename one of them")
    chosen = decode_text(table.select(present), what)
    columns = {header[place]: column.to_pylist() for place, column in zip(present, chosen.columns, strict=True)}
    return {
        name: [cell.strip() if isinstance(cell, str) else cell for cell in cells] for name, cells in columns.items()
    }, header


def find_label_column(path: Path, header: Sequence[str], name: str | None) -> str | None:
    """Return the label column: the one called ``name`` or, by default, `label` in any case; None without one."""
    if name is not None:
        if name not in header:
            raise InputError(f"{path}: --label-column: {unknown('column', name, header)}")
        return name
    matches = [column for column in header if column.lower() == "label"]
    if len(matches) > 1:
        raise InputError(f"{path}: columns {' and '.join(matches)}; choose one with --label-column")
    return matches[0] if matches else None


def check_filled(path: Path, columns: Columns) -> None:
    """Raise InputError for a missing value, with its row and column."""
    for name, cells in columns.items():
        row = next((i for i, cell in enumerate(cells) if cell is None or cell == ""), None)
        if row is not None:
            raise InputError(f"{path}, row {row}: column '{name}' is empty; fill it, or remove the column")


def rows_by_split(path: Path, cells: Sequence[Any]) -> dict[str, Array]:
    """Return the rows of each split, sorted by its name; `train` is always there, even without rows."""
    splits = np.array(cells, np.str_)
    wrong = ~(np.isin(splits, ("train", "val")) | np.char.startswith(splits, "test"))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{path}, row {row}: split '{splits[row]}'; must be train, val or test (or test2, ...)")
    return {split: (splits == split).nonzero()[0] for split in sorted({"train", *splits.tolist()})}
