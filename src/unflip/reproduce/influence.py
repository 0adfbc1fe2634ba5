"""How test accuracy depends on one option: means over seeds along a grid axis (the paper's Figures 4 and 5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from matplotlib.figure import Figure

from unflip.errors import ConfigError
from unflip.report.figures import COLORS, MARKERS, save
from unflip.reproduce.paper_numbers import Number
from unflip.reproduce.results_file import Line, by_seed, find, one_protocol
from unflip.reproduce.tables import summary

_COLUMNS = 2
_LEAST_SPAN = 2.0  # percentage points, so that small differences look small


@dataclass(frozen=True)
class Influence:
    """The curves of one setting, which is a data set and a noise."""

    setting: str
    curves: Mapping[str, Mapping[float, Number]]
    """Method -> value -> accuracy of the selected epoch, in percent."""
    protocol: Mapping[str, object]


def influence(lines: Sequence[Line], axis: str, fixed: Sequence[str] = ()) -> list[Influence]:
    """Collect the results of grids with ``axis`` and otherwise only data, noise, method, seed and ``fixed`` axes."""
    axes = {"data", "noise", "method", "seed", axis, *fixed}
    settings: dict[str, dict[str, dict[float, list[Line]]]] = {}
    for line in lines:
        if axis in line["axes"] and axes.issuperset(line["axes"]):
            value = line["axes"][axis]
            if not isinstance(value, int | float) or line["test_accuracy"]["selected"] is None:
                continue  # skip `auto`, which is not a number, and untested runs
            setting = " ".join(str(find(line, key)) for key in ("data", "noise") if find(line, key) is not None)
            methods = settings.setdefault(setting, {})
            methods.setdefault(find(line, "method"), {}).setdefault(float(value), []).append(line)
    if not settings:
        raise ConfigError(f"results: none of {len(lines)} has the axis '{axis}' and a test accuracy")
    found = []
    for setting, methods in settings.items():
        own = [line for values in methods.values() for rows in values.values() for line in rows]
        protocol = one_protocol(own, setting) or {}
        curves = {method: _curve(values, f"{setting}, {method}, {axis}") for method, values in methods.items()}
        found.append(Influence(setting, curves, protocol))
    return found


def _curve(values: Mapping[float, Sequence[Line]], what: str) -> dict[float, Number]:
    curve = {}
    for value, lines in sorted(values.items()):
        number = summary([line["test_accuracy"]["selected"] for line in by_seed(lines, f"{what} {value:g}")])
        assert number
        curve[value] = number
    return curve


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
                color=COLORS[place % len(COLORS)], marker=MARKERS[place % len(MARKERS)],
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
