"""Tables: a CSV, Parquet or JSON-lines file with one row per example and a column of labels."""

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unflip.data.cells import Cells
from unflip.data.files.arrays import Array
from unflip.data.files.columns import (
    check_csv,
    check_filled,
    decode_binary,
    find_label_column,
    label_cells,
    rows_by_split,
    why_untrainable,
)
from unflip.data.files.labels import numbers_or_names
from unflip.data.loader import FOR_CELLS, FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.errors import InputError, UnflipWarning, unknown
from unflip.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES = (".csv", ".jsonl", ".parquet")
_LISTED = 20  # most columns that an error lists
_TEXT = ("id", "ID", "Id", "label", "Label", "LABEL")  # what is never a number, however it looks
_INDEX = ("", "__index_level_0__", "Unnamed: 0")  # what pandas calls its index in .csv and .parquet files


class Table(Loader):
    """All columns describe the example, except the label, ``split``, ``id`` and ``data.groups``."""

    general = True
    uses = FOR_ROWS | FOR_CELLS | {"label_column", "ignore", "columns"}

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is a table; the loader of manifests is tried first."""
        return path.suffix.lower() in _SUFFIXES and path.is_file()

    def load(self, path: Path, options: DataOptions, own: Options) -> RawData:
        """Read the table."""
        table, header = _read(path, options)
        if (twice := next((name for name in header if header.count(name) > 1), None)) is not None:
            raise InputError(f"{path}: two columns '{twice}'; rename one of them")
        if (stray := next((name for name in options.ignore if name not in header), None)) is not None:
            raise InputError(f"{path}: --ignore: {unknown('column', stray, header)}")
        label = find_label_column(path, header, options.label_column)
        if label in options.ignore:
            raise InputError(f"{path}: --ignore {label}: it holds the labels; name another column with --label-column")
        split_column = next((name for name in header if name.lower() == "split"), None)
        asked = {*options.numeric, *options.categorical, *options.text_column}
        if label in asked:
            raise InputError(f"{path}: the column '{label}' holds the labels, so it cannot be a feature as well")
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
        if (missing := next((name for name in columns if name not in header), None)) is not None:
            raise InputError(f"{path}: no column '{missing}'; it has {_listed(header)}")
        unlabelled = (
            f"no column 'label', nor 'path' of images; it has {_listed(header)}: say which is the label with "
            "--label-column"
        )
        if not columns:
            raise InputError(f"{path}: no column besides the label, so nothing to learn from")
        examples = Cells(table.select(columns))
        cells = {name: table[name].to_pylist() for name in others}
        given = None if label is None else label_cells(cells.pop(label))
        check_filled(path, cells)
        if given and all(cell == "" for cell in given):
            given, unlabelled = None, f"the column '{label}' is empty"
        labels = None if given is None else _labels(given, options.class_names)
        ids = None
        if id_column is not None or split_column is not None:  # else an example is called by its row anyway
            names = range(len(examples)) if id_column is None else cells[id_column]
            ids = np.array([str(cell) for cell in names], np.str_)
        groups = None if group_column is None else np.array([str(cell) for cell in cells[group_column]], np.str_)
        splits = rows_by_split(path, ["train"] * len(examples) if split_column is None else cells[split_column])
        sets = {
            split: LabelledSet(
                examples[rows],
                None if labels is None else labels[rows],
                ids=None if ids is None else ids[rows],
                groups=None if groups is None else groups[rows],
            )
            for split, rows in splits.items()
        }
        return RawData(
            train=sets.pop("train"),
            val=sets.pop("val", None),
            tests=sets,
            unlabelled=unlabelled,
            untrainable=why_untrainable(splits),
        )


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
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    try:
        if path.suffix.lower() == ".parquet":
            content = pyarrow.parquet.read_table(path)
        elif path.suffix.lower() == ".jsonl":
            content = pyarrow.json.read_json(path)
        else:
            as_text = {*_TEXT, options.label_column, options.groups} - {None, *(options.columns or ())}
            types = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(as_text, pyarrow.string()))
            content = pyarrow.csv.read_csv(path, convert_options=types)
        content = decode_binary(content, options.ignore, str(path))
        header = content.column_names
    except OSError as error:
        raise InputError(f"{path}: not a readable table ({error})") from error
    except (UnicodeDecodeError, pyarrow.ArrowException) as error:
        check_csv(path)
        raise InputError(f"{path}: not a readable table ({error})") from error
    if len(header) == 1:
        check_csv(path)
    return content, header


def _labels(cells: list[object], names: tuple[str, ...]) -> Array:
    """Return numbers as they are, unless all are among the declared ``names`` of classes; anything else as text."""
    if cells and all(isinstance(cell, int | float) for cell in cells) and not {*map(str, cells)} <= {*names}:
        return np.array(cells)
    return numbers_or_names([str(cell).strip() for cell in cells], names)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


table = Table()
