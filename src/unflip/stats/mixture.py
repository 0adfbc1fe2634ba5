"""Two-component Gaussian mixture in one dimension: the probability that a value belongs to the lower component."""

import warnings

import torch
from torch import Tensor

from unflip.stats.gaussians import NotFiniteError

_FIT_VALUES = 5_000  # largest number of values that a mixture is fitted to


def low_probability(values: Tensor, seed: int) -> Tensor:
    """Return for each of ``values`` (m,) the probability that it belongs to the component with the smaller mean.

    Two Gaussians are fitted by expectation maximization to the values, scaled by :func:`normalized`: at most 10
    iterations, tolerance 1e-2, 5e-4 added to the variances (Li et al. 2020, section 3.1 and the released code). A fit
    that has not converged by then is used anyway. If all values are equal, all count as low. Of more than 5,000 values
    the fit uses a subset, evenly spaced among the sorted values, which changes the five parameters by less than the
    tolerance does, in a fraction of the time.
    """
    from sklearn.exceptions import ConvergenceWarning  # slow to import, and few runs need it
    from sklearn.mixture import GaussianMixture

    line = normalized(values)
    if not bool(line.isfinite().all()):
        raise NotFiniteError("losses hold NaN, infinity or values too large to compute with")
    if not bool(line.any()):
        return torch.ones_like(values)
    column = subsample(line, _FIT_VALUES).double().cpu().numpy()[:, None]
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(column)
    weights, means, variances = (
        torch.from_numpy(part.reshape(2)).to(line) for part in (mixture.weights_, mixture.means_, mixture.covariances_)
    )
    scores = weights.log() - variances.log() / 2 - (line[:, None] - means).square() / (2 * variances)  # (m, 2)
    low = int(means.argmin())
    return (scores[:, low] - scores[:, 1 - low]).sigmoid()


def subsample(values: Tensor, count: int) -> Tensor:
    """Return ``count`` of the sorted values, the midpoints of as many equal parts; all if there are fewer."""
    if len(values) <= count:
        return values
    positions = (torch.arange(count, dtype=torch.float64, device=values.device) + 0.5) * (len(values) / count)
    return values.sort().values[positions.long()]


def normalized(values: Tensor) -> Tensor:
    """Return ``(v - min) / (max - min)``; zeros if all values are equal."""
    if not len(values):
        return values
    above = values - values.min()
    largest = above.max()
    return above / largest if bool(largest > 0) else above
