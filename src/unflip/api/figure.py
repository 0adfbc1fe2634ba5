"""figure: one of the figures, drawn to a file."""

from collections.abc import Sequence
from pathlib import Path

from unflip.errors import ConfigError, unknown
from unflip.report.boundary_figure import draw_boundaries
from unflip.report.curves_figure import draw_curves
from unflip.report.figure_file import FORMATS
from unflip.report.influence_figure import draw_influence
from unflip.report.level_set_figure import draw_level_sets
from unflip.report.pmd_figure import draw_pmd
from unflip.report.shift_figure import draw_shift
from unflip.reproduce import boundary, level_sets
from unflip.reproduce.influence import influence
from unflip.reproduce.results_file import keep, parse_conditions, read_results
from unflip.runs.folder import Run
from unflip.runs.layout import check_output

_INFLUENCES = {
    "alpha": ("covariance.disturbance", r"disturbance $\alpha$"),
    "lambda": ("calibration.sample_fraction", r"sample fraction $\lambda$"),
}
_NAMES = (*_INFLUENCES, "curves", "shift", "pmd", "level-set", "boundary")


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
        raise ConfigError(f"figure {name} needs --results, a results.jsonl that `unflip sweep` wrote")
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
