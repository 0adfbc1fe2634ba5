"""The mean shift and the class Gaussians of a run in two dimensions (the paper's Figures 1 and 3)."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unflip.data.arrays import Array
from unflip.errors import RunFolderError
from unflip.report.figure_file import COLOURS, save
from unflip.report.shift import measure_shift
from unflip.runs.folder import Run


def draw_shift(path: Path, run: Run) -> None:
    """Draw the last epoch's features in panels, with one ellipse of two standard deviations per class.

    Arrows point from a class's mean under the given labels to its mean in the panel; see ``measure_shift``.
    """
    if run.gaussians is None:
        raise RunFolderError(
            f"{run.folder}: gaussians.safetensors is missing; use a finished run of a method that calibrates, "
            "such as mddc or cddc"
        )
    shift = measure_shift(run)
    names = run.class_names
    figure = Figure(figsize=(14, 4.9), layout="constrained")
    panels = figure.subplots(1, len(shift.panels), sharex=True, sharey=True)
    for axes, panel in zip(panels, shift.panels, strict=True):
        for place, c in enumerate(shift.classes):
            colour, points = COLOURS[place], panel.points[place]
            axes.plot(points[:, 0], points[:, 1], ".", color=colour, ms=5, alpha=0.45, mew=0)
            axes.plot(*panel.outlines[place].T, color=colour, lw=1.8, label=names[c])
            _arrow(axes, shift.panels[0].means[place], panel.means[place], colour)
        axes.set(title=panel.title, xlabel="first direction")
        axes.grid(alpha=0.3)
    panels[-1].set_title(f"{shift.panels[-1].title} ({run.result['method']})")
    panels[0].set_ylabel("second direction")
    handles, labels_shown = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels_shown, loc="outside right center", title="class", fontsize="small")
    total, few = shift.num_classes, len(shift.classes)
    shown = "" if few == total else f"; the {few} of {total} classes whose means moved farthest"
    figure.suptitle(
        f"features of the last epoch; ellipses: 2 sigma; arrows: from the mean under the given labels{shown}",
        fontsize="small",
    )
    save(figure, path)


def _arrow(axes: Axes, start: Array, end: Array, colour: str) -> None:
    axes.plot(*start, "x", color=colour, ms=5, mew=1.5)
    if not np.allclose(start, end):
        style = {"arrowstyle": "-|>", "color": "black", "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (end[0], end[1]), (start[0], start[1]), arrowprops=style)
