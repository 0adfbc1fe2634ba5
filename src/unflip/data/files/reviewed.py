"""Reviewed labels: what people decided about single examples, from a table ``index`` or ``path``, ``label``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unflip.data.files.columns import read_columns
from unflip.data.files.matching import NAMING, find_examples, name_column, whole_number
from unflip.errors import InputError, unknown

_LISTED = 50  # classes that an error compares with


def read_reviewed(path: Path, count: int, ids: Sequence[str] | None, names: Sequence[str]) -> Tensor:
    """Return the reviewed label of each of ``count`` examples (n,), -1 for those not reviewed.

    An example is identified by its row in ``labels.csv`` (``index``), or by its ``path``, which is the column ``id``
    there and may have that name here too. If a table has both, they must agree. A label is a class name or, if no class
    has that name, a class number.
    """
    what = f"reviewed {path}"
    columns, header = read_columns(path, (*NAMING, "label"), what)
    by_path = name_column(columns)
    if "label" not in columns or not ("index" in columns or by_path):
        missing = "'label'" if "label" not in columns else "'index' or 'path'"
        raise InputError(f"{what}: no column {missing}; it has {', '.join(header) or 'none'}")
    if not columns["label"]:
        raise InputError(f"{what}: no rows; leave out --reviewed if nothing is reviewed")
    rows = find_examples(columns, count, ids, what)
    numbers = _class_numbers(columns["label"], names, what)
    reviewed = torch.full((count,), -1)
    seen: dict[int, int] = {}
    for row, (index, label) in enumerate(zip(rows, numbers, strict=True)):
        first = seen.setdefault(index, row)
        if numbers[first] != label:
            raise InputError(
                f"{what}, row {row}: example {columns[by_path or 'index'][row]} is '{names[label]}', in row {first} it "
                f"was '{names[numbers[first]]}'; keep one of them"
            )
        reviewed[index] = label
    return reviewed


def _class_numbers(cells: Sequence[Any], names: Sequence[str], what: str) -> list[int]:
    known = {name: number for number, name in enumerate(names)}
    numbers = []
    for row, cell in enumerate(cells):
        number = known.get(str(cell), whole_number(cell))
        if number is None or not 0 <= number < len(names):
            raise InputError(
                f"{what}, row {row}: {unknown('class', str(cell), names[:_LISTED])} (a class without training examples "
                "must be declared: data.classes)"
            )
        numbers.append(number)
    return numbers
