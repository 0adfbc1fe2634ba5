"""Draw Figures 4 and 5: test accuracy by the disturbance alpha or the sample fraction lambda, from results of sweeps.

python pages/influence_figure.py alpha docs/results/features.jsonl docs/images/alpha.png
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from drawing import COLORS, MARKERS, make_panels, save
from unflip.errors import ConfigError
from unflip.reproduce.tables import Line, Number, average, common_protocol, find, select_results

_INFLUENCES = {
    "alpha": ("covariance.disturbance", r"disturbance $\alpha$"),
    "lambda": ("calibration.sample_fraction", r"sample fraction $\lambda$"),
}
_MIN_SPAN = 2.0  # percentage points, so that small differences look small


@dataclass(frozen=True)
class Influence:
    """The curves of one setting, which is a data set and a noise."""

    setting: str
    curves: Mapping[str, Mapping[float, Number]]
    """Method -> value of the option -> test accuracy of the selected epoch, in percent."""
    protocol: Line


def influence(lines: Sequence[Line], axis: str) -> list[Influence]:
    """Average test accuracies over seeds, along one axis of a grid (the paper's Figures 4 and 5).

    Args:
        lines: results; those of grids with other axes than data, noise, method, seed and ``axis`` are
            skipped, and so are values that are not numbers (``auto``) and runs without a test accuracy.
        axis: the option, such as ``covariance.disturbance``.
    """
    axes = {"data", "noise", "method", "seed", axis}
    settings: dict[str, list[Line]] = {}
    for line in lines:
        known = isinstance(line["axes"].get(axis), int | float) and line["test_accuracy"]["selected"] is not None
        if known and axes.issuperset(line["axes"]):
            setting = " ".join(str(find(line, key)) for key in ("data", "noise") if find(line, key) is not None)
            settings.setdefault(setting, []).append(line)
    if not settings:
        raise ConfigError(f"results: none of {len(lines)} has the axis '{axis}' and a test accuracy")
    influences = []
    for setting, own in settings.items():
        protocol = common_protocol(own, setting)
        points: dict[tuple[float, str], list[Line]] = {}
        for line in own:
            points.setdefault((float(line["axes"][axis]), find(line, "method")), []).append(line)
        curves: dict[str, dict[float, Number]] = {method: {} for _, method in points}
        for value, method in sorted(points):
            where = f"{setting}, {method}, {axis} {value:g}"
            if number := average(points[value, method], where, lambda line: line["test_accuracy"]["selected"]):
                curves[method][value] = number
        influences.append(Influence(setting, curves, protocol))
    return influences


def draw_influence(path: Path, settings: Sequence[Influence], label: str) -> None:
    """Draw one panel per setting and one line per method, with deviations over seeds, on axes of equal span."""
    columns = min(2, len(settings))
    rows = ceil(len(settings) / columns)
    figure, panels = make_panels(columns, (4.4 * columns, 3.2 * rows + 0.5), rows=rows)
    methods = list(dict.fromkeys(method for setting in settings for method in setting.curves))
    curves = [curve for setting in settings for curve in setting.curves.values()]
    values = sorted({value for curve in curves for value in curve})
    step = 0.012 * (values[-1] - values[0])  # offset the methods so that their error bars do not overlap
    for axes, setting in zip(panels, settings, strict=False):
        for method, curve in setting.curves.items():
            place = methods.index(method)
            axes.errorbar(
                [value + step * (place - (len(methods) - 1) / 2) for value in curve],
                [float(number.mean) for number in curve.values()],
                [float(number.deviation or 0) for number in curve.values()], label=method, capsize=3,
                color=COLORS[place % len(COLORS)], marker=MARKERS[place % len(MARKERS)],
            )  # fmt: skip
        axes.set(xlabel=label, ylabel="test accuracy (%)", xticks=values)
        axes.set_title(setting.setting, fontsize="medium")
        axes.legend(fontsize="small")
    span = max(_MIN_SPAN, *(1.15 * axes.dataLim.height for axes in panels[: len(settings)]))
    for place, axes in enumerate(panels):
        middle = (axes.dataLim.y0 + axes.dataLim.y1) / 2
        axes.set(ylim=(middle - span / 2, middle + span / 2), visible=place < len(settings))
    protocols = {", ".join(f"{key} {value}" for key, value in setting.protocol.items()) for setting in settings}
    seeds = sorted({number.seeds or 0 for curve in curves for number in curve.values()})
    text = f"{'; '.join(sorted(protocols))}; mean and standard deviation over {' or '.join(map(str, seeds))} seeds"
    figure.suptitle(text, fontsize="small")
    save(figure, path)


def main(name: str, *paths: str) -> None:
    axis, label = _INFLUENCES[name]
    lines, _ = select_results([Path(path) for path in paths[:-1]], ())
    draw_influence(Path(paths[-1]), influence(lines, axis), label)


if __name__ == "__main__":
    main(*sys.argv[1:])
