"""The paper's figures: the influence of an option, PMD noise, and the shift of class Gaussians are drawn here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch

from unflip.errors import ConfigError, unknown
from unflip.noise.pmd import BinaryPmd, keep_probability, pmd_bound
from unflip.report.figures import COLORS, FORMATS, MARKERS, draw_curves, make_panels, save
from unflip.reproduce.paper_numbers import Number
from unflip.reproduce.shift import measure_shift
from unflip.reproduce.tables import Line, average, common_protocol, find, select_results
from unflip.runs.folder import Run
from unflip.runs.layout import check_output

_INFLUENCES = {
    "alpha": ("covariance.disturbance", r"disturbance $\alpha$"),
    "lambda": ("calibration.sample_fraction", r"sample fraction $\lambda$"),
}
_OF_RUNS = ("curves", "shift")
_NAMES = (*_INFLUENCES, *_OF_RUNS, "pmd")
_MIN_SPAN = 2.0  # percentage points, so that small differences look small
_EXAMPLE = BinaryPmd(t0=0.15, c1=3.0, c2=1.0, level=0.5)


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
        name: alpha, lambda (from ``results``), curves, shift (from ``runs``) or pmd.
        out: the picture: .png, .svg or .pdf.
        results: results.jsonl files, or folders of sweeps.
        runs: folders of finished runs; one for shift.
        where: ``key=value`` conditions that results must meet.
        force: overwrite an existing picture.
    """
    if name not in _NAMES:
        raise ConfigError(unknown("figure", name, _NAMES))
    for option, values, users in (("--results", results, _INFLUENCES), ("--run", runs, _OF_RUNS)):
        if bool(values) != (name in users):
            raise ConfigError(f"figure {name} {'does not use' if values else 'needs'} {option}")
    if where and not results:
        raise ConfigError(f"figure {name} does not use --where")
    if name == "shift" and len(runs) > 1:
        raise ConfigError(f"figure shift takes one --run, got {len(runs)}")
    check_output(out, FORMATS, force=force, inputs=results)
    if name in _INFLUENCES:
        axis, label = _INFLUENCES[name]
        lines, fixed = select_results(results, where)
        draw_influence(out, influence(lines, axis, fixed), label)
    elif name == "curves":
        draw_curves(out, [Run(folder) for folder in runs])
    elif name == "shift":
        draw_shift(out, Run(runs[0]))
    else:
        draw_pmd(out)
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


def draw_pmd(path: Path) -> None:
    """Draw noise that satisfies Definition 1 with its bound, and the flip probability of each type."""
    figure, (left, right) = make_panels(2, (10.5, 4.0))
    eta = torch.linspace(0, 1, 501, dtype=torch.float64)
    t0, c1, c2 = _EXAMPLE.t0, _EXAMPLE.c1, _EXAMPLE.c2
    flip = torch.where(eta < 0.5, _EXAMPLE.rho_01(eta), _EXAMPLE.rho_10(eta))
    # Definition 1 is an upper bound, so the example stays a little below it.
    left.plot(eta, 0.8 * flip, color=COLORS[0], label="example noise")
    bound = pmd_bound(torch.minimum(eta, 1 - eta), c1=c1, c2=c2)
    bound[(eta - 0.5).abs() < t0] = torch.nan
    label = rf"bound, $c_1 \min(\eta, 1 - \eta)^{{1 + c_2}}$, $c_1$ = {c1:g}, $c_2$ = {c2:g}"
    left.plot(eta, bound, color=COLORS[1], ls="--", label=label)
    left.axvspan(0.5 - t0, 0.5 + t0, color="#eeeeee", zorder=0, label=f"unrestricted, $t_0$ = {t0:g}")
    left.set(xlim=(0, 1), ylim=(0, 0.75), xlabel=r"$\eta(x) = P(y = 1 | x)$", title="Definition 1, two classes")
    left.set_ylabel("probability that the more likely label flips")
    left.legend(fontsize="small", loc="upper center")

    margin = torch.linspace(0, 1, 501, dtype=torch.float64)
    for kind, name in enumerate(("I", "II", "III"), 1):
        for factor, style in ((1.0, "-"), (2.0, "--")):
            label = f"type {name}" + (f", factor {factor:g}" if factor != 1 else "")
            flip = 1 - keep_probability(margin, kind=kind, factor=factor)
            right.plot(margin, flip, color=COLORS[kind - 1], ls=style, label=label)
    right.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=r"margin $\eta_u - \eta_s$ of the two most probable classes")
    right.set(ylabel="probability of the second class", title="Types I to III; the factor sets the level")
    right.legend(fontsize="small", loc="lower left", ncols=2)
    save(figure, path)


def draw_shift(path: Path, run: Run) -> None:
    """Draw the last epoch's features in panels, with one ellipse of two standard deviations per class.

    Arrows point from a class's mean under the given labels to its mean in the panel; see ``measure_shift``.
    """
    shift = measure_shift(run)
    figure, panels = make_panels(len(shift.panels), (14, 4.9), sharex=True, sharey=True)
    for axes, panel in zip(panels, shift.panels, strict=True):
        for place, c in enumerate(shift.classes):
            color, start, end = COLORS[place], shift.panels[0].means[place], panel.means[place]
            axes.plot(*panel.points[place].T, ".", color=color, ms=5, alpha=0.45, mew=0)
            axes.plot(*panel.outlines[place].T, color=color, lw=1.8, label=run.class_names[c])
            axes.plot(*start, "x", color=color, ms=5, mew=1.5)
            if axes is not panels[0]:
                style = {"arrowstyle": "-|>", "color": "black", "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
                axes.annotate("", end, start, arrowprops=style)
        axes.set(title=panel.title, xlabel="first direction")
    panels[-1].set_title(f"{shift.panels[-1].title} ({run.result['method']})")
    panels[0].set_ylabel("second direction")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", title="class", fontsize="small")
    count, total = len(shift.classes), shift.num_classes
    shown = "" if count == total else f"; the {count} of {total} classes whose means moved farthest"
    text = f"features of the last epoch; ellipses: 2 sigma; arrows: from the mean under the given labels{shown}"
    figure.suptitle(text, fontsize="small")
    save(figure, path)
