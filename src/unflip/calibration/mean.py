"""Mean-based calibration (MDDC): robust class means by AgnosticMean."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from unflip.options import Options
from unflip.stats.agnostic_mean import Complement, Normalise, class_agnostic_means, damping_weights
from unflip.stats.gaussians import ClassGaussians, fit_gaussians
from unflip.stats.members import class_means, class_members, pooled_covariance


class MeanOptions(Options):
    """Options of MDDC."""

    damping: float = Field(1.0, gt=0.0)
    """C: an example at a squared distance of C times the class's variance from the median gets the weight 1/e."""
    covariance: Literal["empirical", "isotropic", "damped"] = "empirical"
    """Covariance of draws about the robust mean: the paper assumes sigma^2 I for the mean, and does not say."""
    normalise: Normalise = "sum"
    """Divide weights by their `sum`, or, as printed, by the `count` of members, which depends on the origin."""
    complement: Complement = "weighted"
    """The mean along the directions of less variance: `weighted`, or, as printed, `plain`, which far outliers move."""
    directions: PositiveInt | None = None
    """Number of leading directions of the pooled covariance in which the mean is robust; all by default."""


class MeanCalibrator:
    """``mu = AgnosticMean(h)`` (the paper's Algorithm 1), and a covariance about it, for n_c members h_i of a class:

    empirical: ``Sigma = sum (h_i - mu)(h_i - mu)^T / n_c``
    isotropic: ``Sigma = I sum |h_i - mu|^2 / (n_c d)``, what the paper assumes when it estimates the mean
    damped: ``Sigma = sum w_i (h_i - mu)(h_i - mu)^T / sum w_i`` with the algorithm's weights (eqs. weights and
    weighted_covariance), in which outliers count less.
    """

    Options: ClassVar[type[MeanOptions]] = MeanOptions
    candidates = (0.0,)
    moves_means = True

    def __init__(self, options: MeanOptions) -> None:
        self.options = options

    def fit(
        self, features: Tensor, labels: Tensor, num_classes: int, previous: ClassGaussians | None = None
    ) -> ClassGaussians:
        """Fit robust means and the chosen covariance."""
        options = self.options
        estimate = partial(
            class_agnostic_means,
            num_classes=num_classes,
            damping=options.damping,
            normalise=options.normalise,
            complement=options.complement,
        )
        if options.directions is None or options.directions >= features.shape[1]:
            means = estimate(features, labels)
        else:
            means = robust_in_leading(features, labels, num_classes, options.directions, estimate)
        weights = None
        if options.covariance == "damped":
            weights = [
                damping_weights(features[members], damping=options.damping, normalise=options.normalise)
                for members in class_members(labels, num_classes)
            ]
        isotropic = options.covariance == "isotropic"
        return fit_gaussians(
            features, labels, num_classes, means=means, weights=weights, isotropic=isotropic, previous=previous
        )


def robust_in_leading(
    features: Tensor, labels: Tensor, num_classes: int, directions: int, estimate: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return class means (k, d) that are robust in the leading directions and plain in all others.

    ``mean(h) + B (estimate(z) - mean(z))`` with ``z = B^T h``, the columns of B being the leading eigenvectors of the
    covariance of features about their class means, pooled over classes. Outliers cause most of the variance, so they
    lie along these directions. AgnosticMean searches for such directions in each class and at every halving; one set
    for all classes costs far less.

    Args:
        features: (n, d).
        labels: (n,) integers below ``num_classes``.
        num_classes: k.
        directions: the number of columns of B.
        estimate: maps features and labels to robust class means.
    """
    features = features.float()
    plain = class_means(features, labels, num_classes)
    pooled = pooled_covariance(features, labels, plain).cpu()
    basis: Tensor = torch.linalg.eigh(pooled).eigenvectors[:, -directions:].to(features.device)
    shift = estimate(features @ basis, labels) - plain @ basis  # NaN for a class without members
    return plain + shift.nan_to_num(0.0) @ basis.T
