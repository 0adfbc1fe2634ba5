"""Class Gaussians of a run in two dimensions: under given labels, corrected labels, and calibrated."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi

import pyarrow.compute
import torch
from torch import Tensor

from unflip.data.arrays import Array
from unflip.errors import RunFolderError
from unflip.runs.folder import Run
from unflip.stats.gaussians import ClassGaussians, class_indices, fit_gaussians

_CLASSES = 6  # shown at most
_POINTS = 150  # shown per class
_CHUNK = 8192
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

    The Gaussians of the given labels, and of the current labels if any changed, have plain means and covariances of the
    training examples; the run saved the Gaussians with which it calibrated its head, and the features of that epoch.
    The plane is spanned by the first two principal directions of the last panel's means, in features scaled to unit
    variance within classes. With many classes, those whose mean moved farthest are shown. Covariances are estimated
    from about ``max_rows`` examples.
    """
    calibrated, mapped = run.gaussians, run.gaussian_features
    if calibrated is None:
        raise RunFolderError(f"{run.folder}: gaussians.safetensors is missing; use a finished run of mddc or cddc")
    if mapped is None:
        raise RunFolderError(f"{run.folder}: no features.npy")
    features = torch.from_numpy(mapped)
    table = run.labels(["split", "given_label", "current_label"])
    given, current = (torch.tensor(table[name].to_numpy()) for name in ("given_label", "current_label"))
    if len(given) != len(features):
        raise RunFolderError(f"{run.folder}: {len(features)} features for {len(given)} labels")
    train = torch.tensor(pyarrow.compute.equal(table["split"], "train").to_numpy()).nonzero()[:, 0]
    count = len(calibrated.means)

    versions = {"given labels": given}
    if bool((given[train] != current[train]).any()):
        versions["current labels"] = current
    means, there = {}, calibrated.present.clone()
    for title, labels in versions.items():
        means[title], sizes = _means(features, labels, train, count)
        there &= sizes >= 2
    moved = (calibrated.means - means["given labels"]).norm(dim=1).masked_fill(~there, -1.0)
    classes = sorted(moved.argsort(descending=True, stable=True)[: min(_CLASSES, int(there.sum()))].tolist())
    if len(classes) < 2:
        raise RunFolderError(f"{run.folder}: fewer than two classes have Gaussians")

    samples = {title: _sample(features, labels, train, classes, max_rows) for title, labels in versions.items()}
    last = list(versions)[-1]
    plane = _plane(*samples[last], calibrated.means[classes])
    panels = [_panel(title, rows @ plane, own, means[title][classes] @ plane) for title, (rows, own) in samples.items()]
    outlines = tuple(ellipse(calibrated, c, plane) for c in classes)
    calibrated_means = (calibrated.means[classes] @ plane).numpy()
    panels.append(Panel(f"{last}, calibrated", panels[-1].points, outlines, calibrated_means))
    return Shift(tuple(classes), count, tuple(panels))


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


def _means(features: Tensor, labels: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the mean feature (k, d) and the number of examples (k,) of each class among ``rows``."""
    sums = torch.zeros(count, features.shape[1])
    for part in rows.split(_CHUNK):
        sums.index_add_(0, labels[part], features[part].float())
    sizes = torch.bincount(labels[rows], minlength=count)
    return sums / sizes.clamp(min=1)[:, None], sizes


def _sample(
    features: Tensor, labels: Tensor, rows: Tensor, classes: Sequence[int], max_rows: int
) -> tuple[Tensor, Tensor]:
    """Return features of an even sample of the ``rows`` in ``classes``, and the positions of their classes there."""
    chosen = rows[torch.isin(labels[rows], torch.tensor(classes))]
    chosen = chosen[:: -(-len(chosen) // max_rows)]
    return features[chosen].float(), torch.searchsorted(torch.tensor(classes), labels[chosen])


def _panel(title: str, points: Tensor, labels: Tensor, means: Tensor) -> Panel:
    gaussians = fit_gaussians(points, labels, len(means), means=means)
    outlines = tuple(ellipse(gaussians, c, torch.eye(2)) for c in range(len(means)))
    shown = tuple(points[members[:_POINTS]].numpy() for members in class_indices(labels, len(means)))
    return Panel(title, shown, outlines, means.numpy())


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
