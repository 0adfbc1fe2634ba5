"""One Gaussian per class: fitted to features, and drawn from."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from unflip.stats.rows import NOT_FINITE, NotFiniteError, add_upper, class_indices

_JITTER = 1e-6  # added to the diagonal of a singular correlation matrix


class ClassGaussians:
    """Class c has N(μ_c, F_cᵀ F_c + v_c I + α 1 1ᵀ), with α the disturbance, if it is present.

    F_c is whichever is cheaper, the centered features themselves or a triangular factor; v_c is the
    variance of an isotropic Gaussian. α 1 is the all-ones matrix of the paper's eq. sample_estimator_dis.

    Attributes:
        means: (k, d), zero for classes that are not present.
        present: (k,), which classes have a Gaussian.
        factors: k tensors (r_c, d).
        variances: (k,).
        disturbance: α, the same for all classes; it shifts all coordinates of a draw by the same amount.
    """

    def __init__(
        self, means: Tensor, present: Tensor, factors: Sequence[Tensor], variances: Tensor, disturbance: float = 0.0
    ) -> None:
        self.means = means
        self.present = present
        self.factors = tuple(factors)
        self.variances = variances
        self.disturbance = disturbance

    def with_disturbance(self, disturbance: float) -> "ClassGaussians":
        """Return the same Gaussians with another α; nothing is fitted or copied."""
        return ClassGaussians(self.means, self.present, self.factors, self.variances, disturbance)

    def to(self, device: torch.device | str) -> "ClassGaussians":
        """Return the same Gaussians on another device."""
        factors = [factor.to(device) for factor in self.factors]
        means, present, variances = (tensor.to(device) for tensor in (self.means, self.present, self.variances))
        return ClassGaussians(means, present, factors, variances, self.disturbance)

    def sample(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw ``per_class`` features for every class present, in the order of classes; return them and their labels.

        A draw is μ + Fᵀ ε + √v ζ + √α ξ (1, ..., 1), with ε in R^r, ζ in R^d and ξ in R standard normal. They are drawn
        on the CPU, to which ``generator`` must belong, so that every device sees the same.
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
        """Return a copy of everything as plain tensors."""
        return {
            "means": self.means.clone(),
            "present": self.present.clone(),
            "variances": self.variances.clone(),
            "factors": torch.cat(self.factors),
            "ranks": torch.tensor([len(factor) for factor in self.factors]),
            "disturbance": torch.tensor(self.disturbance, dtype=torch.float64),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Self:
        """Rebuild Gaussians from their `state_dict`."""
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
    """Fit a Gaussian to each class that has two members h_i or more.

    Its covariance is Σ w_i (h_i - μ)(h_i - μ)ᵀ, or the mean of its diagonal times I. A class with fewer members
    keeps its ``previous`` Gaussian, or is left out if it has none.

    Args:
        features: (n, d) on any device; half precision is widened class by class.
        labels: (n,) integers below ``num_classes``.
        num_classes: k.
        means: μ of every class (k, d); by default the mean of its members (eq. sample_estimator).
        weights: w of every class, in the order of its members; by default 1 / n_c each (eq. sample_estimator).
        isotropic: whether only the mean of the covariance's diagonal is used.
        previous: the Gaussians of the last fit.
    """
    shape = (num_classes, features.shape[1])
    features = features.detach()
    fitted = torch.zeros(shape, device=features.device)
    variances = torch.zeros(num_classes, device=features.device)
    present = torch.zeros(num_classes, dtype=torch.bool, device=features.device)
    factors = [fitted[:0]] * num_classes
    for c, members in enumerate(class_indices(labels.to(features.device), num_classes)):
        if len(members) >= 2:
            rows = features.index_select(0, members).to(torch.float32)
            fitted[c] = rows.mean(0) if means is None else means[c]
            rows -= fitted[c]
            if weights is None:
                rows /= len(rows) ** 0.5
            else:
                rows *= weights[c].to(rows).sqrt()[:, None]
            if isotropic:
                variances[c] = rows.square_().sum() / shape[1]
            else:
                factors[c] = covariance_factor(rows)
        elif previous is not None and previous.present[c]:
            fitted[c], variances[c] = previous.means[c], previous.variances[c]
            factors[c] = previous.factors[c].to(features.device)
        else:
            continue
        present[c] = True
    extremes = [torch.stack(part.aminmax()) for part in (fitted, variances, *factors) if part.numel()]
    if extremes and not bool(torch.stack(extremes).isfinite().all()):
        raise NotFiniteError(NOT_FINITE)
    return ClassGaussians(fitted, present, factors, variances)


def covariance_factor(rows: Tensor) -> Tensor:
    """Return F (r, d) with Fᵀ F = rowsᵀ rows = Σ for rows (n, d), such that drawing with F is cheap.

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
    spread = correlation.diagonal().sqrt()
    inverse = torch.where(spread > 0, 1 / spread, 0)
    correlation *= inverse * inverse[:, None]
    correlation.fill_diagonal_(1.0)
    lower, failed = torch.linalg.cholesky_ex(correlation)
    jitter = _JITTER
    while bool(failed) and jitter < 1:  # rows with NaN always fail; the caller refuses them
        lower, failed = torch.linalg.cholesky_ex(correlation.fill_diagonal_(1.0 + jitter))
        jitter *= 10
    factor: Tensor = lower.T * spread
    return factor
