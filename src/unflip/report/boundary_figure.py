"""How draws from calibrated Gaussians move the decision boundary, in a plane where the best one is known."""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unflip.report.figure_file import COLOURS, save
from unflip.report.shift import ellipse
from unflip.reproduce.boundary import Boundaries, Line, Moved

_PLANE = torch.eye(2)
_LIMITS = (-4.5, 4.5), (-3.6, 3.6)
_SHOWN = 400  # points in a panel
_BEST, _PLAIN, _MOVED = "black", "#888888", COLOURS[2]


def draw_boundaries(path: Path, found: Boundaries) -> None:
    """Draw the given labels with the boundary that they give, and how the draws of each method move it."""
    figure = Figure(figsize=(14, 4.9), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(found.moved), sharex=True, sharey=True)
    _draw_given(first, found)
    for axes, (name, moved) in zip(others, found.moved.items(), strict=True):
        _draw_moved(axes, found, name, moved)
    for axes in (first, *others):
        axes.set(xlim=_LIMITS[0], ylim=_LIMITS[1], xlabel="first feature")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="upper left", framealpha=0.95)
    first.set_ylabel("second feature")
    wrong = float((found.given != found.clean).double().mean())
    figure.suptitle(
        f"{len(found.clean):,} examples, {wrong:.0%} of the labels wrong: near the best boundary, of the orange class "
        "alone; in brackets: new examples on the same side as by the best boundary",
        fontsize="small",
    )
    save(figure, path)


def _draw_given(axes: Axes, found: Boundaries) -> None:
    step = max(1, len(found.clean) // _SHOWN)
    points, clean, given = found.features[::step], found.clean[::step], found.given[::step]
    for label, colour in enumerate(COLOURS[:2]):
        right, wrong = (given == label) & (clean == label), (given == label) & (clean != label)
        axes.plot(*points[right].T, ".", color=colour, ms=6, alpha=0.6, mew=0)
        axes.plot(*points[wrong].T, "o", color=colour, ms=5, mew=1.2, mec=COLOURS[1 - label],
                  label="wrong label" if wrong.any() else None)  # fmt: skip
    _draw_line(axes, found.best, color=_BEST, ls="--", label="best boundary")
    _draw_line(axes, found.plain, color=_PLAIN, lw=2.5, label=f"of the given labels ({found.plain_agreement:.1%})")
    _draw_line(
        axes,
        found.balanced,
        color=_PLAIN,
        ls="-.",
        label=f"both classes weighed alike ({found.balanced_agreement:.1%})",
    )
    axes.set_title("given labels")


def _draw_moved(axes: Axes, found: Boundaries, name: str, moved: Moved) -> None:
    step = max(1, len(moved.drawn) // _SHOWN)
    for label, colour in enumerate(COLOURS[:2]):
        drawn = moved.drawn[::step][moved.drawn_labels[::step] == label]
        axes.plot(*drawn.T, ".", color=colour, ms=4, alpha=0.4, mew=0)
        axes.plot(*ellipse(moved.gaussians, label, _PLANE).T, color=colour, lw=1.8)
        axes.plot(*moved.gaussians.means[label], "x", color=colour, ms=7, mew=2)
    _draw_line(axes, found.best, color=_BEST, ls="--", label="best boundary")
    _draw_line(axes, found.plain, color=_PLAIN, lw=2.5, label=f"of the given labels ({found.plain_agreement:.1%})")
    for line in moved.lines[:-1]:
        _draw_line(axes, line, color=_MOVED, lw=0.8, alpha=0.6)
    passes = len(moved.lines)
    _draw_line(axes, moved.lines[-1], color=_MOVED, lw=2.5,
               label=f"after {passes} passes over draws ({moved.agreement[-1]:.1%})")  # fmt: skip
    axes.set_title(f"draws from the Gaussians of {name}")


def _draw_line(axes: Axes, line: Line, **style: object) -> None:
    """Draw a boundary from bottom to top; every one here is steeper than the picture's diagonal."""
    low, high = _LIMITS[1]
    (a, b), c = line.normal.tolist(), line.offset
    axes.plot([-(c + b * y) / a for y in (low, high)], [low, high], **style)  # type: ignore[arg-type]
