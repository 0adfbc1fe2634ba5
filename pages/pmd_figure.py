"""Draw Figure 2, PMD noise: Definition 1 with its bound, and the flip probability of types I to III.

python pages/pmd_figure.py docs/images/pmd.png
"""

import sys
from pathlib import Path

import torch

from definition_1 import BinaryPmd, pmd_bound
from drawing import COLORS, make_panels, save
from unflip.noise.pmd import keep_probability

_EXAMPLE = BinaryPmd(t0=0.15, c1=3.0, c2=1.0, level=0.5)


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


if __name__ == "__main__":
    draw_pmd(Path(sys.argv[1]))
