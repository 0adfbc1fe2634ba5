"""How draws from calibrated class Gaussians move the decision boundary, on a problem whose best boundary is known."""

from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from unflip.losses import cross_entropy
from unflip.methods.mddc import CovarianceCalibrator, CovarianceOptions, MeanCalibrator, MeanOptions
from unflip.noise.pmd import BinaryPmd
from unflip.report.figures import COLORS, save
from unflip.report.shift import ellipse
from unflip.seeding import generator
from unflip.stats.gaussians import ClassGaussians

MEANS = torch.tensor([[-1.2, 0.0], [1.2, 0.0]])
COVARIANCE = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
NOISE = BinaryPmd(t0=0.48, c1=3.0, c2=1.0, level=0.8)
"""Of class 1 alone; Definition 1 bounds the noise of either class from above, so none of class 0 is allowed."""
_CALIBRATORS: dict[str, MeanCalibrator | CovarianceCalibrator] = {
    "mddc": MeanCalibrator(MeanOptions()),
    "cddc": CovarianceCalibrator(CovarianceOptions()),
}
_BATCH = 100
_LR, _MOMENTUM = 0.02, 0.9
_TESTS = 100_000
_PLANE = torch.eye(2)
_LIMITS = (-4.5, 4.5), (-3.6, 3.6)
_SHOWN = 400  # points in a panel
_BEST, _PLAIN, _MOVED = "black", "#888888", COLORS[2]


@dataclass(frozen=True)
class Line:
    """The boundary {x : normal x + offset = 0}; class 1 is on the side where the sum is positive."""

    normal: Tensor
    offset: float

    def sides(self, points: Tensor) -> Tensor:
        """Return on which side points (n, 2) lie (n,): whether they belong to class 1."""
        return points @ self.normal + self.offset > 0


@dataclass(frozen=True)
class Moved:
    """What the draws of one method did to the boundary."""

    gaussians: ClassGaussians
    drawn: Tensor
    """The draws of the last pass (m, 2)."""
    drawn_labels: Tensor
    lines: tuple[Line, ...]
    """The boundary after each pass."""
    agreement: tuple[float, ...]
    """The share of new examples that each of ``lines`` puts on the same side as the best boundary."""


@dataclass(frozen=True)
class Boundaries:
    """The problem, and the boundary of a head without and with calibration."""

    features: Tensor
    clean: Tensor
    given: Tensor
    best: Line
    plain: Line
    """Of a head that minimizes the cross-entropy on the given labels."""
    balanced: Line
    """The same with both classes weighed alike, as draws weigh them: what balance alone does."""
    plain_agreement: float
    balanced_agreement: float
    moved: dict[str, Moved]


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
    best = _best_line()
    eta = (features @ best.normal + best.offset).double().sigmoid()
    given = clean if noise is None else torch.where(clean == 1, noise.draw(clean, eta, source), 0)

    head = _minimize(features, given, torch.ones(2))
    balanced = _line(_minimize(features, given, 1 / given.bincount(minlength=2)))
    tests = _draw(torch.arange(2).repeat_interleave(_TESTS // 2), source)
    plain = _line(head)
    moved = {
        name: _move(head, calibrator.fit(features, given, 2), examples, passes, tests, generator(seed, "draws", name))
        for name, calibrator in _CALIBRATORS.items()
    }
    agreements = (_agreement(plain, best, tests), _agreement(balanced, best, tests))
    return Boundaries(features, clean, given, best, plain, balanced, *agreements, moved)


def _draw(labels: Tensor, source: torch.Generator) -> Tensor:
    factor = torch.linalg.cholesky(COVARIANCE)
    drawn: Tensor = MEANS[labels] + torch.randn(len(labels), 2, generator=source) @ factor.T
    return drawn


def _best_line() -> Line:
    normal: Tensor = torch.linalg.solve(COVARIANCE, MEANS[1] - MEANS[0])
    return Line(normal, -float(normal @ MEANS.mean(0)))


def _line(head: nn.Linear) -> Line:
    weight, bias = head.weight.detach(), head.bias.detach()
    return Line(weight[1] - weight[0], float(bias[1] - bias[0]))


def _agreement(line: Line, best: Line, points: Tensor) -> float:
    return float((line.sides(points) == best.sides(points)).double().mean())


def _minimize(features: Tensor, labels: Tensor, class_weights: Tensor) -> nn.Linear:
    """Return the head of the smallest weighted cross-entropy."""
    head = nn.Linear(2, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    weights = class_weights[labels] / class_weights[labels].sum()
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        mean = cross_entropy(head(features), labels) @ weights
        mean.backward()
        return mean

    optimizer.step(loss)
    return head


def _move(
    start: nn.Linear, gaussians: ClassGaussians, per_class: int, passes: int, tests: Tensor, source: torch.Generator
) -> Moved:
    head = nn.Linear(2, 2)
    head.load_state_dict(start.state_dict())
    optimizer = torch.optim.SGD(head.parameters(), lr=_LR, momentum=_MOMENTUM)
    lines: list[Line] = []
    for _ in range(passes):
        drawn, labels = gaussians.sample(per_class, source)
        for rows in torch.randperm(len(labels), generator=source).split(_BATCH):
            optimizer.zero_grad()
            cross_entropy(head(drawn[rows]), labels[rows]).mean().backward()
            optimizer.step()
        lines.append(_line(head))
    agreement = tuple(_agreement(line, _best_line(), tests) for line in lines)
    return Moved(gaussians, drawn, labels, tuple(lines), agreement)


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
    for label, color in enumerate(COLORS[:2]):
        right, wrong = (given == label) & (clean == label), (given == label) & (clean != label)
        axes.plot(*points[right].T, ".", color=color, ms=6, alpha=0.6, mew=0)
        axes.plot(*points[wrong].T, "o", color=color, ms=5, mew=1.2, mec=COLORS[1 - label],
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
    for label, color in enumerate(COLORS[:2]):
        drawn = moved.drawn[::step][moved.drawn_labels[::step] == label]
        axes.plot(*drawn.T, ".", color=color, ms=4, alpha=0.4, mew=0)
        axes.plot(*ellipse(moved.gaussians, label, _PLANE).T, color=color, lw=1.8)
        axes.plot(*moved.gaussians.means[label], "x", color=color, ms=7, mew=2)
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
