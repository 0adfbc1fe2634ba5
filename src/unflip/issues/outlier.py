"""Outliers: examples that are far from every class, and whose neighbors are, too."""

from typing import Any

import numpy as np
from scipy.special import expit

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult, no_issues
from unflip.runs.labels import peoples_labels
from unflip.stats.nearest import Rows, all_nearest

_NEIGHBORS = 10
_LEAST_SPREAD = 1e-3
_FEWEST = 20  # examples without which nothing is typical
_MEMBERS = 3  # examples without which a class says nothing of where it is
_BETWEEN = 2  # classes, of which the mean of all is as good as that of any mixture
_BLOCK = 4096


def find_outliers(audited: AuditInput) -> CheckResult:
    """Score examples by their distance to the nearest class and by that of their neighbors.

    Columns are standardized and rows scaled to length 1, which makes Gaussian classes spherical and alike, so that only
    directions count (Müller and Hein 2025). Let m_c be the mean of class c under the labels that people gave (corrected
    ones would put outliers into the class that is nearest, and its mean nearer to them) and

        D_i^2 = min_c |x_i - m_c|^2 - v_c / n_c,  each x_i left out of its own class,
        s_i = D_i + mean of D_j over the ten nearest neighbors j of i,

    where v_c is the variance of the n_c members of the class, summed over columns: v_c / n_c is what the estimate of
    the mean adds to the square of a distance, without which every example would be far from small classes. So D is the
    Mahalanobis distance to the nearest class Gaussian whose covariance is shrunk all the way to a multiple of the
    identity. The mean of all examples has a distance of about 1 from each. So an example is flagged where s_i > 2: it
    and its neighbors are nearer to what all examples have in common than to any class, which is the idea of relative
    distances (Ren et al. 2021). Of two classes the mean of all lies between both, so that what is between them looks
    the same, and nothing is flagged. The score is 1 / (1 + exp((2 - s_i) / q)), where q is the distance between the
    quartiles of s. docs/audit.md says how this was chosen.

    Müller, M., Hein, M. (2025). Mahalanobis++: improving OOD detection via feature normalization. ICML.
    Ren, J., et al. (2021). A simple fix to Mahalanobis distance for improving near-OOD detection. arXiv:2106.09022.
    """
    labels = peoples_labels(audited.table)
    if len(labels) < _FEWEST:
        return no_issues()
    directions = Directions(audited.features)
    sizes = np.bincount(labels, minlength=len(audited.class_names))
    known = sizes >= min(_MEMBERS, sizes.max())
    distances, classes = _to_classes(directions, labels, known)
    if not np.isfinite(distances).all():  # each example is the only one of its class
        return no_issues()
    near = all_nearest(directions, min(_NEIGHBORS, len(labels) - 1)).indices
    far = distances + distances[near].mean(1)
    lower, upper = np.quantile(far, [0.25, 0.75])
    scores = expit((far - 2) / max(upper - lower, _LEAST_SPREAD))
    below = np.searchsorted(np.sort(far), far) / len(far)

    def reason(at: int) -> str:
        share = f"{np.floor(1000 * below[at]) / 10:.1f} %"  # never rounded up to 100
        return f"farther from every class than {share} of the examples; nearest: {audited.class_names[classes[at]]}"

    return CheckResult(np.arange(len(far)), scores, (far > 2) & (known.sum() > _BETWEEN), reason)


class Directions:
    """Rows (n, d) of features with standardized columns, scaled to length 1, made when they are asked for."""

    def __init__(self, features: Rows) -> None:
        self._features = features
        self.shape = (len(features), int(np.prod(features.shape[1:])))
        total, squares = np.zeros(self.shape[1]), np.zeros(self.shape[1])
        first = self._read(slice(0, 1)).mean(0)  # from which all is measured: columns may lie far from 0
        for rows in _blocks(len(features)):
            block = self._read(rows) - first
            total += block.sum(0)
            squares += np.square(block).sum(0)
        mean = total / len(features)
        spread = np.sqrt((squares / len(features) - mean**2).clip(min=0))
        self._mean = (first + mean).astype(np.float32)
        self._scale = np.divide(1, spread, where=spread > 0, out=np.zeros_like(spread)).astype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        """Return the rows of a slice, or at numbers."""
        block = (self._read(rows).astype(np.float32) - self._mean) * self._scale
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        scaled: Array = block / np.where(lengths > 0, lengths, 1)
        return scaled

    def _read(self, rows: Any) -> Array:
        block = np.asarray(self._features[rows], np.float64)
        return block.reshape(len(block), self.shape[1])


def _to_classes(directions: Directions, labels: Array, known: Array) -> tuple[Array, Array]:
    """Return the distance of each example to the nearest known class (k,) (n,), left out of its own, and that one (n,).

    It is that to the mean of the class, without what the mean of so few members adds to its square on average.
    """
    counts = np.bincount(labels, minlength=len(known)).astype(float)
    means, squared = np.zeros((len(known), directions.shape[1])), np.zeros(len(known))
    for rows in _blocks(len(labels)):
        np.add.at(means, labels[rows], directions[rows])
        np.add.at(squared, labels[rows], np.square(directions[rows]).sum(1))
    means /= counts.clip(min=1)[:, None]
    lengths = np.square(means).sum(1)
    added = np.where(known, _added(squared, counts, lengths), -np.inf)
    nearest, distances = np.empty(len(labels), np.int64), np.empty(len(labels))
    for rows in _blocks(len(labels)):
        block, own = directions[rows], labels[rows]
        each, length, products = np.arange(len(own)), np.square(block).sum(1), block @ means.T
        squares = length[:, None] - 2 * products + lengths - added
        n, along = counts[own], products[each, own]
        others = (n - 1).clip(min=1)
        to_mean = (length - 2 * along + lengths[own]) * (n / others) ** 2
        without = (n**2 * lengths[own] - 2 * n * along + length) / others**2
        left_out = to_mean - _added(squared[own] - length, n - 1, without)
        squares[each, own] = np.where((n > 1) & known[own], left_out, np.inf)
        nearest[rows] = squares.argmin(1)
        distances[rows] = np.sqrt(squares[each, nearest[rows]].clip(min=0))
    return distances, nearest


def _added(squared: Array, counts: Array, lengths: Array) -> Array:
    """Return the variance of a mean: by the sum of the members' squares, their number, the square of the mean."""
    added: Array = (squared / counts.clip(min=1) - lengths).clip(min=0) / (counts - 1).clip(min=1)
    return added


def _blocks(count: int) -> list[slice]:
    return [slice(start, min(count, start + _BLOCK)) for start in range(0, count, _BLOCK)]
