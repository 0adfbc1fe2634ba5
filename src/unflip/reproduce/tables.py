"""The paper's tables next to our results: means, deviations, the best two, and what is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import fmean, stdev
from typing import Literal

from unflip.errors import ConfigError
from unflip.reproduce.paper_numbers import Number, PaperRow, PaperTable
from unflip.reproduce.results_file import PROTOCOL, Line, by_seed, find, one_protocol

OWN_LENGTH = ("unflip",)
"""Methods for which presets have another number of epochs than for the rest."""
Shown = Literal["selected", "last", "best", "labels", "quality"]
SHOWN: Mapping[Shown, str] = {
    "selected": "Test accuracy (%)",
    "last": "Test accuracy (%)",
    "best": "Test accuracy (%)",
    "labels": "Correct training labels after the last epoch (%)",
    "quality": "Area under the ROC curve (x 100) of the quality of the given labels",
}
IN_THE_PAPER: tuple[Shown, ...] = ("selected", "last", "best")
Side = Literal["ours", "paper"]

_DIGITS = Decimal("0.01")  # as in the paper; differences are computed from the displayed numbers


@dataclass(frozen=True)
class SimilarRow:
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
    rows: tuple[SimilarRow, ...]
    show: Shown
    sides: tuple[Side, ...]
    """Whose numbers to show."""
    protocols: Mapping[str, Mapping[str, object]]
    """Network, epochs and protocol of the results for each data set."""

    def mean(self) -> dict[str, Number | None]:
        """Return the mean of our numbers over all rows; None for a method with a missing number."""
        means: dict[str, Number | None] = {}
        for method in self.methods:
            found = [number.mean for row in self.rows if (number := row.ours[method])]
            complete = len(found) == len(self.rows)
            means[method] = Number((sum(found, Decimal()) / len(found)).quantize(_DIGITS)) if complete else None
        return _with_gains(means, self.table.baseline)


def compare(
    table: PaperTable,
    lines: Sequence[Line],
    *,
    show: Shown = "selected",
    sides: tuple[Side, ...] = ("ours", "paper"),
    methods: Sequence[str] | None = None,
    fixed: Sequence[str] = (),
) -> Comparison:
    """Compare results with a table of the paper.

    A result belongs to a row if its axes have the row's names. Results of grids with other axes, such as a sweep over
    alpha, do not belong, unless those axes are ``fixed`` to one value. Results of one data set with different protocols
    are an error, as their numbers are not comparable. If the paper has no such numbers, only ours are shown.

    Args:
        table: the paper's table.
        lines: our results.
        show: the number to show.
        sides: whose numbers to show.
        methods: the methods to show; by default those of the paper.
        fixed: further axes that results may have.
    """
    axes = {*table.keys, *fixed, "method", "seed"}
    comparable = [line for line in lines if axes.issuperset(line["axes"])]
    shown = {name: table.methods.get(name, name) for name in (methods or table.methods)}
    belonging = [
        [line for line in comparable if _belongs(line, row) and find(line, "method") in shown] for row in table.rows
    ]
    if lines and not any(belonging):
        names = ", ".join(f"{key} '{value}'" for key, value in table.rows[0].where.items() if key != "test")
        raise ConfigError(
            f"results: none of {len(lines)} belongs to Table {table.name}; the grid's axes must use the names of its "
            f"rows ({names} ...) and its methods ({', '.join(shown)})"
        )
    protocols = _protocols(table, belonging)
    rows = tuple(_row(table, row, own, show, shown) for row, own in zip(table.rows, belonging, strict=True))
    return Comparison(table, shown, rows, show, sides if show in IN_THE_PAPER else ("ours",), protocols)


def all_methods(table: PaperTable, lines: Sequence[Line]) -> list[str]:
    """Return the paper's methods, then all others with results for a row of the table."""
    found = {find(line, "method") for line in lines for row in table.rows if _belongs(line, row)}
    return [*table.methods, *sorted(found - set(table.methods))]


def best_two(numbers: Mapping[str, Number | None]) -> set[str]:
    """Return the methods with the two highest displayed means, including ties; none if there are fewer than three."""
    means = sorted((number.mean for number in numbers.values() if number), reverse=True)
    if len(means) < 3:
        return set()
    return {method for method, number in numbers.items() if number and number.mean >= means[1]}


def gains(numbers: Sequence[Mapping[str, Number | None]], method: str, baseline: str) -> list[Decimal]:
    """Return the gain of ``method`` over ``baseline`` in each row that has both."""
    pairs = [(row.get(method), row.get(baseline)) for row in numbers]
    return [one.mean - base.mean for one, base in pairs if one and base]


def _belongs(line: Line, row: PaperRow) -> bool:
    return all(key == "test" or str(find(line, key)) == value for key, value in row.where.items())


def _row(
    table: PaperTable, row: PaperRow, lines: Sequence[Line], show: Shown, methods: Mapping[str, str]
) -> SimilarRow:
    ours: dict[str, Number | None] = {}
    for method in methods:
        own = [line for line in lines if find(line, "method") == method]
        values = [_value(line, row, show) for line in by_seed(own, f"{' '.join(row.where.values())}, {method}")]
        ours[method] = summary([value for value in values if value is not None])
    paper = {method: row.cells.get(method) if show in IN_THE_PAPER else None for method in methods}
    return SimilarRow(row.where, _with_gains(ours, table.baseline), paper)


def _with_gains(numbers: Mapping[str, Number | None], baseline: str | None) -> dict[str, Number | None]:
    base = numbers.get(baseline) if baseline else None
    return {
        method: replace(number, gain=number.mean - base.mean) if number and base and method != baseline else number
        for method, number in numbers.items()
    }


def _value(line: Line, row: PaperRow, show: Shown) -> float | None:
    test = row.where.get("test")
    if show == "labels":
        value = (line.get("label_accuracy") or {}).get("current")
    elif show == "quality":
        value = line.get("score_auroc", line.get("quality_auroc"))  # older lines have one for both
    elif test is None:
        value = line["test_accuracy"][show]
    elif show == "selected":
        value = line.get("tests", {}).get(test, {}).get("top1")
    else:
        raise ConfigError(f"--show {show}: test set {test} has results of the selected epoch only; try --show selected")
    return None if value is None else float(value)


def summary(values: Sequence[float]) -> Number | None:
    """Return mean and deviation of fractions, in percent."""
    if not values:
        return None
    return Number(_per_cent(fmean(values)), _per_cent(stdev(values)) if len(values) > 1 else None, seeds=len(values))


def _per_cent(share: float) -> Decimal:
    return Decimal(100 * share).quantize(_DIGITS)


def _protocols(table: PaperTable, belonging: Sequence[Sequence[Line]]) -> dict[str, dict[str, object]]:
    """Return the protocol of each data set; the network is part of it unless it identifies the rows.

    ``own_epochs`` is the length of runs of the methods in :data:`OWN_LENGTH`, where it differs from that of the others.
    """
    keys = [key for key in PROTOCOL if key not in table.keys]
    by_data: dict[str, list[Line]] = {}
    for row, lines in zip(table.rows, belonging, strict=True):
        by_data.setdefault(row.where["data"], []).extend(lines)
    found: dict[str, dict[str, object]] = {}
    for data, lines in by_data.items():
        one_protocol(lines, data, [key for key in keys if key != "epochs"])
        own = [line for line in lines if find(line, "method") in OWN_LENGTH]
        alone = one_protocol(own, f"{data}, {', '.join(OWN_LENGTH)}", keys)
        common = one_protocol([line for line in lines if line not in own], data, keys)
        if common and alone and alone != common:
            found[data] = common | {"own_epochs": alone["epochs"]}
        elif protocol := common or alone:
            found[data] = protocol
    return found
