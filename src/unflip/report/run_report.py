"""report.html: what a run did and found, on one self-contained page."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as compute

from unflip.errors import UnflipError
from unflip.report.charts import Line, heat, heat_legend, heat_map, line_chart, scatter
from unflip.report.examples import find_issues, find_lowest_quality, open_views
from unflip.report.label_changes import class_rows, count_changes
from unflip.report.page import write_page
from unflip.report.shift import measure_shift
from unflip.runs import layout
from unflip.runs.folder import Run
from unflip.runs.labels import HELD, REMOVED, expect_errors, wrong_share

CURVES = {
    "test_accuracy": "test accuracy",
    "val_accuracy": "validation: agreement with the given labels",
    "label_accuracy": "correct training labels",
}
"""The metrics drawn by epoch, if a run has them."""


def write_report(run: Run, out: Path | None = None, data: str | None = None) -> Path:
    """Write the report of a finished run, by default into its folder, and return its path.

    ``data`` is where the run's data is now, if it was moved; images are read from there.
    """
    result, metrics, whole = run.result, run.metrics, run.labels()
    table = whole.filter(compute.not_equal(whole["split"], REMOVED))
    names, tests = run.class_names, result["tests"]
    changes = count_changes(table, names)
    changed, reviewed, quality = (table[name].to_numpy() for name in ("changed", "reviewed", "label_quality"))
    trains = int(compute.sum(compute.equal(table["split"], "train")).as_py() or 0)
    views, issues = open_views(run, data), run.issues()
    matrix = f"Given labels by row, {changes.kind} ones by column, as fractions of the row; the list shows the largest."
    epochs, columns = _by_epoch(metrics)
    path = out or run.own(layout.REPORT)
    write_page(
        path,
        "run.html",
        result=result,
        config=run.config_text,
        network=run.config.common.network,
        finished=datetime.fromtimestamp((run.folder / layout.RESULT).stat().st_mtime, UTC),
        train_count=trains,
        val_count=len(table) - trains,
        truth=truth_notes(result),
        charts=_charts(metrics, result),
        marked=any(lines_of(metrics, key) for key in CURVES),
        changes=changes,
        changed_count=int((changed & ~reviewed).sum()),
        changed_by_people=int((changed & reviewed).sum()),
        matrix_map=None if changes.is_small else heat_map(changes.shares, label=matrix),
        heat=heat,
        heat_legend=heat_legend(),
        classes=class_rows(
            table, names, result["noise_rate_by_class"], next(iter(tests.values()))["per_class"] if tests else None
        ),
        **_shift(run, names),
        doubts=find_lowest_quality(run, whole, names, views),
        below_half=int((whole["label_quality"].to_numpy() < 0.5).sum()),
        issues=None if issues is None else find_issues(whole, issues, names, views),
        views=views,
        errors=expect_errors(quality),
        wrong_share=wrong_share(table),
        held=HELD,
        epochs=epochs,
        columns=columns,
    )
    return path


def truth_notes(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return where true labels were used: for selection, for making noise, for evaluation."""
    _, _, used = result["protocol"].partition("(uses the truth: ")
    return {
        "chose": used.removesuffix(")") or None,
        "made_noise": result["noise"],
        "tested": bool(result["tests"]),
        "known": result["noise_rate"] is not None,
        "reviewed": result.get("reviewed", 0),
        "removed": result.get("removed", 0),
    }


def lines_of(metrics: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Return (epoch, value) for every epoch that has a value."""
    return [(line["epoch"], line[key]) for line in metrics if line.get(key) is not None]


def _charts(metrics: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Draw the accuracies, the number of changed labels, the threshold and the loss by epoch."""
    chosen = result["selected_epoch"]
    lines = [
        Line(name, points, place, chosen)
        for place, (key, name) in enumerate(CURVES.items())
        if (points := lines_of(metrics, key))
    ]
    charts = []
    if lines:
        said = "; ".join(f"{line.name} {100 * dict(line.points)[chosen]:.1f} %" for line in lines)
        label = f"Accuracies by epoch. At the selected epoch, {chosen}: {said}."
        charts.append(_chart("Accuracy", lines, label, chosen=chosen, percent=True))
    if any(value for _, value in lines_of(metrics, "changed")):
        points = lines_of(metrics, "changed")
        most = max(points, key=lambda point: point[1])
        label = f"Labels changed per epoch; the most, {most[1]}, in epoch {most[0]}."
        charts.append(_chart("Labels changed", [Line("labels changed", points, 3)], label, bars=True))
    if threshold := lines_of(metrics, "threshold"):
        label = f"The correction threshold, from {threshold[0][1]:.2f} to {threshold[-1][1]:.2f}."
        charts.append(_chart("Threshold", [Line("correction threshold", threshold, 4)], label, zero=True))
    losses = list(dict.fromkeys(name for line in metrics for name in line.get("loss", {})))
    lines = [
        Line(name, [(line["epoch"], line["loss"][name]) for line in metrics if name in line.get("loss", {})], 5 + place)
        for place, name in enumerate(losses)
    ]
    if lines:
        charts.append(_chart("Loss", lines, "The terms of the training loss by epoch.", zero=True))
    return charts


def _chart(title: str, lines: Sequence[Line], label: str, **options: Any) -> dict[str, Any]:
    """Return a chart for the template, with a legend if it has several lines."""
    return {"title": title, "svg": line_chart(lines, label=label, **options), "legend": lines if len(lines) > 1 else []}


def _shift(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Draw the class Gaussians, or return why they are missing."""
    try:
        shift = measure_shift(run)
    except UnflipError as error:
        return {"missing": str(error)}
    label = "Class means and 2-sigma ellipses: {}."
    panels = [(panel.title, scatter(shift, panel, label=label.format(panel.title))) for panel in shift.panels]
    legend = [Line(names[c], (), place) for place, c in enumerate(shift.classes)]
    return {"missing": None, "shift": shift, "panels": panels, "legend": legend}


def _by_epoch(metrics: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows of the table of epochs, and its columns with their headings."""
    rows = [{**line, **{f"loss {name}": value for name, value in line.get("loss", {}).items()}} for line in metrics]
    losses = list(dict.fromkeys(f"loss {name}" for line in metrics for name in line.get("loss", {})))
    wanted = {
        "lr": "learning rate",
        **({losses[0]: "loss"} if len(losses) == 1 else {key: key for key in losses}),
        **CURVES,
        "changed": "labels changed",
        "threshold": "threshold",
        "seconds": "seconds",
    }
    return rows, {key: name for key, name in wanted.items() if any(row.get(key) is not None for row in rows)}
