"""Columns by name from tables: .csv, .parquet and .jsonl files."""

import csv
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from unflip.errors import InputError

Columns = dict[str, list[Any]]


def read_columns(path: Path, wanted: Collection[str], what: str) -> tuple[Columns, list[str]]:
    """Return those of the ``wanted`` columns that a table has, and the names of all that it has.

    Cells of a .csv are strings, those of the others what they are there. Names are compared in lower case. Errors call
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
        raise InputError(f"{what}: {getattr(error, 'strerror', None) or error}".replace("\n", " ")) from error


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
        raise InputError(f"{what}: not a readable Parquet file ({error})".replace("\n", " ")) from error
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
