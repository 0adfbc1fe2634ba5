"""Tables in .csv, .parquet and .jsonl files: how they are read, which columns have a role, and rows for pages."""

import csv
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from pyarrow import types

from unflip.data.arrays import Array, unreadable
from unflip.errors import InputError

Columns = dict[str, list[Any]]
Cell = float | str
TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
TEXT = "text"
"""The name of the only column of text data that is not a table."""
_NAMED, _UNNAMED = 200, 24  # columns to show, with and without names
_TILE, _CELL = 8, 120  # columns on a tile, and characters of each
_LONG = 40  # a cell of this many characters is a text, if the columns of texts are unknown
_EXACT = 2**53  # integers up to this are exact as floats
_FIRST = 100  # rows that are looked at to find out what a file holds
_ODD_NUMBER = re.compile(rb'[\n,"](?:0\d|[+-]?\d{1,3}\.\d{3}(?:[\r\n,"]|$))')  # possibly a code or in a local form
_LARGEST_BLOCK = 2**31 - 1  # bytes that pyarrow can parse at once


@dataclass(frozen=True)
class Table:
    """Rows of a table without its labels and ids (numbers, categories, dates, texts, missing values), to be encoded."""

    table: pa.Table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: slice | Array) -> "Table":
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self.table))
            return Table(self.table.slice(start, max(0, stop - start)))
        return Table(self.table.filter(rows) if rows.dtype == bool else self.table.take(rows))

    def cells(self, row: int) -> list[Any]:
        """Return the cells of one row."""
        return [column[row].as_py() for column in self.table.columns]

    @classmethod
    def of_array(cls, rows: Array, names: Sequence[str], what: str) -> "Table":
        """Return an array (n, columns) as a table with these column names."""
        if rows.shape[1:] != (len(names),):
            raise InputError(f"{what}: examples of shape {rows.shape[1:]}, the model takes {len(names)} columns")
        return cls(pa.table({name: rows[:, place] for place, name in enumerate(names)}))

    def numbers(self, what: str) -> Array:
        """Return the table as an array (n, columns); every column must be numeric, without missing values."""
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


def read_table(path: Path, what: str, as_text: Collection[str] | None = None) -> pa.Table:
    """Read a .csv, .parquet or .jsonl file; columns of a .csv that are named ``as_text`` are not parsed: 007 is not 7.

    Args:
        path: the file.
        what: the name of the table in errors.
        as_text: columns of a .csv to read as strings; by default all of them.
    """
    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise InputError(f"{what}: cannot read '{path.suffix}'; must be .csv, .parquet or .jsonl")
    with _readable(path, what):
        if suffix == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                return without_views(file.read())
        if suffix == ".jsonl":
            return pa.json.read_json(path, pa.json.ReadOptions(block_size=_block_size(path.stat().st_size)))
        header = column_names(path, what)
        return _read_csv(path.read_bytes().strip(b"\r\n") + b"\n", header, header if as_text is None else as_text, what)


def _read_csv(content: bytes, header: Sequence[str], strings: Collection[str], what: str) -> pa.Table:
    """Parse a .csv: in a single column a blank line is an empty cell, otherwise blank lines are skipped.

    Numbers with leading zeros, and those that may have a separator of thousands, remain strings, as they are written.
    """

    def parse(texts: Collection[str]) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(content),
            pa.csv.ReadOptions(block_size=_block_size(len(content))),
            pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(header) != 1),
            pa.csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string())),
        )

    table = parse(strings)
    last = [cell for row in table.slice(max(0, len(table) - 1)).to_pylist() for cell in row.values()]
    if any(isinstance(cell, str) and "\n" in cell for cell in last) and content.count(b'"') % 2:
        raise InputError(f"{what}: a quote in row {len(table) - 1} is never closed; close it, or double it")
    if _ODD_NUMBER.search(content):
        numbers = [i for i, kind in enumerate(table.schema.types) if types.is_integer(kind) or types.is_floating(kind)]
        written = parse(table.column_names)
        for place in (place for place in numbers if _is_odd(written.column(place))):
            table = table.set_column(place, table.column_names[place], written.column(place))
    return table


def _is_odd(cells: pa.ChunkedArray) -> bool:
    """Whether one of the numbers has leading zeros, or all may have a separator of thousands: `1.234`."""
    cells = cells.filter(pc.match_substring_regex(cells, r"\d"))
    padded, grouped = (pc.match_substring_regex(cells, text) for text in (r"^0\d+$", r"^[+-]?\d{1,3}\.\d{3}$"))
    return bool(pc.any(padded).as_py() or pc.all(grouped, min_count=1).as_py())


def without_views(table: pa.Table) -> pa.Table:
    """Return a table whose views of strings and bytes, which pyarrow cannot filter, are plain columns."""
    plain = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    for place, field in enumerate(table.schema):
        if str(field.type) in plain:
            table = table.set_column(place, field.name, table.column(place).cast(plain[str(field.type)]))
    return table


def _block_size(size: int) -> int:
    """Return the block to parse, in bytes: everything at once, since a row may be longer than the default block."""
    return min(size + 1, _LARGEST_BLOCK)


def column_names(path: Path, what: str = "") -> list[str]:
    """Return the column names of a .csv or .parquet file without reading all of its rows.

    Raises InputError for a .csv that is not separated by commas.
    """
    if path.suffix.lower() == ".parquet":
        with _readable(path, what):
            return list(pa.parquet.read_schema(path).names)
    rows = _first_rows(path, what)
    header, widths = rows[0], {*map(len, rows)}
    for mark in (mark for mark in ";\t|" if any(mark in cell for cell in header)):
        others = {*map(len, _first_rows(path, what, mark))}
        if len(header) == 1 or (len(others) == 1 and (len(widths) > 1 or max(others) > len(header))):
            raise InputError(f"{what or path}: columns are separated by {mark!r}; separate them by commas")
    return header


def first_cells(path: Path, column: str) -> list[Any]:
    """Return the first cells of a column of a .csv or .parquet file, without empty ones."""
    if path.suffix.lower() != ".parquet":
        header, *rows = _first_rows(path)
        return [row[place] for row in rows if (place := header.index(column)) < len(row) and row[place]]
    with _readable(path), pa.parquet.ParquetFile(path) as file:
        batches = [pa.Table.from_batches([batch]) for batch in islice(file.iter_batches(_FIRST, columns=[column]), 1)]
    return [cell for table in batches for cell in decode_text(table, str(path))[column].to_pylist() if cell]


def _first_rows(path: Path, what: str = "", separator: str = ",") -> list[list[str]]:
    """Return the header and the first rows of a .csv file, up to one that Python's parser takes for broken."""
    rows: list[list[str]] = []
    with _readable(path, what), path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        try:
            rows += islice(filter(None, csv.reader(file, delimiter=separator)), _FIRST + 1)
        except csv.Error:  # such as a cell of more than 131,072 characters
            if not rows:
                raise
    return rows or [[]]


@contextmanager
def _readable(path: Path, what: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        raise unreadable(what or path, "table", error) from error


def decode_text(table: pa.Table, what: str) -> pa.Table:
    """Return a table with binary columns as text; raise InputError for text that is not UTF-8."""
    for place, field in enumerate(table.schema):
        try:
            table.column(place).validate(full=True)
            if types.is_binary(field.type) or types.is_large_binary(field.type):
                table = table.set_column(place, field.name, table.column(place).cast(pa.large_string()))
        except pa.ArrowException as error:
            raise InputError(f"{what}, column '{field.name}': not text in UTF-8; convert it or ignore it") from error
    return table


def read_columns(path: Path | pa.Table, names: Collection[str], what: str) -> tuple[Columns, list[str]]:
    """Read columns by name, in lower case.

    Args:
        path: a .csv, .parquet or .jsonl file, or a table; cells of a .csv are strings, others keep their types.
        names: the columns to return, where the table has them.
        what: the name of the table in errors.

    Returns:
        The cells by column, and the names of all columns.
    """
    table = read_table(path, what) if isinstance(path, Path) else path
    header = [name.strip().lower() for name in table.column_names]
    present = [place for place, name in enumerate(header) if name in names]
    if twice := {header[place] for place in present if header.count(header[place]) > 1}:
        raise InputError(f"{what}: two columns '{min(twice)}'; rename one of them")
    chosen = decode_text(table.select(present), what)
    columns: Columns = {}
    for place, column in zip(present, chosen.columns, strict=True):
        columns[header[place]] = [cell.strip() if isinstance(cell, str) else cell for cell in column.to_pylist()]
    return columns, header


@dataclass
class Rows:
    """The values of a run's examples, by row of its labels.

    Attributes:
        row_of: returns the values of an example.
        width: the number of columns.
        names: of the columns; empty if they have none.
        texts: the columns of texts; if unknown, long cells are texts.
        last: columns that tiles show after all others, such as identifiers.
    """

    row_of: Callable[[int], Sequence[Cell]]
    width: int
    names: Sequence[str] = ()
    texts: Sequence[str] | None = None
    last: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._titles = self.names[:_NAMED] or [f"column {i}" for i in range(self.width)][:_UNNAMED]
        self.more_columns = self.width - len(self._titles)
        """The number of columns that are not shown."""

    def values(self, index: int) -> list[tuple[str, Cell]]:
        """Return (name, value) of each column to show: numbers as floats, everything else as text."""
        return list(zip(self._titles, self.row_of(index), strict=False))

    def text(self, index: int) -> str | None:
        """Return the longest text of an example; None without one."""
        named = self.named_text(index)
        return None if named is None else named[1]

    def cells(self, index: int) -> list[tuple[str, str]]:
        """Return (name, value) of the first named columns that are not empty, for tiles; without :meth:`text`."""
        text = self.named_text(index)
        shown = (
            (name, value[:_CELL] if isinstance(value, str) else f"{value:.{15 if value.is_integer() else 6}g}")
            for name, value in zip(self.names, self.row_of(index), strict=False)
            if text is None or name != text[0]
        )
        filled = [(name, value) for name, value in shown if value.strip()]
        return sorted(filled, key=lambda cell: cell[0] in self.last)[:_TILE]

    @property
    def named(self) -> bool:
        """Whether the columns have names."""
        return bool(self.names)

    def words(self, index: int) -> str:
        """Return an example as text: a line ``name: value`` for each column, or the value of a single column."""
        cells = [(name, value if isinstance(value, str) else f"{value:.15g}") for name, value in self.values(index)]
        return cells[0][1] if len(cells) == 1 else "\n".join(f"{name}: {value}" for name, value in cells)

    def named_text(self, index: int) -> tuple[str, str] | None:
        """Return the longest text of an example, after the name of its column; None without one."""
        if self.texts == () or not self.names:
            return None
        length = 0 if len(self.names) == 1 else _LONG
        texts = [
            (name, value)
            for name, value in zip(self.names, self.row_of(index), strict=True)
            if isinstance(value, str) and (len(value) >= length if self.texts is None else name in self.texts)
        ]
        return max(texts, key=lambda cell: len(cell[1]), default=None)


def as_cell(value: object) -> Cell:
    """Return a value to show: numbers as floats, everything else as text."""
    if value is None:
        return ""
    if (type(value) is int and abs(value) <= _EXACT) or (isinstance(value, float) and math.isfinite(value)):
        return float(value)
    return str(value)
