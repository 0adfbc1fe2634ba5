"""The curve of PMD noise (the paper's Figure 2): Definition 1 and its bound, and the types I to III."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from unflip.noise.pmd import BinaryPmd, keep_probability, pmd_bound
from unflip.report.figure_file import COLOURS, save

_EXAMPLE = BinaryPmd(t0=0.15, c1=3.0, c2=1.0, level=0.5)
_FACTORS = {1.0: "-", 2.0: "--"}
_TYPES = {1: "I", 2: "II", 3: "III"}


def draw_pmd(path: Path) -> None:
    """Draw noise that satisfies Definition 1 with its bound, and the flip probability of each type."""
    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)

    eta = torch.linspace(0, 1, 501, dtype=torch.float64)
    t0, c1, c2 = _EXAMPLE.t0, _EXAMPLE.c1, _EXAMPLE.c2
    flip = torch.where(eta < 0.5, _EXAMPLE.rho_01(eta), _EXAMPLE.rho_10(eta))
    # Definition 1 is an upper bound, so the example stays a little below it.
    left.plot(eta, 0.8 * flip, color=COLOURS[0], label="example noise")
    minor = torch.minimum(eta, 1 - eta)
    for number, side in enumerate((eta <= 0.5 - t0, eta >= 0.5 + t0)):
        bound = pmd_bound(minor, c1=c1, c2=c2)[side]
        label = rf"bound, $c_1 \min(\eta, 1 - \eta)^{{1 + c_2}}$, $c_1$ = {c1:g}, $c_2$ = {c2:g}"
        left.plot(eta[side], bound, color=COLOURS[1], ls="--", label=None if number else label)
    left.axvspan(0.5 - t0, 0.5 + t0, color="#eeeeee", zorder=0, label=f"unrestricted, $t_0$ = {t0:g}")
    left.set(xlim=(0, 1), ylim=(0, 0.75), xlabel=r"$\eta(x) = P(y = 1 | x)$", title="Definition 1, two classes")
    left.set_ylabel("probability that the likelier label flips")
    left.legend(fontsize="small", loc="upper center")

    margin = torch.linspace(0, 1, 501, dtype=torch.float64)
    for kind, name in _TYPES.items():
        for factor, style in _FACTORS.items():
            label = f"type {name}" + (f", factor {factor:g}" if factor != 1 else "")
            flip = 1 - keep_probability(margin, kind=kind, factor=factor)
            right.plot(margin, flip, color=COLOURS[kind - 1], ls=style, label=label)
    right.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=r"margin $\eta_u - \eta_s$ of the two most probable classes")
    right.set(ylabel="probability of the second class", title="Types I to III; the factor sets the level")
    right.legend(fontsize="small", loc="lower left", ncols=2)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    save(figure, path)
