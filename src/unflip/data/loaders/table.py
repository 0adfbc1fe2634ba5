"""Tables with one row per example: `table` has the features in columns, `manifest` the paths of images."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unflip.data.arrays import Array
from unflip.data.columns import (
    TABLE_SUFFIXES,
    Columns,
    Table,
    check_filled,
    column_names,
    decode_text,
    find_label_column,
    read_columns,
    read_table,
    rows_by_split,
)
from unflip.data.dataset import Dataset, Inputs, Split
from unflip.data.files import ImageFiles, as_names
from unflip.data.images import IMAGENET
from unflip.data.labels import numbers_or_names
from unflip.data.loaders import FOR_CELLS, FOR_IMAGE_FILES, FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError, unknown
from unflip.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

_LISTED = 20  # columns that an error lists
_TEXT = ("id", "ID", "Id", "label", "Label", "LABEL")  # never parsed as numbers
_INDEX = ("", "__index_level_0__", "Unnamed: 0")  # names that pandas gives to its index


class TableLoader(Loader):
    """A .csv, .parquet or .jsonl file.

    All columns are features, except the label, ``split``, ``id``, the index of pandas and ``data.groups``.
    """

    general = True
    uses = FOR_ROWS | FOR_CELLS | {"label_column", "ignore", "columns"}

    def recognizes(self, path: Path) -> bool:
        """Whether ``path`` is a table; manifests are recognized first."""
        return path.suffix.lower() in TABLE_SUFFIXES and path.is_file()

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """Read the table and find the roles of its columns."""
        as_text = {*_TEXT, options.label_column, options.groups} - {None, *(options.columns or ())}
        table = read_table(path, str(path), [name for name in as_text if name is not None])
        header = table.column_names
        label = find_label_column(path, header, options.label_column)
        typed = {*options.numeric, *options.categorical, *options.text_column}
        _check_roles(path, header, label, typed, options)
        features = typed | {*options.ignore, *(options.columns or ())}
        split = next((name for name in header if name.lower() == "split" and name not in features), None)
        indices = _index_columns(table, {label, split, *(options.columns or ()), *typed})
        groups = options.groups if options.groups in header else None
        roles = {name for name in (label, split, groups, *indices[:1]) if name is not None}
        excluded = {*roles, *indices, *options.ignore}
        columns = list(options.columns or (name for name in header if name not in excluded))
        if not columns:
            raise InputError(f"{path}: no column besides the label")
        table = decode_text(table.select(list(dict.fromkeys([*columns, *roles]))), str(path))
        cells = {name: table[name].to_pylist() for name in roles}
        ids: Sequence[object] | None = cells[indices[0]] if indices else None
        if ids is None and split is not None:  # rows are numbered before the table is split
            ids = range(len(table))
        return _build(
            path,
            Table(table.select(columns)),
            cells,
            options,
            label=label,
            split=split,
            groups=groups,
            ids=None if ids is None else _strings(ids),
            header=header,
        )


class Manifest(Loader):
    """A .csv or .parquet file ``path,label[,split]`` of images; paths are relative to the file's folder."""

    general = True
    uses = FOR_IMAGE_FILES | {"label_column"}

    def recognizes(self, path: Path) -> bool:
        """Whether ``path`` is a .csv or .parquet file with a column ``path``."""
        if path.suffix.lower() not in (".csv", ".parquet") or not path.is_file():
            return False
        try:
            return "path" in [name.strip().lower() for name in column_names(path)]
        except InputError:  # which the loader of tables will report
            return False

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """List the images; they are not opened."""
        name = None if options.label_column is None else options.label_column.lower()
        groups = (options.groups or "").lower()
        cells, header = read_columns(path, ("path", "split", name or "label", groups), str(path))
        if "path" not in cells:
            raise InputError(f"{path}: no column 'path' among {', '.join(header)}")
        names = as_names([str(cell) for cell in cells["path"]])
        return _build(
            path,
            ImageFiles(path.parent, names, path, np.arange(len(names))),
            cells,
            options,
            label=find_label_column(path, header, name),
            split="split" if "split" in cells else None,
            groups=groups if groups in cells else None,
            ids=names,
            header=header,
        )


def _build(
    path: Path,
    inputs: Inputs,
    cells: Columns,
    options: DataOptions,
    *,
    label: str | None,
    split: str | None,
    groups: str | None,
    ids: Array | None,
    header: Sequence[str],
) -> Dataset:
    """Return the rows of a table by split, with their labels, ids and groups."""
    listed = ", ".join(header[:_LISTED]) + (", ..." if len(header) > _LISTED else "")
    labels, unlabeled = None, f"no column 'label' among {listed}; choose one with --label-column"
    if label is not None:
        labels, unlabeled = _labels(cells.pop(label), options.class_names), f"column '{label}' is empty"
    check_filled(path, cells)
    whole = Split(inputs, labels, ids=ids, groups=None if groups is None else _strings(cells[groups]))
    rows = rows_by_split(path, ["train"] * len(inputs) if split is None else cells[split])
    return Dataset(
        whole,
        normalization=IMAGENET if isinstance(inputs, ImageFiles) else None,
        unlabeled=unlabeled,
        label_column=label,
    ).with_parts({name: whole[part] for name, part in rows.items()})


def _check_roles(
    path: Path, header: Sequence[str], label: str | None, typed: Collection[str], options: DataOptions
) -> None:
    """Raise InputError for columns that are unknown, not unique, or both label and feature."""
    if (twice := next((name for name in header if header.count(name) > 1), None)) is not None:
        raise InputError(f"{path}: two columns '{twice}'; rename one of them")
    for option, names in (("--ignore", options.ignore), ("data.columns", options.columns or ())):
        if (stray := next((name for name in names if name not in header), None)) is not None:
            raise InputError(f"{path}: {option}: {unknown('column', stray, header)}")
    if label is not None and label in {*typed, *options.ignore}:
        raise InputError(f"{path}: column '{label}' holds the labels; choose another with --label-column")


def _index_columns(table: "pa.Table", others: Collection[str | None]) -> list[str]:
    """Return the columns besides ``others`` that identify rows: `id`, the index of pandas, `index`, in this order."""
    names = [name for name in table.column_names if name not in others]
    by_pandas = (table.schema.pandas_metadata or {}).get("index_columns", [])
    groups = (
        [name for name in names if name.lower() == "id"],
        [name for name in names if name in _INDEX],
        [name for name in names if name in by_pandas or (name.lower() == "index" and _is_unique(table[name]))],
    )
    return list(dict.fromkeys(name for group in groups for name in group))


def _is_unique(column: "pa.ChunkedArray") -> bool:
    return str(column.type).startswith(("int", "uint")) and len(column.unique()) == len(column)


def _labels(cells: Sequence[Any], names: tuple[str, ...]) -> Array | None:
    """Return labels as numbers, unless all are declared ``names``, or as text, "" where missing; None if all are."""
    texts = ["" if cell is None or cell != cell else str(cell).strip() for cell in cells]
    if texts and not any(texts):
        return None
    if "" not in texts and all(isinstance(cell, int | float) for cell in cells) and not {*texts} <= {*names}:
        return np.array(cells)
    return numbers_or_names(texts, names)


def _strings(cells: Sequence[object]) -> Array:
    return np.array([str(cell) for cell in cells], np.str_)


table = TableLoader()
manifest = Manifest()
