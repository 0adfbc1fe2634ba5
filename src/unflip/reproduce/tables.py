"""The numbers of the paper's Tables 1 to 6, as printed, and results of sweeps next to them.

Means, standard deviations, the best two, what is missing; and where the printed numbers contradict each other.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from unflip.errors import ConfigError, InputError, unknown

Line = dict[str, Any]
"""A line of results.jsonl, which has one per finished point of a grid; see docs/experiments.md."""
PROTOCOL = ("network", "epochs", "protocol")
"""Keys whose values must agree for results to be comparable."""
OWN_LENGTH = "unflip"
"""The method whose presets have their own number of epochs."""
SHOWN = {
    "selected": "Test accuracy (%)",
    "last": "Test accuracy (%)",
    "best": "Test accuracy (%)",
    "labels": "Correct training labels after the last epoch (%)",
    "quality": "Area under the ROC curve (x 100) of the quality of the given labels",
}
IN_THE_PAPER = ("selected", "last", "best")

_TESTS = {"webvision": "test", "imagenet": "test-imagenet"}  # splits of examples/web_images.py
_DIGITS = Decimal("0.01")  # as in the paper; differences are computed from the displayed numbers


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


def read_results(paths: Iterable[Path]) -> list[Line]:
    """Return the lines of all files without duplicates; a folder stands for the ``results.jsonl`` in it."""
    files = [path / "results.jsonl" if path.is_dir() else path for path in paths]
    lines = [line for file in files for line in read_lines(file)]
    return list({(line["cell"], json.dumps(line["axes"], sort_keys=True)): line for line in lines}.values())


def read_lines(file: Path) -> list[Line]:
    """Return the lines of a results.jsonl."""
    lines: list[Line] = []
    place = str(file)
    try:
        for number, text in enumerate(file.read_text("utf-8").splitlines(), 1):
            place = f"{file}, line {number}"
            line = json.loads(text)
            lines.append({**line, "cell": line["cell"], "axes": dict(line["axes"])})
    except OSError as error:
        raise InputError(f"results {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"results {place}: not a result of `unflip paper sweep`") from error
    return lines


def find(line: Line, key: str) -> Any:
    """Return the value of ``key``: the name on that axis of the grid if there is one, otherwise the run's value."""
    return line["axes"].get(key, line.get(key))


def select_results(paths: Iterable[Path], where: Iterable[str]) -> tuple[list[Line], list[str]]:
    """Return the results that meet all ``KEY=VALUE`` conditions, and the keys; a key that no result has is an error."""
    lines, keys = read_results(paths), []
    for condition in where:
        key, equals, value = condition.partition("=")
        if not equals:
            raise ConfigError(f"--where {condition}: must be KEY=VALUE, such as epochs=15")
        known = {name for line in lines for name in (*line["axes"], *line)}
        if lines and key not in known:
            raise ConfigError(unknown("key of --where", key, known))
        lines = [line for line in lines if str(find(line, key)) == value]
        keys.append(key)
    return lines, keys


def common_protocol(lines: Iterable[Line], setting: str, keys: Sequence[str] = PROTOCOL) -> Line:
    """Return the protocol of results, empty if there are none; raise if they differ and are not comparable."""
    protocols = Counter(tuple(line[key] for key in keys) for line in lines).most_common()
    for key, *values in zip(keys, *(protocol for protocol, _ in protocols), strict=True):
        if len(set(values)) > 1:
            counts = [f"{key} {value} ({count})" for value, (_, count) in zip(values, protocols, strict=True)]
            raise ConfigError(f"results: {setting} mixes {' and '.join(counts)}; select one with --where {key}=VALUE")
    return dict(zip(keys, protocols[0][0], strict=True)) if protocols else {}


def average(lines: Iterable[Line], setting: str, value: Callable[[Line], float | None]) -> Number | None:
    """Return mean and standard deviation over seeds of a fraction, in percent; None if no line has it.

    Two cells with the same seed are an error.
    """
    seeds: dict[int, Line] = {}
    for line in lines:
        if seeds.setdefault(line["seed"], line)["cell"] != line["cell"]:
            raise ConfigError(f"results: {setting}, seed {line['seed']} has two cells; select one with --where")
    values = [fraction for line in seeds.values() if (fraction := value(line)) is not None]
    if not values:
        return None
    deviation = _percent(stdev(values)) if len(values) > 1 else None
    return Number(_percent(fmean(values)), deviation, seeds=len(values))


def _percent(fraction: float) -> Decimal:
    return Decimal(100 * fraction).quantize(_DIGITS)


@dataclass(frozen=True)
class ComparedRow:
    """A setting with each method's number, ours (None: missing) and the paper's (None: not printed)."""

    where: Mapping[str, str]
    ours: Mapping[str, Number | None]
    paper: Mapping[str, Number | None]

    def difference(self, method: str) -> Decimal | None:
        """Return our number minus the paper's."""
        ours, paper = self.ours[method], self.paper[method]
        return None if ours is None or paper is None else ours.mean - paper.mean


@dataclass(frozen=True)
class Comparison:
    """A table of the paper next to our results."""

    table: PaperTable
    methods: Mapping[str, str]
    """The methods shown and their headings."""
    rows: tuple[ComparedRow, ...]
    show: str
    sides: tuple[str, ...]
    """Whose numbers to show: ``ours``, ``paper`` or both."""
    protocols: Mapping[str, Line]
    """Network, epochs and protocol of the results for each data set."""

    def mean(self) -> dict[str, Number | None]:
        """Return the mean of our numbers over all rows; None for a method with a missing number."""
        means: dict[str, Number | None] = {}
        for method in self.methods:
            numbers = [number.mean for row in self.rows if (number := row.ours[method])]
            complete = len(numbers) == len(self.rows)
            means[method] = Number((sum(numbers, Decimal()) / len(numbers)).quantize(_DIGITS)) if complete else None
        return _with_gains(means, self.table.baseline)


def compare(
    table: PaperTable,
    lines: Sequence[Line],
    *,
    show: str = "selected",
    sides: tuple[str, ...] = ("ours", "paper"),
    methods: Sequence[str] | None = None,
    fixed: Iterable[str] = (),
) -> Comparison:
    """Compare results with a table of the paper.

    A result belongs to a row if its axes have the row's names. Results of grids with other axes, such as a sweep over
    alpha, do not belong, unless those axes are ``fixed`` to one value. Results of one data set with different protocols
    are an error, as their numbers are not comparable. If the paper has no such numbers, only ours are shown.

    Args:
        table: the paper's table.
        lines: our results.
        show: the number to show, a key of ``SHOWN``.
        sides: whose numbers to show: ``ours``, ``paper`` or both.
        methods: the methods to show; by default those of the paper.
        fixed: further axes that results may have.
    """
    axes = {*table.keys, *fixed, "method", "seed"}
    shown = {name: table.methods.get(name, name) for name in (methods or table.methods)}
    comparable = [line for line in lines if axes.issuperset(line["axes"]) and find(line, "method") in shown]
    matches = [[line for line in comparable if _belongs(line, row)] for row in table.rows]
    if lines and not any(matches):
        names = ", ".join(f"{key} = '{value}'" for key, value in table.rows[0].where.items())
        raise ConfigError(f"results: none of {len(lines)} belongs to Table {table.name}, whose first row is {names}")
    protocols = _protocols(table, matches)
    rows = tuple(_row(table, row, own, show, shown) for row, own in zip(table.rows, matches, strict=True))
    return Comparison(table, shown, rows, show, sides if show in IN_THE_PAPER else ("ours",), protocols)


def all_methods(table: PaperTable, lines: Sequence[Line]) -> list[str]:
    """Return the paper's methods, then all others with results for a row of the table."""
    names = {find(line, "method") for line in lines for row in table.rows if _belongs(line, row)}
    return [*table.methods, *sorted(names - set(table.methods))]


def best_two(numbers: Mapping[str, Number | None]) -> set[str]:
    """Return the methods with the two highest displayed means, including ties; none if there are fewer than three."""
    means = sorted((number.mean for number in numbers.values() if number), reverse=True)
    if len(means) < 3:
        return set()
    return {method for method, number in numbers.items() if number and number.mean >= means[1]}


def _belongs(line: Line, row: PaperRow) -> bool:
    return all(key == "test" or str(find(line, key)) == value for key, value in row.where.items())


def _row(table: PaperTable, row: PaperRow, lines: Sequence[Line], show: str, methods: Iterable[str]) -> ComparedRow:
    ours: dict[str, Number | None] = {}
    for method in methods:
        own = [line for line in lines if find(line, "method") == method]
        ours[method] = average(own, f"{' '.join(row.where.values())}, {method}", lambda line: _value(line, row, show))
    paper = {method: row.cells.get(method) for method in ours}
    return ComparedRow(row.where, _with_gains(ours, table.baseline), paper)


def _with_gains(numbers: Mapping[str, Number | None], baseline: str | None) -> dict[str, Number | None]:
    base = numbers.get(baseline) if baseline else None
    return {
        method: replace(number, gain=number.mean - base.mean) if number and base and method != baseline else number
        for method, number in numbers.items()
    }


def _value(line: Line, row: PaperRow, show: str) -> float | None:
    """Return the fraction to show, None if the line does not have it."""
    value: float | None
    if show == "labels":
        value = (line.get("label_accuracy") or {}).get("current")
    elif show == "quality":
        value = line.get("score_auroc", line.get("quality_auroc"))  # older lines have one for both
    elif "test" not in row.where:
        value = line["test_accuracy"][show]
    elif show == "selected":
        value = line.get("tests", {}).get(_TESTS[row.where["test"]], {}).get("top1")
    else:
        raise ConfigError(f"--show {show}: Table 3 and 4 have results of the selected epoch only; use --show selected")
    return value


def _protocols(table: PaperTable, matches: Sequence[Sequence[Line]]) -> dict[str, Line]:
    """Return the protocol of each data set; the network is part of it unless it identifies the rows.

    ``own_epochs`` is the number of epochs of :data:`OWN_LENGTH`, if it differs from that of the others.
    """
    keys = [key for key in PROTOCOL if key not in table.keys]
    by_data: dict[str, list[Line]] = {}
    for row, lines in zip(table.rows, matches, strict=True):
        by_data.setdefault(row.where["data"], []).extend(lines)
    protocols: dict[str, Line] = {}
    for data, lines in by_data.items():
        own = [line for line in lines if find(line, "method") == OWN_LENGTH]
        others = [line for line in lines if find(line, "method") != OWN_LENGTH]
        common_protocol(lines, data, [key for key in keys if key != "epochs"])
        own_protocol = common_protocol(own, f"{data}, {OWN_LENGTH}", keys)
        protocol = common_protocol(others, data, keys) or own_protocol
        if own_protocol not in ({}, protocol):
            protocol["own_epochs"] = own_protocol["epochs"]
        if lines:
            protocols[data] = protocol
    return protocols
