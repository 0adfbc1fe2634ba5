"""Labels: read from files (.npy, .csv, .txt), and turned into class numbers."""

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
from unflip.data.columns import Columns, not_utf8, read_columns
from unflip.errors import InputError, unknown

_MOST_CLASSES = 1_000_000
_LISTED = 5  # most examples without a label that an error lists
_PANDAS_INDEX = ("", "unnamed: 0")  # how it heads its index in a .csv


def read_labels(
    path: Path, ids: Sequence[str] | None = None, names: Sequence[str] = (), count: int | None = None
) -> Array:
    """Read labels from a file, numbers or names, in the order of the examples.

    The rows of a .csv are in this order too, unless its column ``index`` (or a first one without a name, as pandas
    writes it) or, where examples are called ``ids``, its column ``path`` or ``id`` says which examples they are about;
    then every example must be there once. There are ``count`` examples, where that is known. Numbers are names, where
    all of them are among the ``names`` of classes.
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
        raise InputError(f"{what}: {not_utf8(path, error)}") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"{what}: {getattr(error, 'strerror', None) or error}") from error
    if cells == [""]:
        return np.empty(0, np.int64)
    if "" in cells:
        raise _empty(what, cells.index(""))
    labels = numbers_or_names(cells, names)
    if are_names(labels) and len(cells) > 1 and all(map(_is_number, cells[1:])) and not {*cells} <= {*names}:
        raise InputError(f"{what}: the first line, '{cells[0]}', is no number like the others; remove it, if a header")
    return labels


def _by_name(labels: Array, names: Sequence[str]) -> Array:
    """Return numbers of an array as names, where classes are called so and not by their own numbers."""
    if labels.dtype.kind not in "iu" or not are_misleading(names):
        return labels
    return labels.astype(np.str_) if {*np.unique(labels).astype(np.str_).tolist()} <= {*names} else labels


def are_misleading(names: Sequence[str]) -> bool:
    """Whether a class is called by a number that is not its own."""
    return any(name.isdecimal() and name != str(number) for number, name in enumerate(names))


def _read_label_csv(path: Path, ids: Sequence[str] | None, count: int | None, what: str) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    while rows and not any(rows[-1]):
        rows.pop()
    if not rows:
        return [""]
    header = [cell.strip().lower() for cell in rows[0]]
    if "label" in header:
        rows = rows[1:]
    elif len(header) > 1:
        raise InputError(f"{what}: no column 'label' among {', '.join(header)}; rename one to 'label'")
    elif header and (separator := next((mark for mark in ";\t|" if "label" in header[0].split(mark)), None)):
        raise InputError(f"{what}: its columns are separated by {separator!r}; separate them by commas")
    else:
        header = ["label"]
    blank = next((i for i, row in enumerate(rows) if not any(cell.strip() for cell in row)), None)
    if blank is not None:
        raise _empty(what, blank)
    if header[0] in _PANDAS_INDEX and "index" not in header and (ids is None or name_column(header) is None):
        header[0] = "index" if all(whole_number(row[0]) is not None for row in rows) else "id"
    wanted = {name: column for column, name in enumerate(header) if name in (*NAMING, "label")}
    if (twice := next((name for name in wanted if header.count(name) > 1), None)) is not None:
        raise InputError(f"{what}: two columns '{twice}'; keep one of them")
    for name, column in wanted.items():
        short = next((i for i, row in enumerate(rows) if len(row) <= column), None)
        if short is not None:
            raise InputError(f"{what}, row {short}: has {len(rows[short])} columns, '{name}' is number {column + 1}")
    columns = {name: [row[column].strip() for row in rows] for name, column in wanted.items()}
    cells = columns.pop("label")
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
    missing = [place for place in range(last) if place not in rows]
    if missing:
        named = ", ".join(str(place) if ids is None else f"'{ids[place]}'" for place in missing[:_LISTED])
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        raise InputError(f"{what}: no label for example {named}{more}; every example needs one")
    return [cells[rows[place]] for place in range(last + 1)]


def _empty(what: str, row: int) -> InputError:
    return InputError(f"{what}, row {row}: the label is empty; every example needs one")


_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")


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


def are_names(labels: Array) -> bool:
    """Whether labels are names of classes, rather than numbers."""
    return bool(labels.dtype.kind == "U")


def find_classes(
    labels: Array, declared: int | tuple[str, ...] | None, what: str
) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of classes, and their names if they have any: as declared, else from the labels."""
    if isinstance(declared, int):
        return declared, None
    if declared is not None:
        if "" in declared:
            raise InputError(f"{what}: the name of class {declared.index('')} is empty; give every class a name")
        if len(set(declared)) < len(declared):
            twice = next(name for name in declared if declared.count(name) > 1)
            raise InputError(f"{what}: the class name '{twice}' is declared twice; give every class its own")
        return len(declared), declared
    if are_names(labels):
        names = tuple(sorted(set(labels.tolist())))
        return len(names), names
    numbers = to_class_numbers(labels, _MOST_CLASSES, None, what)
    return (int(numbers.max()) + 1 if len(numbers) else 0), None


def to_class_numbers(labels: Array, num_classes: int, names: Sequence[str] | None, what: str) -> Tensor:
    """Turn labels into class numbers 0..k-1; an error names the first row with a wrong label."""
    if labels.ndim != 1:
        raise InputError(f"{what}: shape {labels.shape}; labels must be (n,)")
    if are_names(labels):
        return _names_to_numbers(labels, num_classes, names, what)
    if labels.dtype.kind not in "iufb":
        raise InputError(f"{what}: cannot read labels of type {labels.dtype}; give integers or class names")
    values = labels.astype(np.float64) if labels.dtype.kind == "f" else labels.astype(np.int64)
    wrong = ~((values >= 0) & (values < num_classes) & (values == np.floor(values)))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{what}, row {row}: label {labels[row]} is not an integer from 0 to {num_classes - 1}")
    return torch.from_numpy(values.astype(np.int64))


def _names_to_numbers(labels: Array, num_classes: int, names: Sequence[str] | None, what: str) -> Tensor:
    known = {name: number for number, name in enumerate(names or map(str, range(num_classes)))}
    composed = {normalize("NFC", name): number for name, number in known.items()}  # macOS decomposes accents in paths
    numbers = []
    found, inverse = np.unique(labels, return_inverse=True)
    for name in found.tolist():
        number = known.get(name, composed.get(normalize("NFC", name)))
        if not name or number is None:
            row = int((labels == name).argmax())
            raise (
                InputError(f"{what}, row {row}: {unknown('class', name, list(known)[:50])}")
                if name
                else _empty(what, row)
            )
        numbers.append(number)
    return torch.from_numpy(np.array(numbers, np.int64)[inverse])


NAMING = ("index", "path", "id")
"""Columns that say which example a row is about."""


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
    indices = [whole_number(cell) for cell in columns["index"]]
    wrong = next((i for i, index in enumerate(indices) if index is None or not 0 <= index < count), None)
    if wrong is not None:
        raise InputError(
            f"{what}, row {wrong}: index {columns['index'][wrong]!r} is not an example; give 0 to {count - 1}"
        )
    found = [index for index in indices if index is not None]
    if by_name and ids is not None:
        for row, (index, name) in enumerate(zip(found, columns[by_name], strict=True)):
            if str(name) != ids[index]:
                raise InputError(
                    f"{what}, row {row}: index {index} is '{ids[index]}' in the data, but {by_name} is '{name}'; leave "
                    "out the column that is wrong"
                )
    return found


def name_column(columns: Collection[str]) -> str | None:
    """Return the column that holds names of examples, if there is one."""
    return next((name for name in ("path", "id") if name in columns), None)


def _find_names(cells: Sequence[Any], ids: Sequence[str] | None, column: str, what: str) -> list[int]:
    if ids is None:
        raise InputError(f"{what}: examples of this data have no {column}; use the column 'index'")
    places: dict[str, int] = {}
    twice = set()
    for place, name in enumerate(ids):
        if places.setdefault(name, place) != place:
            twice.add(name)
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


LABEL, REMOVE = "label", "remove"
"""What the column ``decision`` may hold: the example has this label, or it is to be left out."""
_COMPARED = 50  # classes that an error compares with
_REMOVED = -1  # stands for a label


class Reviewed(NamedTuple):
    """What people decided about each of n examples."""

    labels: Tensor
    """The label that they decided (n,), -1 for all others."""
    removed: Tensor
    """Whether they removed the example (n,)."""


def read_reviewed(path: Path, count: int, ids: Sequence[str] | None, names: Sequence[str]) -> Reviewed:
    """Return what people decided about each of ``count`` examples.

    An example is identified by its row in ``labels.csv`` (``index``), or by its ``path``, which is the column ``id``
    there and may have that name here too. If a table has both, they must agree. A label is a class name or, if no class
    has that name, a class number. A table may have a column ``decision``: ``label``, or ``remove`` in a row without
    one.
    """
    what = f"reviewed {path}"
    columns, header = read_columns(path, (*NAMING, "label", "decision"), what)
    by_path = name_column(columns)
    if "label" not in columns or not ("index" in columns or by_path):
        missing = "'label'" if "label" not in columns else "'index' or 'path'"
        raise InputError(f"{what}: no column {missing}; it has {', '.join(header) or 'none'}")
    if not columns["label"]:
        raise InputError(f"{what}: no rows; leave out --reviewed if nothing is reviewed")
    rows = find_examples(columns, count, ids, what)
    wanted = _removals(columns.get("decision"), columns["label"], what)
    numbers = _decided_classes(columns["label"], wanted, names, what)
    labels, removed = torch.full((count,), -1), torch.zeros(count, dtype=torch.bool)
    seen: dict[int, int] = {}
    for row, (index, label) in enumerate(zip(rows, numbers, strict=True)):
        first = seen.setdefault(index, row)
        if numbers[first] != label:
            now, then = ("removed" if i == _REMOVED else f"'{names[i]}'" for i in (label, numbers[first]))
            raise InputError(
                f"{what}, row {row}: example {columns[by_path or 'index'][row]} is {now}, in row {first} it was "
                f"{then}; keep one of them"
            )
        labels[index], removed[index] = label, label == _REMOVED
    return Reviewed(labels, removed)


def _removals(decisions: Sequence[Any] | None, labels: Sequence[Any], what: str) -> list[bool]:
    """Return which rows remove their example."""
    if decisions is None:
        return [False] * len(labels)
    wanted = []
    for row, (decision, label) in enumerate(zip(decisions, labels, strict=True)):
        if decision not in (LABEL, REMOVE):
            raise InputError(f"{what}, row {row}: {unknown('decision', str(decision), (LABEL, REMOVE))}")
        if decision == REMOVE and label not in ("", None):
            raise InputError(
                f"{what}, row {row}: the decision is {REMOVE}, but there is a label, '{label}'; leave one of them out"
            )
        wanted.append(decision == REMOVE)
    return wanted


def _decided_classes(cells: Sequence[Any], removals: Sequence[bool], names: Sequence[str], what: str) -> list[int]:
    known = {name: number for number, name in enumerate(names)}
    numbers = []
    for row, (cell, remove) in enumerate(zip(cells, removals, strict=True)):
        number = _REMOVED if remove else known.get(str(cell), whole_number(cell))
        if number is None or not (remove or 0 <= number < len(names)):
            raise InputError(
                f"{what}, row {row}: {unknown('class', str(cell), names[:_COMPARED])} (a class without training "
                "examples must be declared: data.classes)"
            )
        numbers.append(number)
    return numbers
