"""One Gaussian per class: fitted to features, and sampled from; a mixture of two Gaussians in one dimension."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from unflip.errors import InputError

NOT_FINITE = "features hold NaN, infinity or values too large to compute with"
_FIT_VALUES = 5_000  # largest number of values that a mixture is fitted to
_JITTER = 1e-6  # added to the diagonal of a singular correlation matrix


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """Class c has N(μ_c, F_cᵀ F_c + v_c I + α 1 1ᵀ), with α the disturbance, if it is present.

    F_c is either the centered features or a triangular factor, whichever is cheaper; v_c is the variance of an
    isotropic Gaussian. α 1 1ᵀ, a matrix of equal entries, is the disturbance of the paper's eq. 7.

    Attributes:
        means: (k, d), zero for classes that are not present.
        present: (k,), which classes have a Gaussian.
        factors: k tensors (r_c, d).
        variances: (k,).
        disturbance: α, the same for all classes; it shifts all coordinates of a sample by the same amount.
    """

    means: Tensor
    present: Tensor
    factors: Sequence[Tensor]
    variances: Tensor
    disturbance: float = 0.0

    def with_disturbance(self, disturbance: float) -> "ClassGaussians":
        """Return the same Gaussians with another α, without copying tensors."""
        return replace(self, disturbance=disturbance)

    def sample(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sample ``per_class`` features of every class present, in the order of classes.

        A sample is μ + Fᵀ ε + √v ζ + √α ξ (1, ..., 1), with ε in R^r, ζ in R^d and ξ in R standard normal. These are
        drawn on the CPU, so that samples do not depend on the device.

        Args:
            per_class: number of samples of each class.
            generator: on the CPU.

        Returns:
            Features (n, d) and their labels (n,).
        """
        device = self.means.device
        classes = self.present.nonzero()[:, 0]
        labels = classes.repeat_interleave(per_class)
        drawn = self.means.new_empty(len(classes), per_class, self.means.shape[1])
        for c, rows in zip(classes.tolist(), drawn, strict=True):
            noise = torch.randn(per_class, len(self.factors[c]), generator=generator)
            torch.addmm(self.means[c], noise.to(device), self.factors[c], out=rows)
        drawn = drawn.flatten(0, 1)
        if bool(self.variances.any()):
            noise = torch.randn(drawn.shape, generator=generator).to(device)
            drawn.addcmul_(noise, self.variances.sqrt()[labels, None])
        if self.disturbance:
            drawn += self.disturbance**0.5 * torch.randn(len(drawn), 1, generator=generator).to(device)
        return drawn, labels

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all fields as plain tensors."""
        return {
            "means": self.means.clone(),
            "present": self.present.clone(),
            "variances": self.variances.clone(),
            "factors": torch.cat(tuple(self.factors)),
            "ranks": torch.tensor([len(factor) for factor in self.factors]),
            "disturbance": torch.tensor(self.disturbance, dtype=torch.float64),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Self:
        """Build Gaussians from a saved `state_dict`."""
        factors = state["factors"].split(state["ranks"].tolist())
        return cls(state["means"], state["present"], factors, state["variances"], float(state["disturbance"]))


def fit_gaussians(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    means: Tensor | None = None,
    weights: Sequence[Tensor] | None = None,
    isotropic: bool = False,
    previous: ClassGaussians | None = None,
) -> ClassGaussians:
    """Fit a Gaussian to each class that has at least two examples h_i.

    Its covariance is Σ w_i (h_i - μ)(h_i - μ)ᵀ, or the mean of its diagonal times I. A class with fewer examples
    keeps its ``previous`` Gaussian; without one, it is not present.

    Args:
        features: (n, d) on any device; half precision is widened class by class.
        labels: (n,) integers below ``num_classes``.
        num_classes: k.
        means: μ of every class (k, d); by default the mean of its examples (eq. 6).
        weights: w of every class, in the order of its examples; by default 1 / n_c each (eq. 6).
        isotropic: whether to use only the mean of the covariance's diagonal.
        previous: the Gaussians of the last fit.
    """
    features = features.detach()
    if previous is None:
        zeros = torch.zeros(num_classes, features.shape[1], device=features.device)
        previous = ClassGaussians(zeros, zeros[:, 0] > 0, [zeros[:0]] * num_classes, zeros[:, 0])
    fitted, variances, present = previous.means.clone(), previous.variances.clone(), previous.present.clone()
    factors = list(previous.factors)
    for c, indices in enumerate(class_indices(labels.to(features.device), num_classes)):
        if len(indices) < 2:
            continue
        rows = features.index_select(0, indices).to(torch.float32)
        fitted[c] = rows.mean(0) if means is None else means[c]
        rows -= fitted[c]
        if weights is None:
            rows /= len(rows) ** 0.5
        else:
            rows *= weights[c].to(rows).sqrt()[:, None]
        if isotropic:
            variances[c] = rows.square_().sum() / rows.shape[1]
        else:
            factors[c] = covariance_factor(rows)
        present[c] = True
    extremes = [torch.stack(part.aminmax()) for part in (fitted, variances, *factors) if part.numel()]
    if extremes and not bool(torch.stack(extremes).isfinite().all()):
        raise NotFiniteError(NOT_FINITE)
    return ClassGaussians(fitted, present, factors, variances)


def covariance_factor(rows: Tensor) -> Tensor:
    """Return F (r, d) with Fᵀ F = rowsᵀ rows = Σ for rows (n, d), such that sampling with F is cheap.

    F is the rows themselves if there are at most 2 d, since factoring Σ would cost more than it saves, else the
    Cholesky factor of Σ, computed for coordinates scaled to unit variance. A constant coordinate stays constant. Where
    Σ is singular because coordinates depend on each other, their variances grow by a millionth or, if rounding requires
    it, a little more.
    """
    n, d = rows.shape
    if n <= 2 * d:
        return rows
    correlation = rows.new_empty(d, d)
    add_upper(correlation[None], rows.T[None], rows.T[None], beta=0)
    correlation = correlation.T
    std = correlation.diagonal().sqrt()
    inverse = torch.where(std > 0, 1 / std, 0)
    correlation *= inverse * inverse[:, None]
    correlation.fill_diagonal_(1.0)
    lower, failed = torch.linalg.cholesky_ex(correlation)
    jitter = _JITTER
    while bool(failed) and jitter < 1:  # rows with NaN always fail; the caller raises
        lower, failed = torch.linalg.cholesky_ex(correlation.fill_diagonal_(1.0 + jitter))
        jitter *= 10
    factor: Tensor = lower.T * std
    return factor


def class_indices(labels: Tensor, num_classes: int) -> tuple[Tensor, ...]:
    """Return the ascending positions of the examples of each class: k tensors (n_c,).

    >>> class_indices(torch.tensor([1, 0, 1]), 3)
    (tensor([1]), tensor([0, 2]), tensor([], dtype=torch.int64))
    """
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InputError(f"labels must be from 0 to {num_classes - 1}")
    # A stable sort of 16-bit labels takes a third of the time of one of 64-bit labels.
    narrow = labels.to(torch.int16) if num_classes <= 2**15 else labels
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    order: Tensor = narrow.argsort(stable=True)
    return torch.split(order, counts)


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean of each class (k, d); zero for a class without examples."""
    total = features.new_zeros(num_classes, features.shape[1]).index_add_(0, labels, features)
    return total / labels.bincount(minlength=num_classes).clamp(min=1)[:, None]


def add_upper(total: Tensor, left: Tensor, right: Tensor, beta: float) -> None:
    """Set ``total`` (b, d, d) to beta · total + left rightᵀ in the upper triangle (and part of the rest).

    Its transpose is what eigh and cholesky read: a lower triangle, column by column.
    """
    half = total.shape[1] // 2
    if half < 64:
        total.baddbmm_(left, right.mT, beta=beta)
        return
    total[:, :half].baddbmm_(left[:, :half], right.mT, beta=beta)
    add_upper(total[:, half:, half:], left[:, half:], right[:, half:], beta)


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
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
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


class NotFiniteError(InputError):
    """Features, or values computed from them, hold NaN or infinity, or are too large to compute with."""
