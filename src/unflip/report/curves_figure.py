"""Learning curves of runs: test accuracy, agreement with noisy validation labels, correct training labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unflip.errors import InputError
from unflip.report.comparison import name_runs
from unflip.report.figure_file import COLOURS, save
from unflip.runs.folder import Run

_PANELS = {
    "test_accuracy": "test accuracy (%)",
    "val_accuracy": "validation: agreement with given labels (%)",
    "label_accuracy": "correct training labels (%)",
}
_STYLES = ("-", "--", ":", "-.")


def draw_curves(path: Path, runs: Sequence[Run]) -> None:
    """Draw every metric that any run has, one panel each, and mark the selected epoch of finished runs."""
    named = name_runs(runs)
    known = [key for key in _PANELS if any(line.get(key) is not None for run in runs for line in run.metrics)]
    if not known:
        folders = ", ".join(str(run.folder) for run in runs)
        raise InputError(f"{folders}: no accuracies by epoch; curves need a test set or validation examples")
    figure = Figure(figsize=(4.6 * len(known) + 1.2, 4.0), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(known), squeeze=False)[0], known, strict=True):
        draw_metric(axes, named, key)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", fontsize="small")
    if any(run.is_finished for run in runs):
        figure.suptitle("a dot marks the selected epoch", fontsize="small")
    save(figure, path)


def draw_metric(axes: Axes, runs: Mapping[str, Run], key: str) -> None:
    """Draw one metric by epoch, one line per run, with a dot at the selected epoch."""
    for place, (name, run) in enumerate(runs.items()):
        lines = [line for line in run.metrics if line.get(key) is not None]
        if not lines:
            continue
        colour, style = COLOURS[place % len(COLOURS)], _STYLES[place // len(COLOURS) % len(_STYLES)]
        values = {line["epoch"]: 100 * line[key] for line in lines}
        axes.plot(list(values), list(values.values()), color=colour, ls=style, label=name)
        if run.is_finished and (chosen := run.result["selected_epoch"]) in values:
            axes.plot(chosen, values[chosen], "o", color=colour, markersize=5)
    axes.set(xlabel="epoch", ylabel=_PANELS[key])
    axes.grid(alpha=0.3)
