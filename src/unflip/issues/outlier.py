"""Outliers: examples that are far from every class, and so are their neighbors."""

from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.utils import gen_batches

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult, no_issues
from unflip.runs.labels import peoples_labels
from unflip.stats.nearest import Rows, all_nearest

_NEIGHBORS = 10
_MIN_SPREAD = 1e-3
_MIN_EXAMPLES = 20
_MIN_CLASS_SIZE = 3  # for a class mean
_MIN_CLASSES = 3  # the mean of two classes lies between both
_BLOCK = 4096


def find_outliers(audited: AuditInput) -> CheckResult:
    """Score examples by their distance, and that of their neighbors, to the nearest class mean.

    Columns are standardized and rows scaled to unit length, which makes class Gaussians more spherical and more similar
    (Müller and Hein 2025). Let m_c be the mean of class c under the given labels (under corrected labels, outliers
    would pull the mean of their nearest class towards them) and

        D_i^2 = min_c |x_i - m_c|^2 - v_c / n_c,  with x_i excluded from its own class (leave-one-out),
        s_i = D_i + mean of D_j over the ten nearest neighbors j of i,

    where v_c is the total variance of the n_c examples of the class: v_c / n_c is what estimating the mean adds to a
    squared distance; without it, every example would be far from small classes. D is thus a Mahalanobis distance with
    the covariance shrunk to a multiple of the identity. The overall mean has a distance of about 1 from each example,
    so an example is flagged if s_i > 2: it and its neighbors are nearer to the overall mean than to any class, the idea
    of relative distances (Ren et al. 2021). With two classes the overall mean lies between both, and nothing is
    flagged. The score is 1 / (1 + exp((2 - s_i) / q)), with q the interquartile range of s; see docs/audit.md.

    Müller, M., Hein, M. (2025). Mahalanobis++: improving OOD detection via feature normalization. ICML.
    Ren, J., et al. (2021). A simple fix to Mahalanobis distance for improving near-OOD detection. arXiv:2106.09022.
    """
    labels = peoples_labels(audited.table)
    if len(labels) < _MIN_EXAMPLES:
        return no_issues()
    directions = Directions(audited.features)
    sizes = np.bincount(labels, minlength=len(audited.class_names))
    known = sizes >= min(_MIN_CLASS_SIZE, sizes.max())
    distances, classes = nearest_class(directions, labels, known)
    if not np.isfinite(distances).all():  # each example is the only one of its class
        return no_issues()
    near = all_nearest(directions, min(_NEIGHBORS, len(labels) - 1)).indices
    far = distances + distances[near].mean(1)
    lower, upper = np.quantile(far, [0.25, 0.75])
    scores = expit((far - 2) / max(upper - lower, _MIN_SPREAD))
    below = np.searchsorted(np.sort(far), far) / len(far)

    def reason(at: int) -> str:
        share = f"{np.floor(1000 * below[at]) / 10:.1f} %"  # never rounded up to 100
        return f"farther from every class than {share} of the examples; nearest: {audited.class_names[classes[at]]}"

    return CheckResult(np.arange(len(far)), scores, (far > 2) & (known.sum() >= _MIN_CLASSES), reason)


class Directions:
    """Feature rows (n, d) with standardized columns, scaled to unit length, read on demand."""

    def __init__(self, features: Rows) -> None:
        self._features = features
        self.shape = (len(features), int(np.prod(features.shape[1:])))
        total, squares = np.zeros(self.shape[1]), np.zeros(self.shape[1])
        first = self._read(slice(0, 1)).mean(0)  # an offset against cancellation: columns may be far from 0
        for rows in gen_batches(len(features), _BLOCK):
            block = self._read(rows) - first
            total += block.sum(0)
            squares += np.square(block).sum(0)
        mean = total / len(features)
        spread = np.sqrt((squares / len(features) - mean**2).clip(min=0))
        self._mean = first + mean
        self._scale = np.divide(1, spread, where=spread > 0, out=np.zeros_like(spread)).astype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        """Return the rows at a slice or an index array."""
        block = (self._read(rows) - self._mean).astype(np.float32) * self._scale
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        scaled: Array = block / np.where(lengths > 0, lengths, 1)
        return scaled

    def _read(self, rows: Any) -> Array:
        block = np.asarray(self._features[rows], np.float64)
        return block.reshape(len(block), self.shape[1])


def nearest_class(directions: Directions, labels: Array, known: Array) -> tuple[Array, Array]:
    """Return the distance of each example to the nearest class mean, and that class, both (n,); see find_outliers.

    Args:
        directions: the examples (n, d).
        labels: their classes (n,).
        known: mask of the classes that are large enough (k,).
    """
    counts = np.bincount(labels, minlength=len(known)).astype(float)
    means, squared = np.zeros((len(known), directions.shape[1])), np.zeros(len(known))
    for rows in gen_batches(len(labels), _BLOCK):
        np.add.at(means, labels[rows], directions[rows])
        np.add.at(squared, labels[rows], np.square(directions[rows]).sum(1))
    means /= counts.clip(min=1)[:, None]
    lengths = np.square(means).sum(1)
    added = np.where(known, _added(squared, counts, lengths), -np.inf)
    nearest, distances = np.empty(len(labels), np.int64), np.empty(len(labels))
    for rows in gen_batches(len(labels), _BLOCK):
        block, own = directions[rows], labels[rows]
        each, length, products = np.arange(len(own)), np.square(block).sum(1), block @ means.T
        squares = length[:, None] - 2 * products + lengths - added
        n, along = counts[own], products[each, own]
        others = (n - 1).clip(min=1)
        to_mean = (length - 2 * along + lengths[own]) * (n / others) ** 2
        without = (n**2 * lengths[own] - 2 * n * along + length) / others**2
        leave_one_out = to_mean - _added(squared[own] - length, n - 1, without)
        squares[each, own] = np.where((n > 1) & known[own], leave_one_out, np.inf)
        nearest[rows] = squares.argmin(1)
        distances[rows] = np.sqrt(squares[each, nearest[rows]].clip(min=0))
    return distances, nearest


def _added(squared: Array, counts: Array, lengths: Array) -> Array:
    """Return the variance of a mean, from the sum of squares, the counts, and the squared length of the mean."""
    added: Array = (squared / counts.clip(min=1) - lengths).clip(min=0) / (counts - 1).clip(min=1)
    return added
