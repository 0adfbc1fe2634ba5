"""Reviewed labels: what people decided about single examples, from a table ``index`` or ``path``, ``label``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unflip.data.files.columns import Columns, read_columns
from unflip.errors import InputError, unknown

_WANTED = ("index", "path", "id", "label")
_LISTED = 50  # classes that an error compares with


def read_reviewed(path: Path, count: int, ids: Sequence[str] | None, names: Sequence[str]) -> Tensor:
    """Return the reviewed label of each of ``count`` examples (n,), -1 for those not reviewed.

    An example is identified by its row in ``labels.csv`` (``index``), or by its ``path``, which is the column ``id``
    there and may have that name here too. If a table has both, they must agree. A label is a class name or, if no class
    has that name, a class number.
    """
    what = f"reviewed {path}"
    columns, header = read_columns(path, _WANTED, what)
    by_path = next((name for name in ("path", "id") if name in columns), None)
    if "label" not in columns or not ("index" in columns or by_path):
        missing = "'label'" if "label" not in columns else "'index' or 'path'"
        raise InputError(f"{what}: no column {missing}; it has {', '.join(header) or 'none'}")
    if not columns["label"]:
        raise InputError(f"{what}: no rows; leave out --reviewed if nothing is reviewed")
    rows = _indices(columns, by_path, count, ids, what)
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


def _indices(columns: Columns, by_path: str | None, count: int, ids: Sequence[str] | None, what: str) -> list[int]:
    """Return the example that each row is about."""
    if "index" not in columns:
        assert by_path is not None
        return _find_paths(columns[by_path], ids, by_path, what)
    indices = [_whole_number(cell) for cell in columns["index"]]
    wrong = next((i for i, index in enumerate(indices) if index is None or not 0 <= index < count), None)
    if wrong is not None:
        raise InputError(
            f"{what}, row {wrong}: index {columns['index'][wrong]!r} is not an example; give 0 to {count - 1}"
        )
    found = [index for index in indices if index is not None]
    if by_path and ids is not None:
        for row, (index, name) in enumerate(zip(found, columns[by_path], strict=True)):
            if str(name) != ids[index]:
                raise InputError(
                    f"{what}, row {row}: index {index} is '{ids[index]}' in the data, but {by_path} is '{name}'; leave "
                    "out the column that is wrong"
                )
    return found


def _find_paths(cells: Sequence[Any], ids: Sequence[str] | None, column: str, what: str) -> list[int]:
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


def _class_numbers(cells: Sequence[Any], names: Sequence[str], what: str) -> list[int]:
    known = {name: number for number, name in enumerate(names)}
    numbers = []
    for row, cell in enumerate(cells):
        number = known.get(str(cell), _whole_number(cell))
        if number is None or not 0 <= number < len(names):
            raise InputError(
                f"{what}, row {row}: {unknown('class', str(cell), names[:_LISTED])} (a class without training examples "
                "must be declared: data.classes)"
            )
        numbers.append(number)
    return numbers


def _whole_number(cell: Any) -> int | None:
    try:
        return int(float(cell)) if float(cell).is_integer() else None
    except (TypeError, ValueError):
        return None
