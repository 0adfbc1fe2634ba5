"""The paper's figures: which there are and what each needs; PMD noise and the shift of class Gaussians are here."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unflip.data.arrays import Array
from unflip.errors import ConfigError, RunFolderError, unknown
from unflip.noise.pmd import BinaryPmd, keep_probability, pmd_bound
from unflip.report.figures import COLORS, FORMATS, draw_curves, save
from unflip.report.shift import measure_shift
from unflip.reproduce import boundary, level_sets
from unflip.reproduce.boundary import draw_boundaries
from unflip.reproduce.influence import draw_influence, influence
from unflip.reproduce.level_sets import draw_level_sets
from unflip.reproduce.results_file import keep, parse_conditions, read_results
from unflip.runs.folder import Run
from unflip.runs.layout import check_output

_INFLUENCES = {
    "alpha": ("covariance.disturbance", r"disturbance $\alpha$"),
    "lambda": ("calibration.sample_fraction", r"sample fraction $\lambda$"),
}
_NAMES = (*_INFLUENCES, "curves", "shift", "pmd", "level-set", "boundary")
_EXAMPLE = BinaryPmd(t0=0.15, c1=3.0, c2=1.0, level=0.5)
_FACTORS = {1.0: "-", 2.0: "--"}
_TYPES = {1: "I", 2: "II", 3: "III"}


def figure(
    name: str,
    out: Path,
    *,
    results: Sequence[Path] = (),
    runs: Sequence[Path] = (),
    where: Sequence[str] = (),
    force: bool = False,
) -> Path:
    """Draw a figure and return where.

    Args:
        name: alpha, lambda (from ``results``), curves, shift (from ``runs``), pmd, level-set or boundary.
        out: the picture: .png, .svg or .pdf.
        results: results.jsonl files, or folders of sweeps.
        runs: folders of finished runs.
        where: ``key=value`` conditions that results must meet.
        force: replace a picture that is there.
    """
    if name not in _NAMES:
        raise ConfigError(unknown("figure", name, _NAMES))
    _check_inputs(name, results=results, runs=runs, where=where)
    check_output(out, FORMATS, force=force, inputs=results)
    if name in _INFLUENCES:
        axis, label = _INFLUENCES[name]
        conditions = parse_conditions(where)
        draw_influence(out, influence(keep(read_results(results), conditions), axis, list(conditions)), label)
    elif name == "curves":
        draw_curves(out, [Run(folder) for folder in runs])
    elif name == "shift":
        draw_shift(out, Run(runs[0]))
    elif name == "pmd":
        draw_pmd(out)
    elif name == "level-set":
        draw_level_sets(out, level_sets.simulate())
    else:
        draw_boundaries(out, boundary.simulate())
    return out


def _check_inputs(name: str, *, results: Sequence[Path], runs: Sequence[Path], where: Sequence[str]) -> None:
    """Refuse what the figure would ignore, and say what it needs."""
    needs_results, needs_runs = name in _INFLUENCES, name in ("curves", "shift")
    if needs_results and not results:
        raise ConfigError(f"figure {name} needs --results, a results.jsonl that `unflip paper sweep` wrote")
    if needs_runs and not runs:
        raise ConfigError(f"figure {name} needs --run, the folder of a run")
    if name == "shift" and len(runs) > 1:
        raise ConfigError(f"figure shift draws one run, {len(runs)} came; give --run once")
    for option, came, used in (
        ("--results", results, needs_results),
        ("--where", where, needs_results),
        ("--run", runs, needs_runs),
    ):
        if came and not used:
            raise ConfigError(f"figure {name} does not use {option}; leave it out")


def draw_pmd(path: Path) -> None:
    """Draw noise that satisfies Definition 1 with its bound, and the flip probability of each type."""
    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)

    eta = torch.linspace(0, 1, 501, dtype=torch.float64)
    t0, c1, c2 = _EXAMPLE.t0, _EXAMPLE.c1, _EXAMPLE.c2
    flip = torch.where(eta < 0.5, _EXAMPLE.rho_01(eta), _EXAMPLE.rho_10(eta))
    # Definition 1 is an upper bound, so the example stays a little below it.
    left.plot(eta, 0.8 * flip, color=COLORS[0], label="example noise")
    minor = torch.minimum(eta, 1 - eta)
    for number, side in enumerate((eta <= 0.5 - t0, eta >= 0.5 + t0)):
        bound = pmd_bound(minor, c1=c1, c2=c2)[side]
        label = rf"bound, $c_1 \min(\eta, 1 - \eta)^{{1 + c_2}}$, $c_1$ = {c1:g}, $c_2$ = {c2:g}"
        left.plot(eta[side], bound, color=COLORS[1], ls="--", label=None if number else label)
    left.axvspan(0.5 - t0, 0.5 + t0, color="#eeeeee", zorder=0, label=f"unrestricted, $t_0$ = {t0:g}")
    left.set(xlim=(0, 1), ylim=(0, 0.75), xlabel=r"$\eta(x) = P(y = 1 | x)$", title="Definition 1, two classes")
    left.set_ylabel("probability that the likelier label flips")
    left.legend(fontsize="small", loc="upper center")

    margin = torch.linspace(0, 1, 501, dtype=torch.float64)
    for kind, name in _TYPES.items():
        for factor, style in _FACTORS.items():
            label = f"type {name}" + (f", factor {factor:g}" if factor != 1 else "")
            flip = 1 - keep_probability(margin, kind=kind, factor=factor)
            right.plot(margin, flip, color=COLORS[kind - 1], ls=style, label=label)
    right.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=r"margin $\eta_u - \eta_s$ of the two most probable classes")
    right.set(ylabel="probability of the second class", title="Types I to III; the factor sets the level")
    right.legend(fontsize="small", loc="lower left", ncols=2)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    save(figure, path)


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
            color, points = COLORS[place], panel.points[place]
            axes.plot(points[:, 0], points[:, 1], ".", color=color, ms=5, alpha=0.45, mew=0)
            axes.plot(*panel.outlines[place].T, color=color, lw=1.8, label=names[c])
            _arrow(axes, shift.panels[0].means[place], panel.means[place], color)
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


def _arrow(axes: Axes, start: Array, end: Array, color: str) -> None:
    axes.plot(*start, "x", color=color, ms=5, mew=1.5)
    if not np.allclose(start, end):
        style = {"arrowstyle": "-|>", "color": "black", "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (end[0], end[1]), (start[0], start[1]), arrowprops=style)
