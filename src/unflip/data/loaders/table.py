"""Tables with one row per example: `table` has the features in columns, `manifest` the paths of images."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from unflip.data.annotations import annotate_columns
from unflip.data.arrays import Array, refuse_rows
from unflip.data.columns import TABLE_SUFFIXES, Table, column_names, decode_text, first_cells, read_columns, read_table
from unflip.data.dataset import Dataset, Inputs, Split
from unflip.data.files import ImageFiles, as_names, is_image
from unflip.data.images import IMAGENET
from unflip.data.labels import declared_classes, find_label_column, numbers_or_names
from unflip.data.loaders import FOR_CELLS, FOR_IMAGE_FILES, FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError, unknown

_LISTED = 20  # columns that an error lists
_TEXT = ("id", "ID", "Id", "label", "Label", "LABEL")  # never parsed as numbers
_CLEAN_VAL = "clean-val"  # the split of validation examples whose labels are known to be right
_INDEX = ("", "__index_level_0__", "Unnamed: 0")  # names that pandas gives to its index


class TableLoader(Loader):
    """A .csv, .parquet or .jsonl file.

    All columns are features, except the label, ``split``, ``id``, the index of pandas and ``data.groups``.
    """

    general = True
    uses = FOR_ROWS | FOR_CELLS | {"label_column", "ignore", "columns", "annotator_columns"}

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether ``path`` is a table; manifests are recognized first."""
        return path.suffix.lower() in TABLE_SUFFIXES and path.is_file()

    def load(self, path: Path, options: DataOptions) -> Dataset:
        """Read the table and find the roles of its columns."""
        as_text = {*_TEXT, options.label_column, options.groups, *options.annotator_columns}
        as_text -= {None, *(options.columns or ())}
        table = read_table(path, str(path), [name for name in as_text if name is not None])
        header = table.column_names
        label = find_label_column(path, header, options.label_column)
        typed = {*options.numeric, *options.categorical, *options.text_column}
        _check_roles(path, header, label, typed, options)
        features = typed | {*options.ignore, *(options.columns or ())}
        split = next((name for name in header if name.lower() == "split" and name not in features), None)
        indices = _index_columns(table, {label, split, *(options.columns or ()), *typed})
        groups = options.groups if options.groups in header else None
        by = options.annotator_columns
        others = {name for name in (label, split, groups, *indices[:1], *by) if name is not None}
        excluded = {*others, *indices, *options.ignore}
        columns = list(options.columns or (name for name in header if name not in excluded))
        if not columns:
            raise InputError(f"{path}: no column besides the label")
        table = decode_text(table.select(list(dict.fromkeys([*columns, *others]))), str(path))
        cells = {name: table[name].to_pylist() for name in others}
        ids: Sequence[object] | None = cells[indices[0]] if indices else None
        if ids is None and split is not None:  # rows are numbered before the table is split
            ids = range(len(table))
        roles = _Roles(label, split, groups, None if ids is None else _strings(ids), by)
        return _build(path, Table(table.select(columns)), cells, roles, header, options.class_names)


class Manifest(Loader):
    """A .csv or .parquet file ``path,label[,split]`` of images; paths are relative to the file's folder.

    A column ``path`` of something else, such as the pages of a web log, is one of a table.
    """

    general = True
    uses = FOR_IMAGE_FILES | {"label_column", "annotator_columns"}

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether the first cells in a column ``path`` are files or names of images; not if it is used in a table."""
        in_table = {*options.ignore, *options.numeric, *options.categorical, *options.text_column}
        if path.suffix.lower() not in (".csv", ".parquet") or not path.is_file() or options.columns is not None:
            return False
        try:
            column = next((name for name in column_names(path) if name.strip().lower() == "path"), None)
            if column is None or column in in_table:
                return False
            names = [str(cell).strip() for cell in first_cells(path, column)]
        except InputError:  # which the loader of tables will report
            return False
        return all(map(is_image, names)) or any(os.path.isfile(path.parent / name) for name in names)  # noqa: PTH113

    def load(self, path: Path, options: DataOptions) -> Dataset:
        """List the images; they are not opened."""
        name = None if options.label_column is None else options.label_column.lower()
        groups = (options.groups or "").lower()
        by = {column.lower(): column for column in options.annotator_columns}
        cells, header = read_columns(path, ("path", "split", name or "label", groups, *by), str(path))
        if "path" not in cells:
            raise InputError(f"{path}: no column 'path' among {', '.join(header)}")
        names = as_names([str(cell) for cell in cells["path"]])
        files = ImageFiles(path.parent, names, path, np.arange(len(names)))
        split = "split" if "split" in cells else None
        group_column = groups if groups in cells else None
        cells |= {column: cells.pop(key) for key, column in by.items() if key in cells}
        roles = _Roles(find_label_column(path, header, name), split, group_column, names, options.annotator_columns)
        return _build(path, files, cells, roles, header, options.class_names)


class _Roles(NamedTuple):
    """The columns of labels, splits and groups, the names of the examples, and the columns of annotators."""

    label: str | None
    split: str | None
    groups: str | None
    ids: Array | None
    annotators: tuple[str, ...]


def _build(
    path: Path, inputs: Inputs, cells: dict[str, Any], roles: _Roles, header: Sequence[str], names: tuple[str, ...]
) -> Dataset:
    """Return the rows of a table by split, with their labels, ids and groups."""
    listed = ", ".join(header[:_LISTED]) + (", ..." if len(header) > _LISTED else "")
    labels, classes, unlabeled = None, None, f"no column 'label' among {listed}; choose one with --label-column"
    if roles.label is not None:
        given, classes = cells.pop(roles.label), declared_classes(path, roles.label)
        labels = _labels(given if classes is None else _named(path, given, classes), names or classes or ())
        unlabeled = f"column '{roles.label}' is empty"
    if stray := [name for name in roles.annotators if name not in cells]:
        raise InputError(f"{path}: --annotator-columns: {unknown('column', stray[0], header)}")
    annotations = {name: cells.pop(name) for name in roles.annotators}
    _check_filled(path, cells)
    groups = None if roles.groups is None else _strings(cells[roles.groups])
    whole = Split(inputs, labels, ids=roles.ids, groups=groups, rows=np.arange(len(inputs)))
    splits = ["train"] * len(inputs) if roles.split is None else cells[roles.split]
    rows = _rows_by_split(path, ["val" if split == _CLEAN_VAL else split for split in splits])
    normalization = IMAGENET if isinstance(inputs, ImageFiles) else None
    data = Dataset(
        whole,
        class_names=classes,
        normalization=normalization,
        clean_val=_CLEAN_VAL in splits,
        unlabeled=unlabeled,
        label_column=roles.label,
    )
    if annotations:
        data = annotate_columns(data, annotations, names or classes or (), str(path))
    return data.with_parts({name: data.train[part] for name, part in rows.items()})


def _check_filled(path: Path, columns: dict[str, Any]) -> None:
    """Raise InputError for a missing value, with its row and column."""
    for name, cells in columns.items():
        row = next((i for i, cell in enumerate(cells) if cell is None or cell == ""), None)
        if row is not None:
            raise InputError(f"{path}, row {row}: column '{name}' is empty; fill it, or remove the column")


def _rows_by_split(path: Path, cells: Sequence[Any]) -> dict[str, Array]:
    """Return the rows of each split, sorted by its name; `train` is always there, even without rows."""
    splits = np.array(cells, np.str_)
    wrong = ~(np.isin(splits, ("train", "val")) | np.char.startswith(splits, "test"))
    allowed = "train, val, clean-val or test (or test2, ...)"
    refuse_rows(wrong, str(path), lambda row: f"split '{splits[row]}'; must be {allowed}")
    return {split: (splits == split).nonzero()[0] for split in sorted({"train", *splits.tolist()})}


def _check_roles(
    path: Path, header: Sequence[str], label: str | None, typed: Collection[str], options: DataOptions
) -> None:
    """Raise InputError for columns that are unknown, not unique, or both label and feature."""
    if (twice := next((name for name in header if header.count(name) > 1), None)) is not None:
        raise InputError(f"{path}: two columns '{twice}'; rename one of them")
    by = options.annotator_columns
    for what, names in (("--ignore: ", options.ignore), ("--annotator-columns: ", by), ("", options.columns or ())):
        if (stray := next((name for name in names if name not in header), None)) is not None:
            raise InputError(f"{path}: {what}{unknown('column', stray, header)}")
    if label is not None and label in {*typed, *options.ignore}:
        raise InputError(f"{path}: column '{label}' holds the labels; choose another with --label-column")


def _index_columns(table: pa.Table, others: Collection[str | None]) -> list[str]:
    """Return the columns besides ``others`` that identify rows: `id`, the index of pandas, `index`, in this order."""
    names = [name for name in table.column_names if name not in others]
    by_pandas = (table.schema.pandas_metadata or {}).get("index_columns", [])
    ids = [name for name in names if name.lower() == "id"]
    unnamed = [name for name in names if name in _INDEX and not pa.types.is_floating(table[name].type)]
    whole = [name for name in names if name.lower() == "index" and pa.types.is_integer(table[name].type)]
    unique = [name for name in whole if len(table[name].unique()) == len(table)]
    return list(dict.fromkeys([*ids, *unnamed, *(name for name in names if name in by_pandas or name in unique)]))


def _named(path: Path, cells: Sequence[Any], classes: Sequence[str]) -> list[Any]:
    """Return the names of numbered classes; -1, which Hugging Face's library writes for no label, becomes None."""
    wrong = next((i for i, cell in enumerate(cells) if type(cell) is int and not -1 <= cell < len(classes)), None)
    if wrong is not None:
        raise InputError(f"{path}, row {wrong}: label {cells[wrong]}, but the file declares {len(classes)} classes")
    return [cell if type(cell) is not int else None if cell < 0 else classes[cell] for cell in cells]


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
