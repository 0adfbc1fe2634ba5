"""Figures: learning curves and the demo; colors and saving for all figures."""

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.files import write_atomically
from unflip.report.run_report import CURVES
from unflip.runs.folder import Run
from unflip.runs.labels import lowest_quality_first

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B3A100")
"""The palette of Okabe and Ito, with a darker yellow for white paper."""
MARKERS = "osD^vP*X"
FORMATS = (".png", ".svg", ".pdf")
_STYLES = ("-", "--", ":", "-.")
_ROWS, _COLUMNS = 5, 5
_BINS = 20


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format of its file extension."""
    form = path.suffix.lower().removeprefix(".")
    content = BytesIO()  # an error on a full disk then names the file
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # class names in any script
        figure.savefig(content, dpi=150, format=form)
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))


def make_panels(columns: int, size: tuple[float, float], *, rows: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``size`` inches and its panels, row by row."""
    figure = Figure(figsize=size, layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, panels


def draw_curves(path: Path, runs: Sequence[Run]) -> None:
    """Draw every metric that any run has, one panel each; runs are named by their folders."""
    names = [run.folder.resolve().name for run in runs]
    named = {name if names.count(name) == 1 else str(run.folder): run for name, run in zip(names, runs, strict=True)}
    known = [key for key in CURVES if any(line.get(key) is not None for run in runs for line in run.metrics)]
    if not known:
        folders = ", ".join(str(run.folder) for run in runs)
        raise InputError(f"{folders}: no accuracies to draw: the runs have neither test nor validation examples")
    figure, panels = make_panels(len(known), (4.6 * len(known) + 1.2, 4.0))
    for axes, key in zip(panels, known, strict=True):
        draw_metric(axes, named, key)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    if any(run.is_finished for run in runs):
        figure.suptitle("a dot marks the selected epoch", fontsize="small")
    save(figure, path)


def draw_metric(axes: Axes, runs: Mapping[str, Run], key: str) -> None:
    """Draw one metric by epoch, one line per run, with a dot at the selected epoch."""
    for place, (name, run) in enumerate(runs.items()):
        lines = [line for line in run.metrics if line.get(key) is not None]
        if not lines:
            continue
        color, style = COLORS[place % len(COLORS)], _STYLES[place // len(COLORS) % len(_STYLES)]
        values = {line["epoch"]: 100 * line[key] for line in lines}
        axes.plot(list(values), list(values.values()), color=color, ls=style, label=name)
        if run.is_finished and (chosen := run.result["selected_epoch"]) in values:
            axes.plot(chosen, values[chosen], "o", color=color, markersize=5)
    axes.set(xlabel="epoch", ylabel=f"{CURVES[key]} (%)")


def draw_demo(path: Path, runs: Mapping[str, Run]) -> None:
    """Draw the learning curves of all runs, and the label quality and top label issues of the last one."""
    figure = Figure(figsize=(16, 4.8), layout="constrained")
    grid = figure.add_gridspec(1, 3)
    axes = figure.add_subplot(grid[0, 0])
    draw_metric(axes, runs, "test_accuracy")
    axes.set_title("Trained on noisy labels, tested on clean ones")
    axes.grid(alpha=0.3)
    axes.legend()

    method, run = list(runs.items())[-1]
    table = run.labels()
    quality, given = (table[name].to_numpy() for name in ("label_quality", "given_label"))
    digits = load_raw(DataOptions(path="digits")).train
    assert digits.labels is not None
    right = given == digits.labels[table["index"].to_numpy()]
    axes = figure.add_subplot(grid[0, 1])
    parts, names = [quality[right], quality[~right]], ["correct label", "wrong label"]
    axes.hist(parts, bins=_BINS, range=(0, 1), stacked=True, label=names)
    axes.set(title=f"Label quality by {method}, out of sample", xlabel="label quality", ylabel="labels")
    axes.legend()

    table = table.take(lowest_quality_first(table)[: _ROWS * _COLUMNS])
    panel = figure.add_subfigure(grid[0, 2])
    panel.suptitle("Lowest label quality: given → corrected")
    images = np.asarray(digits.inputs).reshape(-1, 8, 8)
    for axes, row in zip(panel.subplots(_ROWS, _COLUMNS).flat, table.to_pylist(), strict=True):
        axes.imshow(images[row["index"]], cmap="gray_r")
        axes.set_title(f"{row['given_label']} → {row['current_label']}", fontsize=9)
        axes.axis("off")
    save(figure, path)
