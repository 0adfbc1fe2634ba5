"""Tables: a CSV, Parquet or JSON-lines file with one row per example and a column of labels."""

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unflip.data.arrays import Array
from unflip.data.columns import (
    Table,
    check_filled,
    check_separator,
    decode_binary,
    find_label_column,
    label_cells,
    read_parquet,
    rows_by_split,
)
from unflip.data.dataset import Dataset, Split
from unflip.data.labels import numbers_or_names
from unflip.data.loaders import FOR_CELLS, FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError, UnflipWarning, unknown
from unflip.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES = (".csv", ".jsonl", ".parquet")
_LISTED = 20  # most columns that an error lists
_TEXT = ("id", "ID", "Id", "label", "Label", "LABEL")  # what is never a number, however it looks
_BLOCK, _LARGEST_BLOCK = 1 << 20, (1 << 31) - 1  # bytes that pyarrow reads at a time, and may read
_INDEX = ("", "__index_level_0__", "Unnamed: 0")  # what pandas calls its index in .csv and .parquet files


class TableLoader(Loader):
    """All columns describe the example, except the label, ``split``, ``id`` and ``data.groups``."""

    general = True
    uses = FOR_ROWS | FOR_CELLS | {"label_column", "ignore", "columns"}

    def recognizes(self, path: Path) -> bool:
        """Whether ``path`` is a table; the loader of manifests is tried first."""
        return path.suffix.lower() in _SUFFIXES and path.is_file()

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """Read the table and tell its columns apart: label, id, split, group, and those that describe the example."""
        table, header = _read(path, options)
        label = find_label_column(path, header, options.label_column)
        asked = {*options.numeric, *options.categorical, *options.text_column}
        _check_roles(path, header, label, asked, options)
        features = asked | {*options.ignore, *(options.columns or ())}
        split_column = next((name for name in header if name.lower() == "split" and name not in features), None)
        counting = _counting(table, {label, split_column, *(options.columns or ()), *asked})
        indices = [name for name in header if name.lower() == "id" and name not in asked]
        indices += [name for name in header if name in _INDEX and name not in asked] + counting
        id_column = indices[0] if indices else None
        group_column = options.groups if options.groups in header else None
        others = {name for name in (label, id_column, split_column, group_column) if name is not None}
        aside = others | {*indices, *options.ignore}
        columns = options.columns or tuple(name for name in header if name not in aside)
        if options.columns is None and (left := [name for name in counting if name not in options.ignore]):
            warnings.warn(
                f"{path}: the index {_listed(left)} is not used as a feature; rename the column if it is one",
                UnflipWarning,
                stacklevel=2,
            )
        if not columns:
            raise InputError(f"{path}: no column besides the label, so nothing to learn from")
        unlabeled = (
            f"no column 'label', nor 'path' of images; it has {_listed(header)}: say which is the label with "
            "--label-column"
        )
        cells = {name: table[name].to_pylist() for name in others}
        given = None if label is None else label_cells(cells.pop(label))
        check_filled(path, cells)
        if given and all(cell == "" for cell in given):
            given, unlabeled = None, f"the column '{label}' is empty"
        ids = None
        if id_column is not None or split_column is not None:  # else an example is called by its row anyway
            ids = _text(range(len(table)) if id_column is None else cells[id_column])
        whole = Split(
            Table(table.select(columns)),
            None if given is None else _labels(given, options.class_names),
            ids=ids,
            groups=None if group_column is None else _text(cells[group_column]),
        )
        splits = rows_by_split(path, ["train"] * len(table) if split_column is None else cells[split_column])
        return Dataset(whole, unlabeled=unlabeled, label_column=label).with_parts(
            {split: whole[rows] for split, rows in splits.items()}
        )


def _check_roles(
    path: Path, header: Sequence[str], label: str | None, asked: Collection[str], options: DataOptions
) -> None:
    """Refuse columns that are there twice, or not at all, or are to be both the label and something else."""
    if (twice := next((name for name in header if header.count(name) > 1), None)) is not None:
        raise InputError(f"{path}: two columns '{twice}'; rename one of them")
    for option, names in (("--ignore", options.ignore), ("data.columns", options.columns or ())):
        if (stray := next((name for name in names if name not in header), None)) is not None:
            raise InputError(f"{path}: {option}: {unknown('column', stray, header)}")
    if label is not None and label in {*asked, *options.ignore}:
        raise InputError(f"{path}: the column '{label}' holds the labels; name another with --label-column")


def _counting(table: "pa.Table", others: Collection[str | None]) -> list[str]:
    """Return columns besides ``others`` that number the rows: an index that pandas named, and `index`."""
    import pyarrow.types as types

    by_pandas = (table.schema.pandas_metadata or {}).get("index_columns", [])
    return [
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name not in others
        and name not in _INDEX
        and name.lower() != "id"
        and (
            name in by_pandas
            or (name.lower() == "index" and types.is_integer(column.type) and len(column.unique()) == len(column))
        )
    ]


def _read(path: Path, options: DataOptions) -> tuple["pa.Table", list[str]]:
    """Read a table; labels, ids and groups of a .csv stay as they are written: 007 is not 7."""
    import pyarrow

    if path.suffix.lower() == ".csv":
        check_separator(path)
    try:
        content = read_parquet(path) if path.suffix.lower() == ".parquet" else _read_text(path, options)
        header = content.column_names
        unused = options.ignore if options.columns is None else {*header} - {*options.columns}
        content = decode_binary(content, unused, str(path))
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: not a readable table ({error})") from error
    return content, header


def _read_text(path: Path, options: DataOptions) -> "pa.Table":
    """Read a .csv or .jsonl; in one block where blocks fail, for a cell may be longer than one.

    That also makes the row true that an error of JSON names, which counts from the beginning of a block.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json

    def read(size: int | None) -> pa.Table:
        if path.suffix.lower() == ".jsonl":
            return pa.json.read_json(path, pa.json.ReadOptions(block_size=size))
        as_text = {*_TEXT, options.label_column, options.groups} - {None, *(options.columns or ())}
        return pa.csv.read_csv(
            path,
            pa.csv.ReadOptions(block_size=size),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(column_types=dict.fromkeys(as_text, pa.string())),
        )

    whole = path.stat().st_size + 1
    try:
        content = read(None)
    except pa.ArrowInvalid:
        if not _BLOCK < whole < _LARGEST_BLOCK:
            raise
        content = read(whole)
    if path.suffix.lower() == ".csv":
        _check_last_row(path, content)
    return content


def _check_last_row(path: Path, content: "pa.Table") -> None:
    """Refuse a table whose last cell goes on over the following lines, for want of a closing quote."""
    last = [cell for row in content.slice(max(0, len(content) - 1)).to_pylist() for cell in row.values()]
    if any(isinstance(cell, str) and "\n" in cell for cell in last) and path.read_bytes().count(b'"') % 2:
        raise InputError(f"{path}: a quote in row {len(content) - 1} is never closed; close it, or double it")


def _labels(cells: list[object], names: tuple[str, ...]) -> Array:
    """Return numbers as they are, unless all are among the declared ``names`` of classes; anything else as text."""
    if cells and all(isinstance(cell, int | float) for cell in cells) and not {*map(str, cells)} <= {*names}:
        return np.array(cells)
    return numbers_or_names([str(cell).strip() for cell in cells], names)


def _text(cells: Sequence[object]) -> Array:
    return np.array([str(cell) for cell in cells], np.str_)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


table = TableLoader()
