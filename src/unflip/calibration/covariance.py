"""Covariance-based calibration (CDDC): sample means, and covariances with a disturbance."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from unflip.options import Options
from unflip.stats.gaussians import ClassGaussians, fit_gaussians

DISTURBANCES = (0.1, 0.2, 0.3, 0.4)
"""The values that ``disturbance = "auto"`` chooses from: those of the paper's Figure 4."""


class CovarianceOptions(Options):
    """Options of CDDC."""

    disturbance: Annotated[float, Field(ge=0.0)] | Literal["auto"] = 0.2
    """alpha, added to every entry of each class covariance; `auto` picks 0.1 to 0.4 by noisy validation."""


class CovarianceCalibrator:
    """``mu = mean(h)``, ``Sigma = cov(h) + alpha 1`` (equations sample_estimator and sample_estimator_dis).

    1 is the matrix of ones, as printed: the disturbance is common to all features of a draw, not independent
    for each.
    """

    Options: ClassVar[type[CovarianceOptions]] = CovarianceOptions
    moves_means = False

    def __init__(self, options: CovarianceOptions) -> None:
        self.candidates = DISTURBANCES if options.disturbance == "auto" else (options.disturbance,)

    def fit(
        self, features: Tensor, labels: Tensor, num_classes: int, previous: ClassGaussians | None = None
    ) -> ClassGaussians:
        """Fit means and covariances with the first of ``candidates`` as disturbance; the caller may set another."""
        gaussians = fit_gaussians(features, labels, num_classes, previous=previous)
        return gaussians.with_disturbance(self.candidates[0])
