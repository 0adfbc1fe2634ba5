"""comparison.html: results, curves and configuration differences of several runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa

from unflip.errors import InputError
from unflip.report.page import Line, line_chart, write_page
from unflip.report.run_report import CURVES, points_of, truth_used
from unflip.runs.config import Tree, flatten
from unflip.runs.folder import Run

_TASK = ("data", "noise")  # sections that every run has


@dataclass(frozen=True)
class Column:
    """A column of the table of results.

    Attributes:
        name: its heading.
        values: of each run; None where a run has none.
        ranked: whether higher is better.
        form: a printf format; None for percentages.
    """

    name: str
    values: tuple[float | None, ...]
    ranked: bool = False
    form: str | None = None

    @property
    def best(self) -> float | None:
        """The highest value, if higher is better and several runs have one."""
        known = [value for value in self.values if value is not None]
        return max(known) if self.ranked and len(known) > 1 else None


def write_comparison(runs: Sequence[Run], out: Path) -> Path:
    """Write a page about two or more finished runs and return its path."""
    named = name_runs(runs)
    if len(named) < 2:
        raise InputError("a comparison needs at least two different runs")
    names, results = list(named), [run.result for run in named.values()]
    trees = [run.config.tree() for run in named.values()]
    tables = [run.labels(["changed"]) if run.has_labels else None for run in named.values()]  # sweeps may not keep them
    write_page(
        out,
        "comparison.html",
        names=names,
        results=results,
        truths=[truth_used(result) for result in results],
        legend=[Line(name, (), place) for place, name in enumerate(names)],
        columns=_columns(results, tables),
        same_task=all(tree[section] == trees[0][section] for tree in trees for section in _TASK),
        charts=_charts(named),
        differences=_differences(trees),
    )
    return out


def name_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Name runs by their folder, or by its full path if two folders have the same name."""
    names = [run.folder.resolve().name for run in runs]
    return {name if names.count(name) == 1 else str(run.folder): run for name, run in zip(names, runs, strict=True)}


def _columns(results: Sequence[Mapping[str, Any]], tables: Sequence[pa.Table | None]) -> list[Column]:
    """Return the columns for which any run has a value."""
    changed = [None if table is None else float(table["changed"].to_numpy().mean()) for table in tables]
    columns = [
        Column("test accuracy", _pick(results, "test_accuracy", "selected"), ranked=True),
        Column("… last epoch", _pick(results, "test_accuracy", "last"), ranked=True),
        Column("validation accuracy", _pick(results, "val_accuracy")),
        Column("given labels correct", _pick(results, "label_accuracy_all", "given")),
        Column("corrected labels correct", _pick(results, "label_accuracy_all", "current"), ranked=True),
        Column("labels changed", tuple(changed)),
        Column("estimated noise rate", _pick(results, "noise_rate_estimate")),
        Column("label quality AUROC", _pick(results, "quality_auroc"), ranked=True, form="%.3f"),
        Column("seconds", _pick(results, "seconds"), form="%.1f"),
    ]
    return [column for column in columns if any(value is not None for value in column.values)]


def _pick(results: Sequence[Any], *keys: str) -> tuple[float | None, ...]:
    """Return what each result has under nested keys."""
    return tuple(reduce(lambda value, key: value.get(key), keys, result) for result in results)


def _charts(named: Mapping[str, Run]) -> list[dict[str, Any]]:
    """Draw every curve that any run has, one line per run."""
    charts = []
    for key, title in CURVES.items():
        lines = [
            Line(name, points, place, run.result["selected_epoch"])
            for place, (name, run) in enumerate(named.items())
            if (points := points_of(run.metrics, key))
        ]
        if lines:
            values = "; ".join(f"{line.name} {100 * line.points[-1][1]:.1f} %" for line in lines)
            svg = line_chart(lines, label=f"{title.capitalize()} by epoch. In the last epoch: {values}.", percent=True)
            charts.append({"title": title.capitalize(), "svg": svg, "legend": []})
    return charts


def _differences(trees: Sequence[Tree]) -> list[tuple[str, list[str]]]:
    """Return the options that differ, with each run's value.

    Sections of a method or a network are compared among the runs that have them.
    """
    flat = [{key: str(value) for key, value in flatten(tree).items()} for tree in trees]
    rows = {key: [each.get(key, "") for each in flat] for key in dict.fromkeys(key for each in flat for key in each)}
    ignored = {key: set() if key.partition(".")[0] in _TASK else {""} for key in rows}
    return [(key, values) for key, values in rows.items() if len({*values} - ignored[key]) > 1]
