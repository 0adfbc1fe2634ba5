"""Labels: read from files, converted to class numbers; reviewed labels; classes that a schema declares."""

import csv
import io
import json
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from torch import Tensor

from unflip.data.arrays import Array, decoded, read_array, refuse_rows, stripped
from unflip.data.columns import Columns, column_names, read_columns
from unflip.data.files import read_text
from unflip.data.matching import Keys, Matcher, Reference
from unflip.errors import InputError, UnflipWarning, count_of, unknown

NAMING = ("index", "path", "id")
"""Columns that identify the example of a row."""
LABEL, REMOVE = "label", "remove"
"""Values of the column ``decision``: the example has this label, or is removed."""
REVIEWED, LISTED = "reviewed", "listed"
"""Reasons of changes that are no suggestions: a decision of a reviewer, or a list of labels."""
_LISTED = 5  # examples without a label that an error lists
_COMPARED = 50  # classes that an error compares with
_REMOVED = -1  # stands for a label
_PANDAS_INDEX = ("", "unnamed: 0")  # the header of pandas' index in a .csv


def read_labels(
    path: Path, ids: Sequence[str] | None = None, names: Sequence[str] = (), count: int | None = None
) -> Array:
    """Read labels from a file, numbers or names, in the order of the examples.

    The rows of a .csv are in this order too, unless its column ``index`` (or the index that pandas writes) or, where
    examples have ``ids``, its column ``path`` or ``id`` identifies the examples; then each must have one row. Names
    take precedence over the index.

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
            are_named = labels.dtype.kind in "iu" and {*np.unique(labels).astype(np.str_).tolist()} <= {*names}
            return labels.astype(np.str_) if names and are_named else labels
        case ".csv":
            cells = _read_label_csv(path, ids, count, what)
        case ".txt":
            cells = [line.strip() for line in read_text(path, what).rstrip().split("\n")]
        case other:
            raise InputError(f"{what}: cannot read '{other}'; must be .npy, .csv or .txt")
    if cells in ([], [""]):
        return np.empty(0, np.int64)
    first, others = cells[0], {*cells[1:]} - {""}
    if first and first not in names and others and not _is_number(first) and all(map(_is_number, others)):
        raise InputError(f"{what}: the first line, '{first}', is no number like the others; remove it if a header")
    return numbers_or_names(cells, names)


def _read_label_csv(path: Path, ids: Sequence[str] | None, count: int | None, what: str) -> list[str]:
    header = [name.strip().lower() for name in column_names(path)]
    if "label" not in header:
        if len(header) > 1:
            raise InputError(f"{what}: no column 'label' among {', '.join(header)}")
        return [row[0].strip() if row else "" for row in csv.reader(io.StringIO(read_text(path, what).rstrip()))]
    columns, _ = read_columns(path, (*NAMING, *_PANDAS_INDEX, "label"), what)
    if header[0] in _PANDAS_INDEX:
        first = columns.pop(header[0])
        columns.setdefault("index" if all(whole_number(cell) is not None for cell in first) else "id", first)
    cells = columns["label"]
    if "index" not in columns and (ids is None or name_column(columns) is None):
        return cells
    keys = Keys(ids, None, np.zeros(count or max(len(cells), len(ids or ())), np.int64), [""])
    rows = {place: row for row, place in enumerate(match_rows(columns, keys, what))}
    last = max(rows, default=-1)
    if missing := [place for place in range(last) if place not in rows]:
        named = ", ".join(str(place) if ids is None else f"'{ids[place]}'" for place in missing[:_LISTED])
        lacking = f"{count_of(len(missing), 'example')} such as {named}"
        raise InputError(f"{what}: no label for {lacking}; every example needs one")
    return [cells[rows[place]] for place in range(last + 1)]


def match_rows(columns: Columns, keys: Keys, what: str) -> list[int]:
    """Return the example of each row; raise InputError if two rows have the same one."""
    rows: dict[int, int] = {}
    for row, place in enumerate(find_examples(columns, keys, what)):
        if rows.setdefault(place, row) != row:
            raise InputError(f"{what}, row {row}: the same example as in row {rows[place]}; keep one of them")
    return [*rows]


def find_examples(columns: Columns, keys: Keys, what: str) -> list[int]:
    """Return the example of each row, by the columns that name it."""
    places, matcher = [], Matcher(keys)
    for row, wanted in enumerate(_references(columns, keys, what)):
        if (place := matcher.find(wanted)) is None:
            raise InputError(f"{what}, row {row}: no example, or several, called '{wanted.id}'")
        places.append(place)
    return places


def is_missing(cell: Any) -> bool:
    """Whether a cell of a table is empty."""
    return cell is None or cell == "" or cell != cell


def are_misleading(names: Sequence[str]) -> bool:
    """Whether the name of a class is the number of another one."""
    return any(name.isdecimal() and name != str(number) for number, name in enumerate(names))


def are_names(labels: Array) -> bool:
    """Whether labels are class names rather than numbers."""
    return bool(labels.dtype.kind == "U")


def numbers_or_names(cells: list[str], names: Collection[str] = ()) -> Array:
    """Return numbers, NaN where a cell is empty, if all others are numbers and not all names of classes; else names."""
    filled = set(cells) - {""}
    if not all(map(_is_number, filled)) or (names and filled <= set(names)):
        return np.array(cells, dtype=np.str_)
    return np.array([float(cell or "nan") for cell in cells])


def missing_labels(labels: Array, marker: str | None = None) -> Array:
    """Return a mask (n,) of missing labels: empty, NaN, or written as ``marker``."""
    missing: Array = labels == "" if are_names(labels) else labels != labels
    if marker is not None:
        names = as_names(labels)
        assert names is not None
        missing = missing | (names == (marker if (number := whole_number(marker)) is None else str(number)))
    return missing


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
        counts = Counter(declared)
        wrong = next((name for name in declared if not name or counts[name] > 1), None)
        if wrong is not None:
            raise InputError(f"{what}: class name '{wrong}'; class names must be unique and not empty")
        return len(declared), declared
    if are_names(labels):
        names = tuple(sorted(set(labels.tolist())))
        return len(names), names
    number_names([labels], what)  # raises an error for other numbers than integers
    return (int(labels.max()) + 1 if len(labels) else 0), None


def number_names(columns: Sequence[Array], what: str) -> tuple[str, ...] | None:
    """Return the classes of labels that are other integers than 0 to k - 1, in order; None for these, and for names.

    >>> number_names([np.array([2025, 2024, 2025])], "labels")
    ('2024', '2025')
    """
    if any(are_names(labels) for labels in columns):
        return None
    for labels in columns:
        _check_kind(labels, what)
        if labels.dtype.kind == "f" and (wrong := ~np.isfinite(labels) | (labels != np.floor(labels))).any():
            row = int(wrong.argmax())
            raise InputError(f"{what}, row {row}: label {labels[row]} is not an integer; labels are integers or names")
    values = np.unique(np.concatenate(columns)).tolist()
    return None if values == list(range(len(values))) else tuple(str(int(value)) for value in values)


def as_names(labels: Array | None) -> Array | None:
    """Return numbers as class names; names unchanged."""
    if labels is None or are_names(labels):
        return labels
    values, places = np.unique(labels, return_inverse=True)
    names = [str(value if (number := whole_number(value)) is None else number) for value in values.tolist()]
    return np.array(names, np.str_)[places]


def _check_kind(labels: Array, what: str) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iufbU":
        raise InputError(f"{what}: shape {labels.shape}, type {labels.dtype}; labels must be (n,), integers or names")


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
    _check_kind(labels, what)
    if are_names(labels):
        return _names_to_numbers(labels, names or list(map(str, range(num_classes))), what)
    values = labels.astype(np.float64) if labels.dtype.kind == "f" else labels.astype(np.int64)
    wrong = ~((values >= 0) & (values < num_classes) & (values == np.floor(values)))
    refuse_rows(wrong, what, lambda row: f"label {labels[row]} is not an integer from 0 to {num_classes - 1}")
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
            raise InputError(f"{what}, row {row}: the label is empty; every example needs one")
        raise InputError(f"{what}, row {row}: {unknown('class', name, names[:_COMPARED])}")
    return torch.from_numpy(np.array(numbers, np.int64)[inverse])


def name_column(columns: Collection[str]) -> str | None:
    """Return the column with the names of examples, if there is one."""
    return next((name for name in ("path", "id") if name in columns), None)


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
        weights: how many labels the decision stands for, if it is one of a random sample (n,), else 0.
        given: given labels (n,): those before the review, where the data already has the reviewed ones.
    """

    labels: Tensor
    removed: Tensor
    weights: Tensor
    given: Tensor


def read_reviewed(path: Path | pa.Table, keys: Keys, what: str = "") -> Reviewed:
    """Read reviewed labels from a table (index or path, label[, decision, given_label, digest, review_weight]).

    A label is a class name or, if no class has that name, a class number; a decision is ``label`` or ``remove``. Rows
    with a digest, as the review page exports them, may be about examples that the data does not have: they are listed
    in a warning unless they were removed, and only an error if there are no others.

    Args:
        path: a .csv, .parquet or .jsonl file, or a table.
        keys: what identifies the examples.
        what: the name of the table in errors.
    """
    what, names = what or f"reviewed {path}", keys.class_names
    columns, header = read_columns(path, (*NAMING, "label", "decision", "given_label", "digest", "review_weight"), what)
    if "label" not in columns or not ("index" in columns or name_column(columns)):
        missing = "'label'" if "label" not in columns else "'index' or 'path'"
        raise InputError(f"{what}: no column {missing} among {', '.join(header)}")
    known = {name: number for number, name in enumerate(names)}
    labels, removed = torch.full((len(keys.given),), -1), torch.zeros(len(keys.given), dtype=torch.bool)
    weights, given = torch.zeros(len(keys.given)), torch.tensor(keys.given)
    seen: dict[int, tuple[int, int]] = {}
    decisions = columns.get("decision", [LABEL] * len(columns["label"]))
    references = _references(columns, keys, what)
    matcher, unknown_examples = Matcher(keys), []
    for row, wanted in enumerate(references):
        cell, decision = columns["label"][row], decisions[row]
        if decision not in (LABEL, REMOVE):
            raise InputError(f"{what}, row {row}: {unknown('decision', str(decision), (LABEL, REMOVE))}")
        index = matcher.find(wanted)
        if index is None:
            if decision == LABEL or wanted.digest is None:  # others were removed indeed
                unknown_examples.append(row)
            continue
        label = _REMOVED if decision == REMOVE else _class_of(cell, known)
        if label is None or (decision == LABEL and not 0 <= label < len(names)):
            message = unknown("class", str(cell), names[:_COMPARED])
            raise InputError(f"{what}, row {row}: {message} (declare a class without training examples: data.classes)")
        first, before = seen.setdefault(index, (row, label))
        if before != label:
            raise InputError(f"{what}, row {row}: example {index} has another label in row {first}; keep one of them")
        labels[index], removed[index] = label, decision == REMOVE
        if (own := _class_of(wanted.given, known)) is not None and 0 <= own < len(names):
            given[index] = own
        if "review_weight" in columns:
            weights[index] = _weight(columns["review_weight"][row], f"{what}, row {row}")
    _tell_unknown(unknown_examples, references, what)
    return Reviewed(labels, removed, weights, given)


def before_apply(path: Path, keys: Keys) -> tuple[Tensor, Tensor]:
    """Return the labels given before ``apply`` wrote the data (n,), and the reviewed ones (n,), -1 without one.

    A model agrees with the labels that it suggested, so that it would hardly find the errors among them. A change
    counts as long as the data has its label.

    Args:
        path: the list of changes.
        keys: what identifies the examples of the data.
    """
    columns, _ = read_columns(path, (*NAMING, "new_path", "label", "given_label", "digest", "reason"), str(path))
    names = columns.get("path") or columns["id"]
    names[:] = [new or old for new, old in zip(columns.get("new_path", names), names, strict=True)]
    known = {name: number for number, name in enumerate(keys.class_names)} | {None: -1}
    given, reviewed, matcher = torch.tensor(keys.given), torch.full((len(keys.given),), -1), Matcher(keys)
    rows = zip(_references(columns, keys, str(path)), columns["label"], columns["reason"], strict=True)
    for wanted, name, reason in rows:
        index = matcher.find(replace(wanted, given=name)) if name and name in known else None  # "" if it was dropped
        if index is None or keys.name(index) != name or reason == LISTED:
            continue
        given[index] = known.get(wanted.given, keys.given[index])
        if reason == REVIEWED:
            reviewed[index] = known[name]
    return given, reviewed


def _weight(cell: Any, where: str) -> float:
    """Return the weight in a cell; 0 if it is empty."""
    try:
        weight = float(cell or 0)
    except (TypeError, ValueError):
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise InputError(f"{where}: review_weight {cell!r} is not a number from 0 on; leave it empty if unknown")
    return weight


def _references(columns: Columns, keys: Keys, what: str) -> list[Reference]:
    """Return what each row says about its example; raise InputError for an index that cannot be one."""
    name = name_column(columns)
    if name is not None and keys.ids is None and "index" not in columns and "digest" not in columns:
        raise InputError(f"{what}: examples of this data have no {name}; use the column 'index'")

    def cell(column: str | None, row: int) -> str | None:
        value = columns[column][row] if column in columns else None
        return None if value is None or value == "" else str(value)

    references, last = [], len(keys.given) - 1
    for row in range(len(columns["label"])):
        text, others = cell("index", row), (cell(name, row), cell("given_label", row), cell("digest", row))
        index = None if text is None else whole_number(text)
        is_named = others[2] is not None or (others[0] is not None and keys.ids is not None)
        is_placed = index is not None and 0 <= index <= last
        if (text is not None and index is None) or not (is_named or is_placed):
            raise InputError(f"{what}, row {row}: index {text or ''!r} is not an integer from 0 to {last}")
        references.append(Reference(index, *others))
    return references


def _tell_unknown(rows: Sequence[int], references: Sequence[Reference], what: str) -> None:
    """Name the decisions about examples that the data does not have: an error unless they came from the review page."""
    if not rows:
        return
    shown = []
    for row in rows[:_LISTED]:
        by_name = references[row].id
        shown.append(f"row {row} ({f'{by_name!r}' if by_name is not None else f'index {references[row].index}'})")
    more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    text = f"{what}: {len(rows)} of {len(references)} decisions match no example of the data, or several: "
    text += f"{', '.join(shown)}{more}"
    if len(rows) == len(references) or any(references[row].digest is None for row in rows):
        raise InputError(f"{text}; remove these rows, or use the data that was reviewed")
    warnings.warn(f"{text}; they are not used", UnflipWarning, stacklevel=3)


def _class_of(cell: Any, known: Mapping[str, int]) -> int | None:
    """Return the class with a name or, if not all are called by numbers, with that number."""
    number = whole_number(cell)
    named = next((known[name] for name in (str(cell), str(number)) if name in known), None)
    if named is not None or all(whole_number(name) is not None for name in known):
        return named
    return number


def find_label_column(what: str | Path, header: Sequence[str], name: str | None) -> str | None:
    """Return the label column: the one called ``name`` or, by default, `label` in any case; None without one."""
    if name is not None:
        if name not in header:
            raise InputError(f"{what}: --label-column: {unknown('column', name, header)}")
        return name
    matches = [column for column in header if column.lower() == "label"]
    if len(matches) > 1:
        raise InputError(f"{what}: columns {' and '.join(matches)}; choose one with --label-column")
    return matches[0] if matches else None


def declare_classes(table: pa.Table, columns: Collection[str], names: Sequence[str]) -> pa.Table:
    """Return a table whose schema says, as Hugging Face's ``ClassLabel``, which classes the numbers in columns mean."""
    features = {column: {"names": [*names], "_type": "ClassLabel"} for column in columns}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def declared_classes(path: Path, column: str) -> tuple[str, ...] | None:
    """Return the classes of a column of a .parquet file, in order, if its schema declares any (``ClassLabel``)."""
    if path.suffix.lower() != ".parquet":
        return None
    try:
        features = json.loads((pa.parquet.read_schema(path).metadata or {})[b"huggingface"])["info"]["features"]
        by_name = {name.lower(): features[name] for name in features} | features
        return tuple(map(str, by_name[column]["names"]))
    except (KeyError, TypeError, ValueError):
        return None
