"""A figure of label noise: its rate by margin, and the transition matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from unflip.noise.pmd import keep_probability, pmd_bound, smallest_c1, top_two
from unflip.report.figure_file import save

_BINS = 20
_T0, _C2 = 0.1, 1.0  # the parameters for which the bound of Definition 1 is drawn

_DRAWN_C1 = 100.0  # with a larger c1 the bound would be outside the plot


@dataclass(frozen=True)
class PmdCurve:
    """A pmd step: its type, its factor and the posteriors it used."""

    kind: int
    factor: float
    posterior: Tensor


def draw_noise(
    path: Path,
    clean: Tensor,
    noisy: Tensor,
    matrix: Tensor,
    *,
    class_names: Sequence[str] | None = None,
    pmd: PmdCurve | None = None,
) -> None:
    """Save the figure of a label noise.

    Args:
        path: the file to write.
        clean: (n,) true labels.
        noisy: (n,) labels with noise.
        matrix: (k, k) transition matrix.
        class_names: names of the classes; by default their numbers.
        pmd: the pmd step, if there was one; only then is the curve (the paper's Figure 2) drawn.
    """
    figure = Figure(figsize=(11 if pmd else 5.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 2 if pmd else 1, squeeze=False)[0]
    if pmd:
        _draw_curve(axes[0], clean, noisy, pmd)
    _draw_matrix(figure, axes[-1], matrix, class_names)
    save(figure, path)


def _draw_curve(axes: Axes, clean: Tensor, noisy: Tensor, pmd: PmdCurve) -> None:
    margin = top_two(pmd.posterior).margin.double()
    bins = (margin * _BINS).long().clamp(0, _BINS - 1)
    counts = torch.bincount(bins, minlength=_BINS)
    rates = torch.bincount(bins, (noisy != clean).double(), minlength=_BINS) / counts.clamp(min=1)
    centres = (np.arange(_BINS) + 0.5) / _BINS
    shown = (counts > 0).numpy()
    axes.bar(centres[shown], rates.numpy()[shown], 0.9 / _BINS, color="#9ecae1", label="wrong labels, measured")

    grid = torch.linspace(0, 1, 401, dtype=torch.float64)
    flip = 1 - keep_probability(grid, kind=pmd.kind, factor=pmd.factor)
    axes.plot(grid, flip, color="#08519c", label="probability of the second class")
    # Definition 1 uses min(eta, 1 - eta), which is (1 - margin) / 2 for the two most probable classes.
    seen = 1 - keep_probability(margin, kind=pmd.kind, factor=pmd.factor)
    c1 = smallest_c1((1 - margin) / 2, seen, t0=_T0, c2=_C2)
    restricted = grid > 2 * _T0
    bound = pmd_bound((1 - grid) / 2, c1=c1 if c1 < _DRAWN_C1 else 0.0, c2=_C2)
    # Types I to III do not vanish fast enough near margin 1: if the data gets there, no useful bound holds.
    label = f"bound of Definition 1, $c_1$ = {c1:.3g}" + ("" if c1 < _DRAWN_C1 else ": not drawn")
    axes.plot(grid[restricted], bound[restricted], color="#cb181d", ls="--" if c1 < _DRAWN_C1 else "", label=label)
    axes.axvspan(0, 2 * _T0, color="#eeeeee", zorder=0, label=f"unrestricted, $t_0$ = {_T0}")
    axes.set(xlim=(0, 1), ylim=(0, 1.05), xlabel=r"margin $\eta_u - \eta_s$", ylabel="fraction")
    axes.set_title("Noise by margin")
    axes.legend(fontsize="small", loc="upper right")


def _draw_matrix(figure: Figure, axes: Axes, matrix: Tensor, class_names: Sequence[str] | None) -> None:
    count = len(matrix)
    picture = axes.imshow(matrix.numpy(), vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(picture, ax=axes, shrink=0.8)
    if count <= 20:
        ticks = range(count)
        names = class_names or [str(i) for i in ticks]
        axes.set_xticks(
            ticks,
            names,
            rotation=45 if max(map(len, names)) > 2 else 0,
            ha="right" if max(map(len, names)) > 2 else "center",
        )
        axes.set_yticks(ticks, names)
        for i in ticks:
            for j in ticks:
                if (value := float(matrix[i, j])) >= 0.005:
                    axes.text(j, i, f"{value:.2f}".lstrip("0") if value < 1 else "1", ha="center", va="center",
                              fontsize=6 if count > 10 else 7, color="white" if value > 0.5 else "black")  # fmt: skip
    axes.set(xlabel="noisy label", ylabel="true class", title="Transition matrix")
