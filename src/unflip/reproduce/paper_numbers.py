"""The numbers of the paper's Tables 1 to 6, as printed, and where they contradict each other."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files

from unflip.errors import ConfigError, unknown

_CELL = re.compile(r"(?P<mean>\d+\.\d+)(?: ± (?P<deviation>\d+\.\d+))?(?: (?P<arrow>[↑↓]) (?P<gain>\d+\.\d+))?")


@dataclass(frozen=True)
class Number:
    """A table cell in percent, with the digits shown."""

    mean: Decimal
    deviation: Decimal | None = None
    gain: Decimal | None = None
    """Its gain over the table's baseline, if the table shows it."""
    seeds: int | None = None
    """Number of seeds of this cell, if known."""


@dataclass(frozen=True)
class PaperRow:
    """A setting: its data, noise, network or test set, which results must match, and each method's number."""

    where: Mapping[str, str]
    cells: Mapping[str, Number]


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper, with settings as rows and methods as columns. Tables 3 and 4 are printed transposed."""

    name: str
    title: str
    """The rest of a caption that starts with "Test accuracy": the noise and the data."""
    setup: str
    seeds: int
    baseline: str | None
    """The method over which gains are shown; without it, the best two of a row are marked."""
    methods: Mapping[str, str]
    """Our name -> the paper's name, in the paper's order."""
    rows: tuple[PaperRow, ...]

    @property
    def keys(self) -> list[str]:
        """The keys that identify a row."""
        return list(dict.fromkeys(key for row in self.rows for key in row.where))


def paper_table(name: str) -> PaperTable:
    """Return a table by its number, ``1`` or ``table1``."""
    tables = paper_tables()
    number = name.lower().removeprefix("table").strip()
    if number not in tables:
        raise ConfigError(unknown("table", name, tables))
    return tables[number]


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Return all tables by number."""
    tree = tomllib.loads(files(__package__).joinpath("paper_numbers.toml").read_text("utf-8"))
    return {name: _table(name, **content) for name, content in tree.items()}


def _table(
    name: str,
    *,
    title: str,
    setup: str,
    seeds: int,
    methods: dict[str, str],
    rows: list[dict[str, str | list[str]]],
    baseline: str | None = None,
) -> PaperTable:
    made = []
    for row in rows:
        where = {key: value for key, value in row.items() if isinstance(value, str)}
        made.append(PaperRow(where, dict(zip(methods, map(_number, row["cells"]), strict=True))))
    return PaperTable(name, title, setup, seeds, baseline, methods, tuple(made))


def _number(text: str) -> Number:
    match = _CELL.fullmatch(text)
    assert match, text
    deviation, gain = match["deviation"], match["gain"]
    return Number(
        Decimal(match["mean"]),
        Decimal(deviation) if deviation else None,
        Decimal(gain) * (1 if match["arrow"] == "↑" else -1) if gain else None,
    )


@cache
def contradictions() -> dict[tuple[str, int, str], str]:
    """Return the cells that the paper contradicts elsewhere, by table, row (from 0) and method.

    A contradiction is a setting printed with different numbers in two tables, or a printed gain that is not the
    difference of the printed means.
    """
    found: dict[tuple[str, int, str], str] = {}
    printed: dict[tuple[object, ...], list[tuple[str, int, str, Number]]] = {}
    for table in paper_tables().values():
        for place, row in enumerate(table.rows):
            for method, number in row.cells.items():
                printed.setdefault((*sorted(row.where.items()), method), []).append((table.name, place, method, number))
                if table.baseline and number.gain is not None:
                    difference = number.mean - row.cells[table.baseline].mean
                    if difference != number.gain:
                        key = (table.name, place, method)
                        found[key] = f"prints {number.gain:+} where the means differ by {difference:+}"
    for twins in printed.values():
        for name, place, method, number in twins:
            for other, _, _, same in twins:
                if (same.mean, same.deviation) != (number.mean, number.deviation):
                    text = f"Table {other} prints {same.mean} ± {same.deviation}"
                    key = (name, place, method)
                    found[key] = f"{found[key]}; {text}" if key in found else text
    return found
