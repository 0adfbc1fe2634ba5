"""Draw the figure of docs/paper.md on decision boundaries: how draws from calibrated class Gaussians move them.

The problem is one whose best boundary is known.

    python pages/boundary_figure.py docs/images/boundary.png
"""

import argparse
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from definition_1 import BinaryPmd
from drawing import COLORS, make_panels, save
from shift_figure import ellipse
from unflip.compute import generator
from unflip.methods.losses import cross_entropy
from unflip.methods.mddc import CovarianceCalibrator, CovarianceOptions, MeanCalibrator, MeanOptions
from unflip.stats.gaussians import ClassGaussians

MEANS = torch.tensor([[-1.2, 0.0], [1.2, 0.0]])
COVARIANCE = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
NOISE = BinaryPmd(t0=0.48, c1=3.0, c2=1.0, level=0.8)
"""Applied to class 1 only; Definition 1 bounds the noise of either class from above, so class 0 may have none."""
_CALIBRATORS: dict[str, MeanCalibrator | CovarianceCalibrator] = {
    "mddc": MeanCalibrator(MeanOptions()),
    "cddc": CovarianceCalibrator(CovarianceOptions()),
}
_BATCH = 100
_LR, _MOMENTUM = 0.02, 0.9
_TEST_EXAMPLES = 100_000
_SHOWN = 400  # points in a panel
_PLAIN, _MOVED = "#888888", COLORS[2]


@dataclass(frozen=True)
class Line:
    """The boundary {x : normal x + offset = 0}; class 1 is on the side where the sum is positive."""

    normal: Tensor
    offset: float

    @classmethod
    def of(cls, head: nn.Linear) -> "Line":
        """Return the boundary of a head with two classes."""
        weight, bias = head.weight.detach(), head.bias.detach()
        return cls(weight[1] - weight[0], float(bias[1] - bias[0]))

    def sides(self, points: Tensor) -> Tensor:
        """Return whether points (n, 2) belong to class 1 (n,)."""
        return points @ self.normal + self.offset > 0


@dataclass(frozen=True)
class Moved:
    """How the draws of one method moved the boundary."""

    gaussians: ClassGaussians
    drawn: Tensor
    """The draws of the last pass (m, 2)."""
    drawn_labels: Tensor
    lines: tuple[Line, ...]
    """The boundary after each pass."""


@dataclass(frozen=True)
class Boundaries:
    """The problem, and the boundary of a head without and with calibration."""

    features: Tensor
    clean: Tensor
    given: Tensor
    tests: Tensor
    """New examples (n, 2)."""
    best: Line
    plain: Line
    """Of a head that minimizes the cross-entropy on the given labels."""
    balanced: Line
    """The same with equal class weights, as draws have them: the effect of balance alone."""
    moved: dict[str, Moved]

    def agreement(self, line: Line) -> float:
        """Return the fraction of new examples that a boundary puts on the same side as the best one."""
        return float((line.sides(self.tests) == self.best.sides(self.tests)).double().mean())


def simulate(*, examples: int = 1000, passes: int = 10, noise: BinaryPmd | None = NOISE, seed: int = 0) -> Boundaries:
    """Train a head on noisy labels, and then on draws from the Gaussians that mddc and cddc fit under these labels.

    The problem: features x of two equally frequent classes are N(mu_c, Sigma) in the plane, as the paper assumes before
    noise. So eta(x) = P(y = 1 | x) is the sigmoid of w x + b with w = Sigma^-1 (mu_1 - mu_0) and
    b = -w (mu_0 + mu_1) / 2, and w x + b = 0 is the best boundary. ``noise`` turns labels 1 near it into 0.

    The head is linear. First it minimizes the cross-entropy on the given labels. From there it sees draws alone, by SGD
    (steps 9 to 13 of the paper's Algorithm 2, with features and labels that stay the same): ``examples`` of each class
    in a pass, from the Gaussians of mddc and cddc with their default options. A run trains on examples and on fewer
    draws in turn, so its boundary lies between.

    Args:
        examples: number of examples of each class.
        passes: number of passes over new draws.
        noise: the noise of class 1; none if it is None.
        seed: seed of examples, noise and draws.
    """
    source = generator(seed, "boundary")
    clean = torch.arange(2).repeat_interleave(examples)
    features = _draw(clean, source)
    normal = torch.linalg.solve(COVARIANCE, MEANS[1] - MEANS[0])
    best = Line(normal, -float(normal @ MEANS.mean(0)))
    eta = (features @ best.normal + best.offset).double().sigmoid()
    given = clean if noise is None else torch.where(clean == 1, noise.draw(clean, eta, source), 0)

    head, balanced = _fit_head(features, given), _fit_head(features, given, class_weight="balanced")
    tests = _draw(torch.arange(2).repeat_interleave(_TEST_EXAMPLES // 2), source)
    moved = {}
    for name, calibrator in _CALIBRATORS.items():
        gaussians = calibrator.fit(features, given, 2)
        moved[name] = _move(head, gaussians, examples, passes, generator(seed, "draws", name))
    return Boundaries(features, clean, given, tests, best, Line.of(head), Line.of(balanced), moved)


def _draw(labels: Tensor, source: torch.Generator) -> Tensor:
    factor = torch.linalg.cholesky(COVARIANCE)
    drawn: Tensor = MEANS[labels] + torch.randn(len(labels), 2, generator=source) @ factor.T
    return drawn


def _fit_head(features: Tensor, labels: Tensor, class_weight: str | None = None) -> nn.Linear:
    """Return the head of the smallest cross-entropy."""
    model = LogisticRegression(C=np.inf, tol=1e-8, class_weight=class_weight).fit(features.double(), labels)
    head = nn.Linear(2, 2)
    weight, bias = torch.from_numpy(model.coef_) / 2, torch.from_numpy(model.intercept_) / 2
    head.load_state_dict({"weight": torch.cat([-weight, weight]), "bias": torch.cat([-bias, bias])})
    return head


def _move(start: nn.Linear, gaussians: ClassGaussians, per_class: int, passes: int, source: torch.Generator) -> Moved:
    """Train a copy of ``start`` on draws."""
    head = deepcopy(start)
    optimizer = torch.optim.SGD(head.parameters(), lr=_LR, momentum=_MOMENTUM)
    lines: list[Line] = []
    for _ in range(passes):
        drawn, labels = gaussians.sample(per_class, source)
        for rows in torch.randperm(len(labels), generator=source).split(_BATCH):
            optimizer.zero_grad()
            cross_entropy(head(drawn[rows]), labels[rows]).mean().backward()
            optimizer.step()
        lines.append(Line.of(head))
    return Moved(gaussians, drawn, labels, tuple(lines))


def draw_boundaries(path: Path, result: Boundaries) -> None:
    """Draw the given labels with their boundary, and how the draws of each method move it."""
    figure, panels = make_panels(1 + len(result.moved), (14, 4.9), sharex=True, sharey=True)
    for axes in panels:
        _draw_line(axes, result.best, color="black", ls="--", label="best boundary")
        label = f"of the given labels ({result.agreement(result.plain):.1%})"
        _draw_line(axes, result.plain, color=_PLAIN, lw=2.5, label=label)
    _draw_given(panels[0], result)
    for axes, (name, moved) in zip(panels[1:], result.moved.items(), strict=True):
        label = f"after {len(moved.lines)} passes over draws ({result.agreement(moved.lines[-1]):.1%})"
        _draw_moved(axes, moved, label)
        axes.set_title(f"draws from the Gaussians of {name}")
    for axes in panels:
        axes.set(xlim=(-4.5, 4.5), ylim=(-3.6, 3.6), xlabel="first feature")
        axes.legend(fontsize="small", loc="upper left", framealpha=0.95)
    panels[0].set_ylabel("second feature")
    wrong = float((result.given != result.clean).double().mean())
    text = f"{len(result.clean):,} examples, {wrong:.0%} wrong labels, all of the orange class near the best boundary; "
    figure.suptitle(f"{text}in brackets: agreement with the best boundary on new examples", fontsize="small")
    save(figure, path)


def _draw_given(axes: Axes, result: Boundaries) -> None:
    _draw_points(axes, result.features, result.given)
    wrong = result.features[result.given != result.clean]
    axes.plot(*wrong[:: max(1, len(result.clean) // _SHOWN)].T, "o", mfc="none", mec=COLORS[1], label="wrong label")
    label = f"with equal class weights ({result.agreement(result.balanced):.1%})"
    _draw_line(axes, result.balanced, color=_PLAIN, ls="-.", label=label)
    axes.set_title("given labels")


def _draw_moved(axes: Axes, moved: Moved, label: str) -> None:
    _draw_points(axes, moved.drawn, moved.drawn_labels)
    for c, color in enumerate(COLORS[:2]):
        axes.plot(*ellipse(moved.gaussians, c, torch.eye(2)).T, color=color, lw=1.8)
        axes.plot(*moved.gaussians.means[c], "x", color=color, ms=7, mew=2)
    for line in moved.lines[:-1]:
        _draw_line(axes, line, color=_MOVED, lw=0.8, alpha=0.6)
    _draw_line(axes, moved.lines[-1], color=_MOVED, lw=2.5, label=label)


def _draw_points(axes: Axes, points: Tensor, labels: Tensor) -> None:
    for c, color in enumerate(COLORS[:2]):
        own = points[labels == c][:: max(1, len(points) // _SHOWN)]
        axes.plot(*own.T, ".", color=color, ms=5, alpha=0.5, mew=0)


def _draw_line(axes: Axes, line: Line, **style: Any) -> None:
    a, b = line.normal.tolist()
    axes.axline((-line.offset / a, 0), slope=-a / b, **style)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the picture: .png, .svg or .pdf")
    draw_boundaries(parser.parse_args().out, simulate())


if __name__ == "__main__":
    main()
