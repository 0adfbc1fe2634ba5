"""The mean shift and the class Gaussians of a run in two dimensions: as given, corrected, calibrated (Figures 1, 3)."""

from collections.abc import Sequence
from math import pi
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from unflip.data.array_files import Array
from unflip.errors import RunFolderError
from unflip.report.figure_file import COLOURS, save
from unflip.stats.gaussians import ClassGaussians, fit_gaussians
from unflip.training.folder import Run

_CLASSES = 6  # that can still be told apart
_POINTS = 150  # shown of each class
_DEVIATIONS = 2.0


def draw_shift(path: Path, run: Run) -> None:
    """Draw the last epoch's features in three panels, with an ellipse of two deviations a class.

    The Gaussians are fitted with plain means and covariances to the given labels; likewise to the current labels;
    and the last panel has those that the run calibrated its head with. Arrows go from a class's mean under the given
    labels to that of the panel. The plane is spanned by the calibrated means' first two principal directions, in
    features scaled to unit variance within classes. Of many classes those are shown whose mean moved farthest.
    """
    features, given, current, names = _read(run)
    calibrated = ClassGaussians.load(run.folder / "gaussians.safetensors")
    count = len(calibrated.means)
    before = fit_gaussians(features, given, count)
    corrected = fit_gaussians(features, current, count)
    there = before.present & corrected.present & calibrated.present
    moved = (calibrated.means - before.means).norm(dim=1).masked_fill(~there, -1.0)
    classes = sorted(moved.argsort(descending=True)[: min(_CLASSES, int(there.sum()))].tolist())
    if len(classes) < 2:
        raise RunFolderError(f"{run.folder}: fewer than two classes have Gaussians; there is nothing to compare")
    plane = _plane(features, current, calibrated.means, classes)

    figure = Figure(figsize=(14, 4.9), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for axes, title, labels, gaussians in zip(
        panels,
        ("given labels", "current labels", f"current labels, calibrated ({run.result['method']})"),
        (given, current, current),
        (before, corrected, calibrated),
        strict=True,
    ):
        for place, c in enumerate(classes):
            colour = COLOURS[place]
            members = (labels == c).nonzero()[:_POINTS, 0]
            points = (features[members] @ plane).numpy()
            axes.plot(points[:, 0], points[:, 1], ".", color=colour, ms=5, alpha=0.45, mew=0)
            axes.plot(*ellipse(gaussians, c, plane).T, color=colour, lw=1.8, label=names.get(c, str(c)))
            _arrow(axes, (before.means[c] @ plane).numpy(), (gaussians.means[c] @ plane).numpy(), colour)
        axes.set(title=title, xlabel="first direction")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("second direction")
    handles, labels_shown = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels_shown, loc="outside right center", title="class", fontsize="small")
    shown = "" if len(classes) == count else f"; the {len(classes)} of {count} classes whose means moved farthest"
    figure.suptitle(
        f"features of the last epoch; ellipses: two deviations; arrows: from the mean under the given labels{shown}",
        fontsize="small",
    )
    save(figure, path)


def _read(run: Run) -> tuple[Tensor, Tensor, Tensor, dict[int, str]]:
    for name in ("gaussians.safetensors", "features.npy"):
        if not (run.folder / name).exists():
            raise RunFolderError(
                f"{run.folder}: no {name}; name the finished run of a method that calibrates, such as mddc or cddc"
            )
    mapped = run.gaussian_features
    assert mapped is not None
    features = torch.from_numpy(mapped.astype(np.float32))
    table = run.labels()
    given, current = (torch.tensor(table[name].to_numpy()) for name in ("given", "current"))
    if len(given) != len(features):
        raise RunFolderError(f"{run.folder}: {len(features)} features for {len(given)} labels; is it two runs' files?")
    kinds = [kind for kind in ("given", "current") if f"{kind}_name" in table.column_names]
    names: dict[int, str] = {}
    for kind in kinds:
        names |= dict(zip(table[kind].to_pylist(), table[f"{kind}_name"].to_pylist(), strict=True))
    return features, given, current, names


def _plane(features: Tensor, labels: Tensor, means: Tensor, classes: Sequence[int]) -> Tensor:
    """Return two directions (d, 2) in which the classes lie apart, measured by the spread within them."""
    rows = torch.isin(labels, torch.tensor(classes))
    inner = features[rows] - means[labels[rows]]
    scale = inner.square().mean(0).sqrt().clamp(min=1e-6)
    chosen = means[classes] / scale
    directions = torch.linalg.svd(chosen - chosen.mean(0), full_matrices=False).Vh[: min(2, len(classes) - 1)]
    if len(directions) < 2:  # two classes span a line; the widest direction within them is the other
        rest = inner / scale
        rest = rest - (rest @ directions.T) @ directions
        directions = torch.cat([directions, torch.linalg.svd(rest, full_matrices=False).Vh[:1]])
    plane: Tensor = (directions / scale).T
    return plane


def ellipse(gaussians: ClassGaussians, c: int, plane: Tensor) -> Array:
    """Return the outline (m, 2) of class c at two deviations, projected onto ``plane`` (d, 2); its ends meet."""
    factor = gaussians.factors[c] @ plane
    ones = plane.sum(0)
    covariance = factor.T @ factor + gaussians.variances[c] * (plane.T @ plane)
    covariance = (covariance + gaussians.disturbance * torch.outer(ones, ones)).double()
    values, vectors = torch.linalg.eigh(covariance)
    angles = torch.linspace(0, 2 * pi, 121, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], 1) * values.clamp(min=0).sqrt() * _DEVIATIONS
    outline: Array = ((gaussians.means[c] @ plane).double() + circle @ vectors.T).numpy()
    return outline


def _arrow(axes: Axes, start: Array, end: Array, colour: str) -> None:
    axes.plot(*start, "x", color=colour, ms=5, mew=1.5)
    if not np.allclose(start, end):
        style = {"arrowstyle": "-|>", "color": "black", "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (end[0], end[1]), (start[0], start[1]), arrowprops=style)
