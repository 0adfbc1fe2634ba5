"""report.html: the self-contained report of a run."""

import re
import shlex
import warnings
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from unflip.data.arrays import Array
from unflip.data.columns import Rows
from unflip.data.images import Pictures
from unflip.data.loaders import target_suffixes
from unflip.errors import InputError, UnflipError, UnflipWarning, described
from unflip.report.page import Line, line_chart, write_page
from unflip.runs import layout
from unflip.runs.folder import Run
from unflip.runs.labels import DOUBTFUL, REMOVED, UNLABELED, expect_errors, lowest_quality_first

CURVES = {
    "test_accuracy": "test accuracy",
    "val_accuracy": "validation accuracy on the given labels",
    "label_accuracy": "correct training labels",
}
"""The metrics drawn by epoch, if a run has them."""
_PAIRS = 12
_RATES = {"noise": "wrong", "low": "low", "high": "high"}  # of a class, from the numbers of wrong labels
_LOWEST = 24  # examples with the lowest label quality
_FLAGGED = 12  # examples of a check
_GROUPS, _MEMBERS = 6, 6  # groups of a check, and examples of each
_LARGE, _SMALL = 320, 160  # pixels of a picture: of a label issue, of another issue
_CHARACTERS = 300  # of a text


def report_finished(run: Run) -> None:
    """Write the report of a run that just finished; an error becomes a warning, since the run itself is complete."""
    page, result = run.report_path, run.folder / layout.RESULT
    if page.exists() and page.stat().st_mtime_ns >= result.stat().st_mtime_ns:  # a finished run was resumed
        return
    try:
        write_report(run)
    except Exception as error:
        message = f"the report could not be written ({described(error)}); try again: unflip report {run.folder}"
        warnings.warn(message, UnflipWarning, stacklevel=3)


def write_report(run: Run, out: Path | None = None, data: str | None = None) -> Path:
    """Write the report of a finished run and return its path.

    Args:
        run: the run.
        out: the page; by default ``report.html`` in the run's folder.
        data: where the run's data is now, if it was moved; pictures and texts are read from there.
    """
    result, everything, metrics = run.result, run.labels(), run.metrics
    table = everything.filter(compute.not_equal(everything["split"], REMOVED))
    names, tests = run.class_names, result["tests"]
    changes = count_changes(table, names)
    changed, reviewed, quality = (table[name].to_numpy() for name in ("changed", "reviewed", "label_quality"))
    counts = Counter(table["split"].to_pylist())
    annotators, annotations = (run.annotator_table(name) for name in (layout.ANNOTATORS, layout.ANNOTATIONS))
    views, issues = open_views(run, data), run.other_issues()
    accuracy = next(iter(tests.values()))["per_class"] if tests else None
    path = out or run.own(layout.REPORT)
    write_page(
        path,
        "run.html",
        result=result,
        config=run.config_text,
        network=run.config.common.network,
        finished=datetime.fromtimestamp((run.folder / layout.RESULT).stat().st_mtime, UTC),
        total=len(table),
        train_count=counts["train"],
        val_count=counts["val"],
        unlabeled=counts[UNLABELED],
        annotators=[] if annotators is None else annotators.to_pylist(),
        truth=truth_used(result),
        charts=_charts(metrics, result["selected_epoch"]),
        changes=changes,
        changed_count=int((changed & ~reviewed).sum()),
        changed_by_people=int((changed & reviewed).sum()),
        classes=class_rows(table, names, result["errors_by_class"], accuracy),
        lowest=find_lowest_quality(everything, names, views, annotations),
        issues=None if issues is None else find_issues(everything, issues, names, views),
        label_list=layout.LABEL_ISSUES if (run.folder / layout.LABEL_ISSUES).exists() else layout.LABELS_CSV,
        views=views,
        summary=run.label_summary,
        commands=next_commands(run),
        first_wrong=expect_errors(quality),
        doubtful_below=DOUBTFUL,
    )
    return path


def next_commands(run: Run) -> list[tuple[str, str]]:
    """Return the commands to continue with, each with what it does."""
    folder, summary = str(run.folder), run.label_summary
    has_model = (run.folder / layout.MODEL).exists()
    commands = [(["predict", folder, "--data", "NEW"], "predict labels for new examples")] if has_model else []
    if summary.issues or summary.doubtful:
        with suppress(UnflipError):  # data of this kind cannot be written, or is gone
            data = run.own_data()
            suffix, name = "".join(target_suffixes(data)), Path(data.path).name
            before = re.fullmatch(r"(.*\bfixed)(?:-(\d+))?", name := name.removesuffix(suffix))
            fixed = f"{before[1]}-{int(before[2] or 1) + 1}{suffix}" if before else f"{name}-fixed{suffix}"
            commands.insert(0, (["apply", folder, "--out", fixed], "write your data with corrected labels"))
        commands.insert(0, (["review", folder], "decide in the browser"))
    return [(shlex.join(["unflip", *command]), what) for command, what in commands]


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
        charts.append(_chart("Accuracy", lines, label, percent=True))
    points = points_of(metrics, "changed")
    if any(value for _, value in points):
        epoch, largest = max(points, key=lambda point: point[1])
        label = f"Labels changed per epoch; the most, {largest}, in epoch {epoch}."
        charts.append(_chart("Labels changed", [Line("labels changed", points, 3)], label, zero=True))
    if points := points_of(metrics, "threshold"):
        label = f"The correction threshold, from {points[0][1]:.2f} to {points[-1][1]:.2f}."
        charts.append(_chart("Threshold", [Line("correction threshold", points, 4)], label, zero=True))
    losses = [{"epoch": line["epoch"], **line.get("loss", {})} for line in metrics]
    terms = dict.fromkeys(name for line in losses for name in line if name != "epoch")
    if lines := [Line(name, points_of(losses, name), place) for place, name in enumerate(terms, 5)]:
        charts.append(_chart("Loss", lines, "The terms of the training loss by epoch.", zero=True))
    return charts


def _chart(title: str, lines: Sequence[Line], label: str, **options: Any) -> dict[str, Any]:
    """Return a chart for the template, with a legend if it has several lines."""
    return {"title": title, "svg": line_chart(lines, label=label, **options), "legend": lines if len(lines) > 1 else []}


@dataclass(frozen=True)
class LabelChanges:
    """Given labels against those that replace them.

    Attributes:
        kind: what replaces them: ``corrected`` labels if the run changed any, otherwise ``suggested`` ones.
        changed: number of labels that differ.
        pairs: the most frequent changes, with keys ``given``, ``now``, ``count`` and ``share`` of the given class.
    """

    kind: str
    changed: int
    pairs: list[dict[str, Any]]


def count_changes(table: pa.Table, names: Sequence[str]) -> LabelChanges:
    """Count which labels replace which given ones."""
    kind = "corrected" if bool(table["changed"].to_numpy().any()) else "suggested"
    given = table["given_label"].to_numpy()
    now = table["current_label" if kind == "corrected" else "suggested_label"].to_numpy()
    changed = (given != now) & (given >= 0)
    changes, counts = np.unique(np.stack([given, now], 1)[changed], axis=0, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_PAIRS]
    pairs = [
        {"given": names[a], "now": names[b], "count": count, "share": count / int((given == a).sum())}
        for (a, b), count in zip(changes[most].tolist(), counts[most].tolist(), strict=True)
    ]
    return LabelChanges(kind, int(counts.sum()), pairs)


def class_rows(
    table: pa.Table, names: Sequence[str], errors: Sequence[dict[str, float] | None], accuracy: Sequence[float] | None
) -> list[dict[str, Any]]:
    """Return one row per class, the noisiest first.

    Keys are ``name``, the number of labels ``given`` and ``now``, the fraction of given labels that ``left`` the class,
    the estimated ``noise`` rate of given labels with ``low`` and ``high`` (None if unknown), and test ``accuracy``.
    """
    given, current = table["given_label"].to_numpy(), table["current_label"].to_numpy()
    given, current, size = given[given >= 0], current[given >= 0], len(names)
    before, after = np.bincount(given, minlength=size), np.bincount(current, minlength=size)
    left = np.bincount(given[given != current], minlength=size) / np.maximum(1, before)
    rows: list[dict[str, Any]] = []
    for c, one in enumerate(errors):
        row = {"name": names[c], "given": int(before[c]), "now": int(after[c]), "left": float(left[c])}
        rates = {name: one and one[key] / one["scored"] for name, key in _RATES.items()}
        rows.append({**row, **rates, "accuracy": accuracy[c] if accuracy else None})
    return sorted(rows, key=lambda row: -(row["noise"] or 0.0))


@dataclass(frozen=True)
class Views:
    """What a run's examples look like.

    Attributes:
        pictures: if they are images.
        rows: if they are texts or rows of a table.
        note: why these are missing, if they are.
    """

    pictures: Pictures | None = None
    rows: Rows | None = None
    note: str | None = None

    @property
    def small(self) -> bool:
        """Whether pictures are so small that single pixels should stay visible."""
        return self.pictures is not None and self.pictures.media_type == "image/png"

    def picture(self, index: int, side: int = _SMALL) -> str | None:
        """Return a picture as a data URL; None if there is none, or its file cannot be read any more."""
        if self.pictures is None:
            return None
        try:
            content = self.pictures.thumbnail(index, side)
        except InputError:
            return None
        return f"data:{self.pictures.media_type};base64,{b64encode(content).decode()}"

    def row(self, index: int) -> tuple[str | None, Sequence[tuple[str, str]]]:
        """Return text and cells of an example, as :class:`Shown` has them."""
        return self.text(index), self.rows.cells(index) if self.rows else ()

    def text(self, index: int) -> str | None:
        """Return the beginning of a text, in one line; None if examples are not texts."""
        text = self.rows.text(index) if self.rows else None
        if text is None:
            return None
        line = " ".join(text[: 4 * _CHARACTERS].split())
        return line if len(line) <= _CHARACTERS and len(text) <= 4 * _CHARACTERS else f"{line[:_CHARACTERS].rstrip()}…"


@dataclass(frozen=True)
class Shown:
    """An example on the page.

    Attributes:
        id: its name.
        given: name of the given label.
        picture: as a data URL.
        text: its beginning, in one line.
        cells: name and value of the first columns of a table.
        suggested: name of the suggested label.
        quality: label quality; None if unknown.
        is_label_issue: whether its label is a label issue.
        reason: why a check flagged it, or the labels of all annotators.
    """

    id: str = ""
    given: str = ""
    picture: str | None = None
    text: str | None = None
    cells: Sequence[tuple[str, str]] = ()
    suggested: str = ""
    quality: float | None = None
    is_label_issue: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Kind:
    """The issues of one check.

    Attributes:
        name: of the check; the template has its heading and explanation.
        count: number of flagged examples or classes.
        entries: the first of them, if they form no groups.
        groups: the first members of the first groups, different labels first.
        group_count: number of groups.
        of_classes: whether it flags classes instead of examples.
    """

    name: str
    count: int
    entries: tuple[Shown, ...]
    groups: tuple[tuple[Shown, ...], ...]
    group_count: int
    of_classes: bool


def open_views(run: Run, data: str | None) -> Views:
    """Open the pictures or texts of a run; ``data`` is where the data is now, if it was moved."""
    try:
        if pictures := run.pictures(data):
            return Views(pictures)
        if run.holds_cells(data):
            return Views(rows=run.rows(data))
    except UnflipError as error:
        if data is not None:
            raise
        return Views(note=f"The examples are missing ({error}).")
    if data is not None:
        raise InputError(f"--data {data}: has no pictures, texts or rows to show")
    return Views()


def find_lowest_quality(
    table: pa.Table, names: Sequence[str], views: Views, annotations: pa.Table | None = None
) -> list[Shown]:
    """Return the unreviewed examples with the lowest label quality, and all their labels if there are several."""
    order = lowest_quality_first(table)
    rows = table.take(order[~(table["reviewed"].to_numpy() | (table["given_label"].to_numpy() < 0))[order]][:_LOWEST])
    by: dict[int, list[str]] = {}
    if annotations is not None:
        for row in annotations.filter(compute.is_in(annotations["index"], rows["index"])).to_pylist():
            by.setdefault(row["index"], []).append(f"{row['annotator']}: {row['label']}")
    return [
        Shown(
            row["id"],
            names[row["given_label"]],
            views.picture(row["index"], _LARGE),
            *views.row(row["index"]),
            names[row["suggested_label"]],
            row["label_quality"],
            row["is_label_issue"],
            ", ".join(by.get(row["index"], [])),
        )
        for row in rows.to_pylist()
    ]


def find_issues(table: pa.Table, issues: pa.Table, names: Sequence[str], views: Views) -> list[Kind]:
    """Return the flagged issues by check, in the order of the file; ``table`` is the label table."""
    flagged = issues.filter(issues["flag"])
    kinds = list(dict.fromkeys(flagged["issue"].to_pylist()))
    given = table["given_label"].to_numpy()
    return [_kind(name, flagged.filter(compute.equal(flagged["issue"], name)), given, names, views) for name in kinds]


def _kind(name: str, issues: pa.Table, given: Array, names: Sequence[str], views: Views) -> Kind:
    def show(issue: dict[str, Any]) -> Shown:
        if (i := issue["index"]) is None:
            return Shown(reason=issue["reason"])
        label = names[given[i]] if given[i] >= 0 else "no label"
        return Shown(issue["id"], label, views.picture(i), *views.row(i), reason=issue["reason"])

    groups = _groups(issues, given)
    of_classes = issues["index"].null_count == len(issues)
    listed = issues.slice(0, None if of_classes else _FLAGGED).to_pylist()
    entries = () if groups else tuple(map(show, listed))
    shown = tuple(tuple(map(show, issues.take(rows[:_MEMBERS]).to_pylist())) for rows in groups[:_GROUPS])
    return Kind(name, len(issues), entries, shown, len(groups), of_classes)


def _groups(issues: pa.Table, given: Array) -> list[list[int]]:
    """Return the positions of each group's members; groups with different labels first, then in listing order."""
    members: dict[int, list[int]] = {}
    for position, group in enumerate(issues["group"].to_pylist()):
        if group is not None:
            members.setdefault(group, []).append(position)
    index = issues["index"].fill_null(-1).to_numpy()
    return sorted(members.values(), key=lambda rows: len(set(given[index[rows]].tolist())) == 1)
