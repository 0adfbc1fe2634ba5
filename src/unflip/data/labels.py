"""Labels: read from files (.npy, .csv, .txt), converted to class numbers; reviewed labels."""

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import Array, decoded, read_array, stripped
from unflip.data.columns import Columns, column_names, read_columns
from unflip.data.files import read_text
from unflip.errors import InputError, unknown

NAMING = ("index", "path", "id")
"""Columns that identify the example of a row."""
LABEL, REMOVE = "label", "remove"
"""Values of the column ``decision``: the example has this label, or is removed."""
_MAX_CLASSES = 1_000_000
_LISTED = 5  # examples without a label that an error lists
_COMPARED = 50  # classes that an error compares with
_REMOVED = -1  # stands for a label
_PANDAS_INDEX = ("", "unnamed: 0")  # the header of pandas' index in a .csv


def read_labels(
    path: Path, ids: Sequence[str] | None = None, names: Sequence[str] = (), count: int | None = None
) -> Array:
    """Read labels from a file, numbers or names, in the order of the examples.

    The rows of a .csv are in this order too, unless its column ``index`` (or the index that pandas writes) or, where
    examples have ``ids``, its column ``path`` or ``id`` identifies the examples; then each must have one row.

    Args:
        path: an .npy, .csv or .txt file; a .csv has a column ``label``, or no header and one column.
        ids: the names of the examples, if they have any.
        names: the names of the classes; numbers are names, where all of them are among these.
        count: the number of examples, if known.
    """
    what = f"labels {path}"
    match path.suffix.lower():
        case ".npy":
            labels = stripped(decoded(read_array(path), what))
            texts = np.unique(labels).astype(np.str_) if labels.dtype.kind in "iu" else np.empty(0)
            return labels.astype(np.str_) if len(texts) and {*texts.tolist()} <= {*names} else labels
        case ".csv":
            cells = _read_label_csv(path, ids, count, what)
        case ".txt":
            cells = [line.strip() for line in read_text(path, what).rstrip().split("\n")]
        case other:
            raise InputError(f"{what}: cannot read '{other}'; must be .npy, .csv or .txt")
    if cells in ([], [""]):
        return np.empty(0, np.int64)
    if "" in cells:
        raise _empty(what, cells.index(""))
    return numbers_or_names(cells, names)


def _read_label_csv(path: Path, ids: Sequence[str] | None, count: int | None, what: str) -> list[str]:
    header = [name.strip().lower() for name in column_names(path)]
    if "label" not in header:
        if len(header) > 1:
            raise InputError(f"{what}: no column 'label' among {', '.join(header)}")
        return [row[0].strip() for row in csv.reader(io.StringIO(read_text(path, what))) if row]
    columns, _ = read_columns(path, (*NAMING, *_PANDAS_INDEX, "label"), what)
    cells = columns.pop("label")
    first = columns.pop(header[0]) if header[0] in _PANDAS_INDEX else None
    if first is not None and "index" not in columns and (ids is None or name_column(columns) is None):
        columns["index" if all(whole_number(cell) is not None for cell in first) else "id"] = first
    if "index" in columns or (name_column(columns) is not None and ids is not None):
        return _in_order(cells, columns, ids, count, what)
    return cells


def _in_order(cells: list[str], columns: Columns, ids: Sequence[str] | None, count: int | None, what: str) -> list[str]:
    """Return labels in the order of the examples; each, up to the last one with a label, must have one row."""
    rows: dict[int, int] = {}
    for row, place in enumerate(find_examples(columns, count or len(cells), ids, what)):
        if rows.setdefault(place, row) != row:
            raise InputError(f"{what}, row {row}: the same example as in row {rows[place]}; keep one of them")
    last = max(rows, default=-1)
    if missing := [place for place in range(last) if place not in rows]:
        named = ", ".join(str(place) if ids is None else f"'{ids[place]}'" for place in missing[:_LISTED])
        raise InputError(f"{what}: no label for {len(missing)} examples such as {named}; every example needs one")
    return [cells[rows[place]] for place in range(last + 1)]


def are_misleading(names: Sequence[str]) -> bool:
    """Whether the name of a class is the number of another one."""
    return any(name.isdecimal() and name != str(number) for number, name in enumerate(names))


def are_names(labels: Array) -> bool:
    """Whether labels are class names rather than numbers."""
    return bool(labels.dtype.kind == "U")


def numbers_or_names(cells: list[str], names: Collection[str] = ()) -> Array:
    """Return numbers if every cell is one and they are not all among the ``names`` of classes, else names."""
    if not all(map(_is_number, cells)) or (names and set(cells) <= set(names)):
        return np.array(cells, dtype=np.str_)
    return np.array([float(cell) for cell in cells])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    digits = cell.strip().lstrip("+-")
    return "_" not in cell and not (digits[:1] == "0" and digits[1:2].isdigit())  # 01 is a name, as is 1_0


def find_classes(
    labels: Array, declared: int | tuple[str, ...] | None, what: str
) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of classes, and their names if they have any: as declared, else from the labels."""
    if isinstance(declared, int):
        return declared, None
    if declared is not None:
        wrong = next((name for name in declared if not name or declared.count(name) > 1), None)
        if wrong is not None:
            raise InputError(f"{what}: class name '{wrong}'; class names must be unique and not empty")
        return len(declared), declared
    if are_names(labels):
        names = tuple(sorted(set(labels.tolist())))
        return len(names), names
    numbers = to_class_numbers(labels, _MAX_CLASSES, None, what)
    return (int(numbers.max()) + 1 if len(numbers) else 0), None


def to_class_numbers(labels: Array, num_classes: int, names: Sequence[str] | None, what: str) -> Tensor:
    """Convert labels to class numbers.

    Args:
        labels: (n,), numbers or names.
        num_classes: k.
        names: of the classes, in order; by default their numbers.
        what: the name of the labels in errors, which name the first wrong row.

    Returns:
        Integers from 0 to k - 1 (n,).
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iufbU":
        raise InputError(f"{what}: shape {labels.shape}, type {labels.dtype}; labels must be (n,), integers or names")
    if are_names(labels):
        return _names_to_numbers(labels, names or list(map(str, range(num_classes))), what)
    values = labels.astype(np.float64) if labels.dtype.kind == "f" else labels.astype(np.int64)
    wrong = ~((values >= 0) & (values < num_classes) & (values == np.floor(values)))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{what}, row {row}: label {labels[row]} is not an integer from 0 to {num_classes - 1}")
    return torch.from_numpy(values.astype(np.int64))


def _names_to_numbers(labels: Array, names: Sequence[str], what: str) -> Tensor:
    composed = {normalize("NFC", name): number for number, name in enumerate(names)}  # macOS decomposes accents
    known = composed | {name: number for number, name in enumerate(names)}
    values, inverse = np.unique(labels, return_inverse=True)
    numbers = [known.get(name, composed.get(normalize("NFC", name))) if name else None for name in values.tolist()]
    if None in numbers:
        name = values.tolist()[numbers.index(None)]
        row = int((labels == name).argmax())
        if not name:
            raise _empty(what, row)
        raise InputError(f"{what}, row {row}: {unknown('class', name, names[:_COMPARED])}")
    return torch.from_numpy(np.array(numbers, np.int64)[inverse])


def _empty(what: str, row: int) -> InputError:
    return InputError(f"{what}, row {row}: the label is empty; every example needs one")


def find_examples(columns: Columns, count: int, ids: Sequence[str] | None, what: str) -> list[int]:
    """Return the number of the example of each row: by ``index``, else by ``path`` or ``id``; if both, they must agree.

    Args:
        columns: those of :data:`NAMING` that the table has, at least one.
        count: the number of examples.
        ids: their names, if they have any.
        what: the name of the table in errors.
    """
    by_name = name_column(columns)
    if "index" not in columns:
        assert by_name is not None
        return _find_names(columns[by_name], ids, by_name, what)
    indices = []
    for row, cell in enumerate(columns["index"]):
        index = whole_number(cell)
        if index is None or not 0 <= index < count:
            raise InputError(f"{what}, row {row}: index {cell!r} is not an integer from 0 to {count - 1}")
        if by_name and ids is not None and str(columns[by_name][row]) != ids[index]:
            raise InputError(
                f"{what}, row {row}: index {index} is '{ids[index]}' in the data, but {by_name} is "
                f"'{columns[by_name][row]}'; remove the wrong column"
            )
        indices.append(index)
    return indices


def name_column(columns: Collection[str]) -> str | None:
    """Return the column with the names of examples, if there is one."""
    return next((name for name in ("path", "id") if name in columns), None)


def _find_names(cells: Sequence[Any], ids: Sequence[str] | None, column: str, what: str) -> list[int]:
    if ids is None:
        raise InputError(f"{what}: examples of this data have no {column}; use the column 'index'")
    places = {name: place for place, name in enumerate(ids)}
    unique = len(places) == len(ids)
    indices = []
    for row, name in enumerate(map(str, cells)):
        if name not in places:
            raise InputError(f"{what}, row {row}: the data has no {column} '{name}'")
        if not unique and ids.count(name) > 1:
            raise InputError(f"{what}, row {row}: several examples have the {column} '{name}'; use the column 'index'")
        indices.append(places[name])
    return indices


def whole_number(cell: Any) -> int | None:
    """Return the integer in a cell, if it holds one."""
    try:
        return int(float(cell)) if float(cell).is_integer() else None
    except (OverflowError, TypeError, ValueError):
        return None


class Reviewed(NamedTuple):
    """Reviewed labels of n examples.

    Attributes:
        labels: the reviewed label of each example (n,), -1 without one.
        removed: whether the example was removed (n,).
    """

    labels: Tensor
    removed: Tensor


def read_reviewed(path: Path, count: int, ids: Sequence[str] | None, names: Sequence[str]) -> Reviewed:
    """Read reviewed labels from a table (index or path, label[, decision]).

    A label is a class name or, if no class has that name, a class number; a decision is ``label`` or ``remove``.

    Args:
        path: a .csv, .parquet or .jsonl file.
        count: the number of examples.
        ids: their names, if they have any: what ``path`` (or ``id``) refers to.
        names: of the classes.
    """
    what = f"reviewed {path}"
    columns, header = read_columns(path, (*NAMING, "label", "decision"), what)
    if "label" not in columns or not ("index" in columns or name_column(columns)):
        missing = "'label'" if "label" not in columns else "'index' or 'path'"
        raise InputError(f"{what}: no column {missing} among {', '.join(header)}")
    known = {name: number for number, name in enumerate(names)}
    labels, removed = torch.full((count,), -1), torch.zeros(count, dtype=torch.bool)
    seen: dict[int, tuple[int, int]] = {}
    decisions = columns.get("decision", [LABEL] * len(columns["label"]))
    for row, index in enumerate(find_examples(columns, count, ids, what)):
        cell, decision = columns["label"][row], decisions[row]
        if decision not in (LABEL, REMOVE):
            raise InputError(f"{what}, row {row}: {unknown('decision', str(decision), (LABEL, REMOVE))}")
        label = _REMOVED if decision == REMOVE else known.get(str(cell), whole_number(cell))
        if label is None or (decision == LABEL and not 0 <= label < len(names)):
            raise InputError(
                f"{what}, row {row}: {unknown('class', str(cell), names[:_COMPARED])} (declare a class without "
                "training examples: data.classes)"
            )
        first, before = seen.setdefault(index, (row, label))
        if before != label:
            raise InputError(f"{what}, row {row}: example {index} has another label in row {first}; keep one of them")
        labels[index], removed[index] = label, decision == REMOVE
    return Reviewed(labels, removed)
