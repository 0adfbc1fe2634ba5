"""Draw learning curves of runs: every metric that any of them has, by epoch.

python pages/curves_figure.py runs/plc runs/mddc curves.png
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from drawing import COLORS, make_panels, save
from unflip.report.run_report import CURVES
from unflip.runs.folder import Run

_STYLES = ("-", "--", ":", "-.")


def draw_curves(path: Path, runs: Sequence[Run]) -> None:
    """Draw every metric that any run has, one panel each; runs are named by their folders."""
    names = [run.folder.resolve().name for run in runs]
    named = {name if names.count(name) == 1 else str(run.folder): run for name, run in zip(names, runs, strict=True)}
    known = [key for key in CURVES if any(line.get(key) is not None for run in runs for line in run.metrics)]
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


if __name__ == "__main__":
    draw_curves(Path(sys.argv[-1]), [Run(Path(folder)) for folder in sys.argv[1:-1]])
