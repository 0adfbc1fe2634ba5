"""Reviewed labels: what people decided about single examples, from a table ``index`` or ``path``, ``label``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unflip.data.files.columns import read_columns
from unflip.data.files.matching import NAMING, find_examples, name_column, whole_number
from unflip.errors import InputError, unknown

LABEL, REMOVE = "label", "remove"
"""What the column ``decision`` may hold: the example has this label, or it is to be left out."""
_LISTED = 50  # classes that an error compares with
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
    numbers = _class_numbers(columns["label"], wanted, names, what)
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


def _class_numbers(cells: Sequence[Any], removals: Sequence[bool], names: Sequence[str], what: str) -> list[int]:
    known = {name: number for number, name in enumerate(names)}
    numbers = []
    for row, (cell, remove) in enumerate(zip(cells, removals, strict=True)):
        number = _REMOVED if remove else known.get(str(cell), whole_number(cell))
        if number is None or not (remove or 0 <= number < len(names)):
            raise InputError(
                f"{what}, row {row}: {unknown('class', str(cell), names[:_LISTED])} (a class without training examples "
                "must be declared: data.classes)"
            )
        numbers.append(number)
    return numbers
