"""The numbers of the paper's Tables 1 to 6, as printed, and where they contradict each other."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files

from unflip.errors import ConfigError, unknown


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
    doubts: Mapping[str, str]
    """Methods whose number the paper contradicts: it prints another one elsewhere, or a gain that does not add up."""


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
    tables = {}
    for name, content in tree.items():
        methods, baseline = content["methods"], content.get("baseline")
        rows = []
        for row in content["rows"]:
            cells = dict(zip(methods, map(_number, row.pop("cells")), strict=True))
            rows.append(PaperRow(where=row, cells=cells, doubts=row.pop("doubts", {})))
        table = PaperTable(name, content["title"], content["setup"], content["seeds"], baseline, methods, tuple(rows))
        tables[name] = table
    return tables


def _number(text: str) -> Number:
    """Parse a cell as printed: ``80.73 ± 0.19 ↓ 0.81``."""
    mean, *rest = text.replace("↑ ", "+").replace("↓ ", "-").replace("± ", "").split()
    gain = next((Decimal(part) for part in rest if part[0] in "+-"), None)
    deviation = next((Decimal(part) for part in rest if part[0] not in "+-"), None)
    return Number(Decimal(mean), deviation, gain)
