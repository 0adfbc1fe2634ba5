"""Columns by name from tables (.csv, .parquet and .jsonl files), and checks of label and split columns."""

import csv
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unflip.data.files.arrays import Array
from unflip.errors import InputError, unknown

Columns = dict[str, list[Any]]


def read_columns(path: Path, wanted: Collection[str], what: str) -> tuple[Columns, list[str]]:
    """Return those of the ``wanted`` columns that a table has, and the names of all that it has.

    Cells of a .csv are strings, those of other files keep their types. Names are compared in lower case. Errors call
    the table ``what``.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{what}: cannot read '{path.suffix}'; give .csv, .parquet or .jsonl")
    try:
        return reader(path, wanted, what)
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: not a text file in UTF-8 ({error.reason})") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"{what}: {getattr(error, 'strerror', None) or error}") from error


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
        content = pyarrow.parquet.read_table(path, columns=found).to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{what}: not a readable Parquet file ({error})") from error
    return {name.lower(): cells for name, cells in content.items()}, header


def _read_jsonl(path: Path, wanted: Collection[str], what: str) -> tuple[Columns, list[str]]:
    rows = []
    for number, line in enumerate(line for line in path.read_text("utf-8-sig").splitlines() if line.strip()):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{what}, row {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f'{what}, row {number}: must be an object such as {{"index": 3, "label": "cat"}}')
        rows.append({name.lower(): value for name, value in row.items()})
    header = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in header if name in wanted}, header


_READERS: dict[str, Callable[[Path, Collection[str], str], tuple[Columns, list[str]]]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
}


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a .csv or .parquet table, in lower case, without reading its rows."""
    if path.suffix.lower() == ".parquet":
        return [name.lower() for name in _read_parquet(path, (), str(path))[1]]
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [cell.strip().lower() for cell in next((row for row in csv.reader(file) if row), [])]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: not a readable table ({error})") from error


def find_label_column(path: Path, header: Sequence[str], wanted: str | None) -> str | None:
    """Return the name of the label column: the ``wanted`` one, or `label` if there is one."""
    if wanted is not None and wanted not in header:
        raise InputError(f"{path}: --label-column: {unknown('column', wanted, header)}")
    if wanted is not None:
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
            raise InputError(f"{path}, row {empty}: the column '{name}' is empty")


def rows_by_split(path: Path, cells: Sequence[Any]) -> dict[str, Array]:
    """Return the rows of each split, in the order of the splits' names; there must be some to train on."""
    splits = np.array(cells, np.str_)
    wrong = ~(np.isin(splits, ("train", "val")) | np.char.startswith(splits, "test"))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{path}, row {row}: split '{splits[row]}'; must be train, val or test (or test2, ...)")
    found = {split: (splits == split).nonzero()[0] for split in sorted(set(splits.tolist()))}
    if "train" not in found:
        raise InputError(f"{path}: no row {'of split train' if found else 'in it'}; nothing to train on")
    return found
