"""The paper's figures 4 and 5, the influence of an option, and learning curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from unflip.errors import ConfigError, unknown
from unflip.report.figures import COLORS, FORMATS, MARKERS, draw_curves, make_panels, save
from unflip.reproduce.paper_numbers import Number
from unflip.reproduce.tables import Line, average, common_protocol, find, select_results
from unflip.runs.folder import Run
from unflip.runs.layout import check_output

_INFLUENCES = {
    "alpha": ("covariance.disturbance", r"disturbance $\alpha$"),
    "lambda": ("calibration.sample_fraction", r"sample fraction $\lambda$"),
}
_CURVES = "curves"
_NAMES = (*_INFLUENCES, _CURVES)
_MIN_SPAN = 2.0  # percentage points, so that small differences look small


def figure(
    name: str,
    out: Path,
    *,
    results: Sequence[Path] = (),
    runs: Sequence[Path] = (),
    where: Sequence[str] = (),
    force: bool = False,
) -> Path:
    """Draw a figure and return its path.

    Args:
        name: alpha, lambda (from ``results``) or curves (from ``runs``).
        out: the picture: .png, .svg or .pdf.
        results: results.jsonl files, or folders of sweeps.
        runs: folders of finished runs.
        where: ``key=value`` conditions that results must meet.
        force: overwrite an existing picture.
    """
    if name not in _NAMES:
        raise ConfigError(unknown("figure", name, _NAMES))
    for option, values, is_used in (("--results", results, name != _CURVES), ("--run", runs, name == _CURVES)):
        if bool(values) != is_used:
            raise ConfigError(f"figure {name} {'needs' if is_used else 'does not use'} {option}")
    if where and name == _CURVES:
        raise ConfigError(f"figure {name} does not use --where")
    check_output(out, FORMATS, force=force, inputs=results)
    if name in _INFLUENCES:
        axis, label = _INFLUENCES[name]
        lines, fixed = select_results(results, where)
        draw_influence(out, influence(lines, axis, fixed), label)
    else:
        draw_curves(out, [Run(folder) for folder in runs])
    return out


@dataclass(frozen=True)
class Influence:
    """The curves of one setting, which is a data set and a noise."""

    setting: str
    curves: Mapping[str, Mapping[float, Number]]
    """Method -> value of the option -> test accuracy of the selected epoch, in percent."""
    protocol: Line


def influence(lines: Sequence[Line], axis: str, fixed: Sequence[str] = ()) -> list[Influence]:
    """Average test accuracies over seeds, along one axis of a grid (the paper's Figures 4 and 5).

    Args:
        lines: results; those of grids with other axes than data, noise, method, seed, ``axis`` and ``fixed`` are
            skipped, and so are values that are not numbers (``auto``) and runs without a test accuracy.
        axis: the option, such as ``covariance.disturbance``.
        fixed: further axes that results may have.
    """
    axes = {"data", "noise", "method", "seed", axis, *fixed}
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
