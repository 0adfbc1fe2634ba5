"""report.html: the self-contained report of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from unflip.data.arrays import Array
from unflip.errors import UnflipError
from unflip.report.charts import Line, heat, heat_legend, heat_map, line_chart, scatter
from unflip.report.examples import find_issues, find_lowest_quality, open_views
from unflip.report.page import write_page
from unflip.report.shift import measure_shift
from unflip.runs import layout
from unflip.runs.folder import Run
from unflip.runs.labels import HELD, REMOVED, expect_errors, wrong_share

CURVES = {
    "test_accuracy": "test accuracy",
    "val_accuracy": "validation accuracy on the given labels",
    "label_accuracy": "correct training labels",
}
"""The metrics drawn by epoch, if a run has them."""
_NAMED = 20  # largest number of classes shown as a table with names
_DRAWN = 150  # largest number of classes drawn in full
_PAIRS = 12


def write_report(run: Run, out: Path | None = None, data: str | None = None) -> Path:
    """Write the report of a finished run and return its path.

    Args:
        run: the run.
        out: the page; by default ``report.html`` in the run's folder.
        data: where the run's data is now, if it was moved; pictures and texts are read from there.
    """
    result, metrics, everything = run.result, [_flatten_loss(line) for line in run.metrics], run.labels()
    table = everything.filter(compute.not_equal(everything["split"], REMOVED))
    names, tests = run.class_names, result["tests"]
    changes = count_changes(table, names)
    changed, reviewed, quality = (table[name].to_numpy() for name in ("changed", "reviewed", "label_quality"))
    train_count = int(compute.sum(compute.equal(table["split"], "train")).as_py() or 0)
    views, issues = open_views(run, data), run.issues()
    title = f"Given labels by row, {changes.kind} labels by column, as fractions of the row."
    accuracy = next(iter(tests.values()))["per_class"] if tests else None
    path = out or run.own(layout.REPORT)
    write_page(
        path,
        "run.html",
        result=result,
        config=run.config_text,
        network=run.config.common.network,
        finished=datetime.fromtimestamp((run.folder / layout.RESULT).stat().st_mtime, UTC),
        train_count=train_count,
        val_count=len(table) - train_count,
        truth=truth_used(result),
        charts=_charts(metrics, result["selected_epoch"]),
        changes=changes,
        changed_count=int((changed & ~reviewed).sum()),
        changed_by_people=int((changed & reviewed).sum()),
        matrix_map=None if changes.is_small else heat_map(changes.shares, label=title),
        shades=heat(changes.shares).tolist(),
        heat_legend=heat_legend(),
        classes=class_rows(table, names, result["noise_rate_by_class"], accuracy),
        **_shift(run, names),
        lowest=find_lowest_quality(run, everything, names, views),
        below_half=int((everything["label_quality"].to_numpy() < 0.5).sum()),
        issues=None if issues is None else find_issues(everything, issues, names, views),
        views=views,
        errors=expect_errors(quality),
        wrong_share=wrong_share(table),
        held=HELD,
        metrics=metrics,
        columns=_columns(metrics),
    )
    return path


def truth_used(result: Mapping[str, Any]) -> str | None:
    """Return which true labels were used for model selection; None if none were."""
    return result["protocol"].partition("(uses the truth: ")[2].removesuffix(")") or None


def points_of(metrics: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Return (epoch, value) for every epoch that has a value."""
    return [(line["epoch"], line[key]) for line in metrics if line.get(key) is not None]


def _charts(metrics: Sequence[Mapping[str, Any]], selected: int) -> list[dict[str, Any]]:
    """Draw accuracies, the number of changed labels, the threshold and the loss by epoch."""
    charts = []
    curves = [(name, points_of(metrics, key)) for key, name in CURVES.items()]
    lines = [Line(name, points, place, selected) for place, (name, points) in enumerate(curves) if points]
    if lines:
        values = "; ".join(f"{line.name} {100 * dict(line.points)[selected]:.1f} %" for line in lines)
        label = f"Accuracies by epoch. At the selected epoch, {selected}: {values}."
        charts.append(_chart("Accuracy", lines, label, chosen=selected, percent=True))
    points = points_of(metrics, "changed")
    if any(value for _, value in points):
        epoch, largest = max(points, key=lambda point: point[1])
        label = f"Labels changed per epoch; the most, {largest}, in epoch {epoch}."
        charts.append(_chart("Labels changed", [Line("labels changed", points, 3)], label, bars=True))
    if points := points_of(metrics, "threshold"):
        label = f"The correction threshold, from {points[0][1]:.2f} to {points[-1][1]:.2f}."
        charts.append(_chart("Threshold", [Line("correction threshold", points, 4)], label, zero=True))
    losses = enumerate(_loss_terms(metrics), 5)
    if lines := [Line(key.removeprefix("loss "), points_of(metrics, key), place) for place, key in losses]:
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


def _flatten_loss(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of metrics.jsonl with each loss term as ``loss NAME``."""
    return {**line, **{f"loss {name}": value for name, value in line.get("loss", {}).items()}}


def _loss_terms(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for line in metrics for key in line if key.startswith("loss ")))


def _columns(metrics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the columns of the table of epochs with their headings."""
    losses = _loss_terms(metrics)
    columns = {
        "lr": "learning rate",
        **({losses[0]: "loss"} if len(losses) == 1 else {key: key for key in losses}),
        **CURVES,
        "changed": "labels changed",
        "threshold": "threshold",
        "seconds": "seconds",
    }
    return {key: name for key, name in columns.items() if points_of(metrics, key)}


@dataclass(frozen=True)
class LabelChanges:
    """Given labels against those that replace them.

    Attributes:
        kind: what replaces them: ``corrected`` labels if the run changed any, otherwise ``suggested`` ones.
        counts: confusion matrix (k, k), given labels by row; with very many classes, only those with most changes.
        names: of the classes in ``counts``.
        total: number of examples.
        changed: number of labels that differ.
        num_classes: of the run, shown or not.
        pairs: the most frequent changes, with keys ``given``, ``now``, ``count`` and ``share`` of the given class.
    """

    kind: str
    counts: Array
    names: tuple[str, ...]
    total: int
    changed: int
    num_classes: int
    pairs: list[dict[str, Any]]

    @property
    def is_small(self) -> bool:
        """Whether the matrix is small enough for a table with names."""
        return len(self.counts) <= _NAMED

    @property
    def shares(self) -> Array:
        """The matrix as fractions of its rows."""
        shares: Array = self.counts / np.maximum(1, self.counts.sum(1, keepdims=True))
        return shares


def count_changes(table: pa.Table, names: Sequence[str]) -> LabelChanges:
    """Count which labels replace which given ones."""
    given = table["given_label"].to_numpy()
    corrected = bool(table["changed"].to_numpy().any())
    now = table["current_label" if corrected else "suggested_label"].to_numpy()
    size = int(max(given.max(), now.max())) + 1
    counts = np.bincount(given * size + now, minlength=size * size).reshape(size, size)
    moved = counts.copy()
    np.fill_diagonal(moved, 0)
    totals = counts.sum(1)
    places = [divmod(int(place), size) for place in np.argsort(-moved, axis=None, kind="stable")[:_PAIRS]]
    pairs = [
        {"given": names[a], "now": names[b], "count": int(moved[a, b]), "share": float(moved[a, b] / totals[a])}
        for a, b in places
        if moved[a, b]
    ]
    shown = np.arange(size)
    if size > _DRAWN:
        shown = np.sort(np.argsort(-(moved.sum(0) + moved.sum(1)), kind="stable")[:_DRAWN])
    shown_names = tuple(names[c] for c in shown.tolist())
    kind = "corrected" if corrected else "suggested"
    return LabelChanges(kind, counts[np.ix_(shown, shown)], shown_names, len(given), int(moved.sum()), size, pairs)


def class_rows(
    table: pa.Table, names: Sequence[str], noise: Sequence[float] | None, accuracy: Sequence[float] | None
) -> list[dict[str, Any]]:
    """Return one row per class, the noisiest first.

    Keys are ``name``, the number of labels ``given`` and ``now``, the fraction of given labels that ``left`` the class
    (None if the run changed none), the estimated ``noise`` rate (None if unknown) and the test ``accuracy``.
    """
    given, current = table["given_label"].to_numpy(), table["current_label"].to_numpy()
    size = max(int(max(given.max(), current.max())) + 1, len(noise or ()), len(accuracy or ()))
    before, after = np.bincount(given, minlength=size), np.bincount(current, minlength=size)
    left = np.bincount(given[given != current], minlength=size)
    scored = np.bincount(given[~np.isnan(table["label_quality"].to_numpy())], minlength=size)
    rows: list[dict[str, Any]] = [
        {
            "name": names[c],
            "given": int(before[c]),
            "now": int(after[c]),
            "left": float(left[c] / before[c]) if left.any() and before[c] else None,
            "noise": noise[c] if noise is not None and scored[c] else None,
            "accuracy": None if accuracy is None else accuracy[c],
        }
        for c in range(size)
    ]
    return sorted(rows, key=lambda row: -(row["noise"] or 0.0))
