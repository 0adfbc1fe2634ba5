"""Outliers: examples that are unlike all others."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import gen_batches

from unflip.data.arrays import Array, Shards
from unflip.data.dataset import Encoding
from unflip.encoders.table import columns_of, text_columns
from unflip.issues.audit import AuditInput, CheckResult, no_issues
from unflip.stats.nearest import nearest

_NEIGHBORS = 50
_REFERENCE = 5000  # examples among which neighbors are searched
_MIN_EXAMPLES = 20
_FAR = 3.4  # standard deviations above the median
_MIN_SPREAD = 0.05  # of -log similarity: where most examples are equal, others are no outliers
_MIN_SIMILARITY = 0.02
_UNITS = 10  # times the median standard deviation: columns that do not share a unit
_FEW = 8  # columns: no embedding has so few
_SHRINK, _MAX_WHITENED = 0.3, 1000  # of the covariance, and the columns up to which it is used
_BLOCK = 4096


def find_outliers(audited: AuditInput) -> CheckResult:
    """Score examples by their similarity to the 50 nearest others; labels are not used.

    With s_i the mean cosine similarity of example i to its nearest neighbors (see :func:`unit_vectors`) and
    t_i = -log s_i, an example is flagged if t_i exceeds the median of t by more than 3.4 σ. σ is the larger of two
    estimates from the upper half of t, its quartile / 0.674 and its decile / 1.282, both above the median: equal for
    Gaussian t. What is above, but at most 10 %, is left out, and median and σ are estimated again until nothing
    changes. The score is z / (z + 3.4) with z = (t_i - median) / σ. Neighbors are searched among
    up to 5,000 evenly spaced examples, so that the result does not depend on how many there are.

    docs/results/outliers.md has how the constants were chosen, and how much is flagged in data without outliers.
    """
    features = audited.features
    count = len(features)
    if count < _MIN_EXAMPLES:
        return no_issues()
    reference = np.unique(np.linspace(0, count - 1, min(count, _REFERENCE)).round().astype(np.int64))
    directions = unit_vectors(features, reference, audited.data.encoding)
    points, place = directions(reference), np.full(count, -1)
    place[reference] = np.arange(len(reference))
    similarity = np.empty(count)
    for rows in gen_batches(count, _BLOCK):
        found = nearest(points, directions(rows), min(_NEIGHBORS, len(points) // 4), leave_out=place[rows])
        similarity[rows] = 1 - np.square(found.distances).mean(1) / 2  # |a - b|² = 2 - 2 cos
    far, typical = _deviations(-np.log(similarity.clip(min=_MIN_SIMILARITY)))

    def reason(at: int) -> str:
        return f"its nearest examples have a similarity of {similarity[at]:.2f}; {np.exp(-typical):.2f} is typical"

    scores = far.clip(min=0) / (far.clip(min=0) + _FAR)
    return CheckResult(np.arange(count), scores, far > _FAR, reason)


def _deviations(values: Array) -> tuple[Array, float]:
    """Return by how many standard deviations values (n,) exceed the median of the ordinary ones, and this median."""
    most, limit = np.quantile(values, 0.9), np.inf
    while True:
        median, quartile, decile = np.quantile(values[values <= limit], [0.5, 0.75, 0.9])
        spread = max((quartile - median) / 0.6745, (decile - median) / 1.2816, _MIN_SPREAD)
        lower = max(median + _FAR * spread, most)
        if lower >= limit:
            return (values - median) / spread, float(median)
        limit = lower


def unit_vectors(features: Shards, reference: Array, encoding: Encoding | None) -> Callable[[Any], Array]:
    """Return a function that reads feature rows (m, d), at a slice or an index array, as unit vectors.

    Embeddings of images or texts share a unit: their directions are compared as they are. Columns of a table do not,
    nor do those of an array if there are fewer than eight, if one varies ten times as much as the median one, or if
    the mean is as far from zero. They are centered, standardized (unless the table encoder did so) and whitened by the
    covariance, shrunk by 0.3 towards a multiple of the identity; a constant column of half the root mean square length
    is appended, so that rows far from the center differ, too.

    Args:
        features: the rows.
        reference: the rows to estimate mean and covariance from.
        encoding: how the features were made, if known.
    """

    def read(rows: Any) -> Array:
        block = np.asarray(features[rows], np.float64)
        return block.reshape(len(block), -1)

    def normalized(block: Array) -> Array:
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        return (block / np.where(lengths > 0, lengths, 1)).astype(np.float32)

    rows = read(reference)
    center, spread = rows.mean(0), rows.std(0)
    if encoding is None:
        usual = np.median(spread[spread > 0]) if spread.any() else 0.0
        largest = max(spread.max(), np.median(np.abs(center)))
        encoded, units = False, len(spread) < _FEW or largest > _UNITS * usual
    else:
        encoded = units = encoding.encoder == "table" and columns_of(encoding) != text_columns(encoding)
    if not units:
        return lambda some: normalized(read(some))
    scale = np.ones_like(spread) if encoded else np.divide(1, spread, where=spread > 0, out=np.zeros_like(spread))
    matrix = np.diag(scale) if len(scale) > _MAX_WHITENED else _whitening((rows - center) * scale, scale)
    constant = 0.5 * float(np.sqrt(np.square((rows - center) @ matrix).sum(1).mean()))

    def whitened(some: Any) -> Array:
        block = (read(some) - center) @ matrix
        return normalized(np.column_stack([block, np.full(len(block), constant)]))

    return whitened


def _whitening(rows: Array, scale: Array) -> Array:
    """Return the matrix (d, d) that scales columns and whitens centered, scaled rows (n, d)."""
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    values = (1 - _SHRINK) * values.clip(min=0) + _SHRINK * values.mean()
    return np.asarray(scale[:, None] * vectors / np.sqrt(values.clip(min=1e-30)))
