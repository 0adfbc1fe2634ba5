"""Labels: read from files (.npy, .csv, .txt), turned into class numbers; what people decided about single examples."""

import csv
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import Array, decoded, read_array, stripped
from unflip.data.columns import Columns, read_columns
from unflip.errors import InputError, unknown

NAMING = ("index", "path", "id")
"""Columns that say which example a row is about."""
LABEL, REMOVE = "label", "remove"
"""What the column ``decision`` may hold: the example has this label, or it is to be left out."""
_MOST_CLASSES = 1_000_000
_LISTED = 5  # most examples without a label that an error lists
_COMPARED = 50  # classes that an error compares with
_REMOVED = -1  # stands for a label
_PANDAS_INDEX = ("", "unnamed: 0")  # how it heads its index in a .csv
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")


def read_labels(
    path: Path, ids: Sequence[str] | None = None, names: Sequence[str] = (), count: int | None = None
) -> Array:
    """Read labels from a file, numbers or names, in the order of the examples.

    The rows of a .csv are in this order too, unless its column ``index`` (or a first one without a name, as pandas
    writes it) or, where examples are called ``ids``, its column ``path`` or ``id`` says which examples they are about;
    then every example must be there once.

    Args:
        path: the file; a .csv has a column ``label``, or no header and one column.
        ids: what the examples are called, if they have names.
        names: of classes; numbers are names, where all of them are among these.
        count: how many examples there are, where that is known.
    """
    what = f"labels {path}"
    try:
        match path.suffix.lower():
            case ".npy":
                return _by_name(stripped(decoded(read_array(path), what)), names)
            case ".csv":
                cells = _read_label_csv(path, ids, count, what)
            case ".txt":
                cells = [line.strip() for line in path.read_text("utf-8-sig").rstrip().split("\n")]
            case other:
                raise InputError(f"{what}: cannot read '{other}'; give .npy, .csv or .txt")
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: not a text file in UTF-8 ({error.reason})") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"{what}: {getattr(error, 'strerror', None) or error}") from error
    if cells in ([], [""]):
        return np.empty(0, np.int64)
    if "" in cells:
        raise _empty(what, cells.index(""))
    labels = numbers_or_names(cells, names)
    if are_names(labels) and len(cells) > 1 and all(map(_is_number, cells[1:])) and not {*cells} <= {*names}:
        raise InputError(f"{what}: the first line, '{cells[0]}', is no number like the others; remove it, if a header")
    return labels


def _read_label_csv(path: Path, ids: Sequence[str] | None, count: int | None, what: str) -> list[str]:
    columns, header = read_columns(path, (*NAMING, *_PANDAS_INDEX, "label"), what)
    if "label" not in columns:
        if len(header) > 1 or "label" in re.split(r"[;\t|]", "".join(header)):
            raise InputError(f"{what}: no column 'label' among {', '.join(header)}, separated by commas; add one")
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [row[0].strip() for row in csv.reader(file) if row]
    cells, by_name = columns.pop("label"), name_column(columns)
    first = columns.pop(header[0]) if header[0] in _PANDAS_INDEX else None
    if first is not None and "index" not in columns and (ids is None or by_name is None):
        columns["index" if all(whole_number(cell) is not None for cell in first) else "id"] = first
    if "index" in columns or (name_column(columns) is not None and ids is not None):
        return _in_order(cells, columns, ids, count, what)
    return cells


def _in_order(cells: list[str], columns: Columns, ids: Sequence[str] | None, count: int | None, what: str) -> list[str]:
    """Return labels in the order of the examples; each, up to the last that has a label, must have one row."""
    rows: dict[int, int] = {}
    for row, place in enumerate(find_examples(columns, count or len(cells), ids, what)):
        if rows.setdefault(place, row) != row:
            named = place if "index" in columns or ids is None else f"'{ids[place]}'"
            raise InputError(f"{what}, row {row}: example {named} again, as in row {rows[place]}; keep one of them")
    last = max(rows, default=-1)
    if missing := [place for place in range(last) if place not in rows]:
        named = ", ".join(str(place) if ids is None else f"'{ids[place]}'" for place in missing[:_LISTED])
        raise InputError(f"{what}: no label for {len(missing)} examples such as {named}; every example needs one")
    return [cells[rows[place]] for place in range(last + 1)]


def _by_name(labels: Array, names: Sequence[str]) -> Array:
    """Return numbers of an array as names, where classes are called so and not by their own numbers."""
    if labels.dtype.kind not in "iu" or not are_misleading(names):
        return labels
    return labels.astype(np.str_) if {*np.unique(labels).astype(np.str_).tolist()} <= {*names} else labels


def are_misleading(names: Sequence[str]) -> bool:
    """Whether a class is called by a number that is not its own."""
    return any(name.isdecimal() and name != str(number) for number, name in enumerate(names))


def are_names(labels: Array) -> bool:
    """Whether labels are names of classes, rather than numbers."""
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
    # Python allows underscores in numbers; and 01 is not 1 to whoever wrote both.
    return "_" not in cell and not _LEADING_ZERO.match(cell.strip())


def find_classes(
    labels: Array, declared: int | tuple[str, ...] | None, what: str
) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of classes, and their names if they have any: as declared, else from the labels."""
    if isinstance(declared, int):
        return declared, None
    if declared is not None:
        wrong = next((name for name in declared if not name or declared.count(name) > 1), None)
        if wrong is not None:
            raise InputError(f"{what}: a class is called '{wrong}'; give every class a name of its own")
        return len(declared), declared
    if are_names(labels):
        names = tuple(sorted(set(labels.tolist())))
        return len(names), names
    numbers = to_class_numbers(labels, _MOST_CLASSES, None, what)
    return (int(numbers.max()) + 1 if len(numbers) else 0), None


def to_class_numbers(labels: Array, num_classes: int, names: Sequence[str] | None, what: str) -> Tensor:
    """Turn labels into class numbers 0..k-1; an error names the first row with a wrong label."""
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
    known = {name: number for number, name in enumerate(names)}
    composed = {normalize("NFC", name): number for name, number in known.items()}  # macOS decomposes accents in paths
    numbers = []
    found, inverse = np.unique(labels, return_inverse=True)
    for name in found.tolist():
        number = known.get(name, composed.get(normalize("NFC", name)))
        if not name:
            raise _empty(what, int((labels == name).argmax()))
        if number is None:
            row = int((labels == name).argmax())
            raise InputError(f"{what}, row {row}: {unknown('class', name, list(known)[:_COMPARED])}")
        numbers.append(number)
    return torch.from_numpy(np.array(numbers, np.int64)[inverse])


def _empty(what: str, row: int) -> InputError:
    return InputError(f"{what}, row {row}: the label is empty; every example needs one")


def find_examples(columns: Columns, count: int, ids: Sequence[str] | None, what: str) -> list[int]:
    """Return the example that each row is about: by ``index``, else by ``path`` or ``id``; where both, they must agree.

    Args:
        columns: those of :data:`NAMING` that the table has, at least one.
        count: the number of examples.
        ids: what they are called, if they have names.
        what: what errors call the table.
    """
    by_name = name_column(columns)
    if "index" not in columns:
        assert by_name is not None
        return _find_names(columns[by_name], ids, by_name, what)
    found = []
    for row, cell in enumerate(columns["index"]):
        index = whole_number(cell)
        if index is None or not 0 <= index < count:
            raise InputError(f"{what}, row {row}: index {cell!r} is not an example; give 0 to {count - 1}")
        if by_name and ids is not None and str(columns[by_name][row]) != ids[index]:
            raise InputError(
                f"{what}, row {row}: index {index} is '{ids[index]}' in the data, but {by_name} is "
                f"'{columns[by_name][row]}'; leave out the column that is wrong"
            )
        found.append(index)
    return found


def name_column(columns: Collection[str]) -> str | None:
    """Return the column that holds names of examples, if there is one."""
    return next((name for name in ("path", "id") if name in columns), None)


def _find_names(cells: Sequence[Any], ids: Sequence[str] | None, column: str, what: str) -> list[int]:
    if ids is None:
        raise InputError(f"{what}: examples of this data have no {column}; use the column 'index'")
    places: dict[str, int] = {}
    twice = {name for place, name in enumerate(ids) if places.setdefault(name, place) != place}
    found = []
    for row, name in enumerate(map(str, cells)):
        if name not in places:
            raise InputError(f"{what}, row {row}: the data has no {column} '{name}'; write it as labels.csv does")
        if name in twice:
            raise InputError(f"{what}, row {row}: several examples are called '{name}'; use the column 'index'")
        found.append(places[name])
    return found


def whole_number(cell: Any) -> int | None:
    """Return the whole number that a cell holds, if it holds one."""
    try:
        return int(float(cell)) if float(cell).is_integer() else None
    except (OverflowError, TypeError, ValueError):
        return None


class Reviewed(NamedTuple):
    """What people decided about each of n examples.

    Attributes:
        labels: the label that they decided (n,), -1 for all others.
        removed: whether they removed the example (n,).
    """

    labels: Tensor
    removed: Tensor


def read_reviewed(path: Path, count: int, ids: Sequence[str] | None, names: Sequence[str]) -> Reviewed:
    """Return what people decided about each of ``count`` examples.

    An example is identified by its row in ``labels.csv`` (``index``), or by its ``path``, which is the column ``id``
    there and may have that name here too. If a table has both, they must agree. A label is a class name or, if no class
    has that name, a class number. A table may have a column ``decision``: ``label``, or ``remove``.
    """
    what = f"reviewed {path}"
    columns, header = read_columns(path, (*NAMING, "label", "decision"), what)
    if "label" not in columns or not ("index" in columns or name_column(columns)):
        missing = "'label'" if "label" not in columns else "'index' or 'path'"
        raise InputError(f"{what}: no column {missing}; it has {', '.join(header) or 'none'}")
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
                f"{what}, row {row}: {unknown('class', str(cell), names[:_COMPARED])} (a class without training "
                "examples must be declared: data.classes)"
            )
        first, before = seen.setdefault(index, (row, label))
        if before != label:
            now, then = ("removed" if i == _REMOVED else f"'{names[i]}'" for i in (label, before))
            raise InputError(f"{what}, row {row}: example {index} is {now}, in row {first} it was {then}; keep one")
        labels[index], removed[index] = label, decision == REMOVE
    return Reviewed(labels, removed)
