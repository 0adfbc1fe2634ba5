"""Mean-based calibration (MDDC): robust class means by AgnosticMean."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from unflip.options import Options
from unflip.stats.agnostic_mean import Complement, Normalise, class_agnostic_means, damping_weights
from unflip.stats.gaussians import ClassGaussians, fit_gaussians
from unflip.stats.members import class_members


class MeanOptions(Options):
    """Options of MDDC."""

    damping: float = Field(1.0, gt=0.0)
    """C: how many times the class's variance away from the median an example counts 1/e."""
    covariance: Literal["empirical", "isotropic", "damped"] = "empirical"
    """What is drawn with, about the robust mean: the paper assumes sigma^2 I for the mean and does not say."""
    normalise: Normalise = "sum"
    """Weights over their sum, or over the `count` of members as printed, which depends on where the origin is."""
    complement: Complement = "weighted"
    """The mean on the lesser half of the directions: `weighted`, or `plain` as printed, which far outliers move."""


class MeanCalibrator:
    """``mu = AgnosticMean(h)`` (the paper's Algorithm 1), and about it, with n_c members h_i of a class,

    empirical: ``Sigma = sum (h_i - mu)(h_i - mu)^T / n_c``
    isotropic: ``Sigma = I sum |h_i - mu|^2 / (n_c d)``, what the paper assumes when it estimates the mean
    damped: ``Sigma = sum w_i (h_i - mu)(h_i - mu)^T / sum w_i`` with the algorithm's weights (eqs. weights and
    weighted_covariance), which holds less of what lies far out.
    """

    Options: ClassVar[type[MeanOptions]] = MeanOptions
    candidates = (0.0,)

    def __init__(self, options: MeanOptions) -> None:
        self.options = options

    def fit(
        self, features: Tensor, labels: Tensor, num_classes: int, previous: ClassGaussians | None = None
    ) -> ClassGaussians:
        """Fit robust means and the chosen covariance."""
        options = self.options
        means = class_agnostic_means(
            features,
            labels,
            num_classes,
            damping=options.damping,
            normalise=options.normalise,
            complement=options.complement,
        )
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
