"""Matching: which example each row of a table is about, by its number or by its name."""

from collections.abc import Collection, Sequence
from typing import Any

from unflip.data.files.columns import Columns
from unflip.errors import InputError

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
