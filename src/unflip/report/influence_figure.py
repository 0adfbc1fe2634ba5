"""The influence of alpha or lambda on test accuracy (the paper's Figures 4 and 5)."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from matplotlib.figure import Figure

from unflip.report.figure_file import COLOURS, MARKERS, save
from unflip.reproduce.influence import Influence

_COLUMNS = 2
_LEAST_SPAN = 2.0  # percentage points, so that small differences look small


def draw_influence(path: Path, settings: Sequence[Influence], label: str) -> None:
    """Draw one panel per setting and one line per method, with deviations over seeds, on axes of equal span."""
    columns = min(_COLUMNS, len(settings))
    rows = ceil(len(settings) / columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    ranges = [_range(setting) for setting in settings]
    span = max(_LEAST_SPAN, 1.15 * max(high - low for low, high in ranges))
    methods = list(dict.fromkeys(method for setting in settings for method in setting.curves))
    values = sorted({value for setting in settings for curve in setting.curves.values() for value in curve})
    step = 0.012 * (values[-1] - values[0])  # offset the methods so that their error bars do not overlap
    for axes, setting, (low, high) in zip(panels, settings, ranges, strict=False):
        for method, curve in setting.curves.items():
            place = methods.index(method)
            axes.errorbar(
                [value + step * (place - (len(methods) - 1) / 2) for value in curve],
                [float(number.mean) for number in curve.values()],
                [float(number.deviation or 0) for number in curve.values()], label=method, capsize=3,
                color=COLOURS[place % len(COLOURS)], marker=MARKERS[place % len(MARKERS)],
            )  # fmt: skip
        axes.set_xticks(values)
        middle = (low + high) / 2
        axes.set(xlabel=label, ylabel="test accuracy (%)", ylim=(middle - span / 2, middle + span / 2))
        axes.set_title(setting.setting, fontsize="medium")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    for axes in list(panels)[len(settings) :]:
        axes.set_visible(False)
    figure.suptitle(_caption(settings), fontsize="small")
    save(figure, path)


def _range(setting: Influence) -> tuple[float, float]:
    numbers = [number for curve in setting.curves.values() for number in curve.values()]
    ends = [(float(n.mean - (n.deviation or 0)), float(n.mean + (n.deviation or 0))) for n in numbers]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _caption(settings: Sequence[Influence]) -> str:
    ways = {
        f"network {s.protocol['network']}, {s.protocol['epochs']} epochs, selection: {s.protocol['protocol']}"
        for s in settings
    }
    seeds = {number.seeds for s in settings for curve in s.curves.values() for number in curve.values()}
    counts = " or ".join(map(str, sorted(count for count in seeds if count)))
    return f"{'; '.join(sorted(ways))}; mean and deviation over {counts} seeds"
