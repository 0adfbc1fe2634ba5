"""Draw class Gaussians of a run of mddc or cddc in a plane: under given labels, corrected labels, and calibrated.

python pages/shift_figure.py runs/mddc docs/images/shift.png
"""

import sys
from dataclasses import dataclass
from math import pi
from pathlib import Path

import pyarrow.compute
import torch
from torch import Tensor

from drawing import COLORS, make_panels, save
from unflip.data.arrays import Array
from unflip.errors import RunFolderError
from unflip.runs.folder import Run
from unflip.stats.gaussians import ClassGaussians, fit_gaussians

_CLASSES = 6  # shown at most
_POINTS = 150  # shown per class
_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Panel:
    """The c classes under one set of labels, in the plane.

    Attributes:
        title: which labels.
        points: some examples of each class (m, 2).
        outlines: two-sigma ellipse of each class (m, 2), as a closed curve.
        means: class means (c, 2).
    """

    title: str
    points: tuple[Array, ...]
    outlines: tuple[Array, ...]
    means: Array


@dataclass(frozen=True)
class Shift:
    """Panels in the same plane: given labels, current labels if any changed, and the Gaussians of the calibration.

    Attributes:
        classes: those shown.
        num_classes: of the run.
        panels: one per set of labels.
    """

    classes: tuple[int, ...]
    num_classes: int
    panels: tuple[Panel, ...]


def measure_shift(run: Run, max_rows: int = 20_000) -> Shift:
    """Project a run's features and Gaussians onto a plane.

    The Gaussians of the given labels, and of the current labels if any changed, are fitted to at most ``max_rows``
    training examples; the run saved the Gaussians with which it calibrated its head, and the features of that epoch.
    The plane is spanned by the first two principal directions of the last panel's means, in features scaled to unit
    variance within classes. With many classes, those whose mean moved farthest are shown.
    """
    calibrated, mapped = run.gaussians, run.hidden_features
    if calibrated is None:
        raise RunFolderError(f"{run.folder}: gaussians.safetensors is missing; use a finished run of mddc or cddc")
    if run.result["selected_epoch"] != run.result["epochs"]:
        raise RunFolderError(f"{run.folder}: not the model of the last epoch; train with --select last")
    if mapped is None:
        raise RunFolderError(f"{run.folder}: no features.npy")
    table = run.labels(["split", "given_label", "current_label"])
    if len(table) != len(mapped):
        raise RunFolderError(f"{run.folder}: {len(mapped)} features for {len(table)} labels")
    train = torch.tensor(pyarrow.compute.equal(table["split"], "train").to_numpy()).nonzero()[:, 0]
    train = train[:: -(-len(train) // max_rows)]
    features = torch.from_numpy(mapped)[train].float()
    given, current = (torch.tensor(table[name].to_numpy())[train] for name in ("given_label", "current_label"))
    versions = {"given labels": given} | ({"current labels": current} if bool((given != current).any()) else {})
    fitted = {title: fit_gaussians(features, labels, len(calibrated.means)) for title, labels in versions.items()}

    there = torch.stack([calibrated.present, *(gaussians.present for gaussians in fitted.values())]).all(0)
    moved = (calibrated.means - fitted["given labels"].means).norm(dim=1).masked_fill(~there, -1.0)
    classes = sorted(moved.argsort(descending=True, stable=True)[: min(_CLASSES, int(there.sum()))].tolist())
    if len(classes) < 2:
        raise RunFolderError(f"{run.folder}: fewer than two classes have Gaussians")
    last, labels = list(versions.items())[-1]
    shown = torch.isin(labels, torch.tensor(classes))
    positions = torch.searchsorted(torch.tensor(classes), labels[shown])
    plane = _plane(features[shown], positions, calibrated.means[classes])

    def panel(title: str, labels: Tensor, gaussians: ClassGaussians) -> Panel:
        points = tuple((features[labels == c][:_POINTS] @ plane).numpy() for c in classes)
        outlines = tuple(ellipse(gaussians, c, plane) for c in classes)
        return Panel(title, points, outlines, (gaussians.means[classes] @ plane).numpy())

    panels = [panel(title, versions[title], fitted[title]) for title in versions]
    panels.append(panel(f"{last}, calibrated", labels, calibrated))
    return Shift(tuple(classes), len(there), tuple(panels))


def ellipse(gaussians: ClassGaussians, c: int, plane: Tensor) -> Array:
    """Return the two-sigma ellipse (m, 2) of class c, projected onto ``plane`` (d, 2)."""
    factor, ones = gaussians.factors[c] @ plane, plane.sum(0)
    covariance = factor.T @ factor + gaussians.variances[c] * (plane.T @ plane)
    covariance += gaussians.disturbance * torch.outer(ones, ones)
    values, vectors = torch.linalg.eigh(covariance.double())
    angles = torch.linspace(0, 2 * pi, 121, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], 1) * values.clamp(min=0).sqrt() * _DEVIATIONS
    outline: Array = ((gaussians.means[c] @ plane).double() + circle @ vectors.T).numpy()
    return outline


def _plane(features: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """Return the two directions (d, 2) that separate the classes best, relative to the variance within them."""
    inner = features - means[labels]
    scale = inner.square().mean(0).sqrt().clamp(min=1e-6)
    centers = means / scale
    directions = torch.linalg.svd(centers - centers.mean(0), full_matrices=False).Vh[: min(2, len(means) - 1)]
    if len(directions) < 2:  # two classes span a line; the widest direction within them is the other
        rest = inner / scale
        rest = rest - (rest @ directions.T) @ directions
        directions = torch.cat([directions, torch.linalg.svd(rest, full_matrices=False).Vh[:1]])
    plane: Tensor = (directions / scale).T
    return plane


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


if __name__ == "__main__":
    draw_shift(Path(sys.argv[2]), Run(Path(sys.argv[1])))
