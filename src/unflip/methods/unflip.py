"""unflip: progressive label correction that changes a label only if the class Gaussians agree; our own method."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from unflip.calibration.mean import MeanOptions
from unflip.labels.correction import CorrectionOptions
from unflip.methods.calibrated import CalibrationOptions
from unflip.methods.plc import PLC


class UnflipOptions(CorrectionOptions):
    """The options of plc, with defaults that work for every data set."""

    warmup: NonNegativeInt | Literal["auto"] = "auto"
    """Labels first change at the end of this epoch (0 counts as 1); `auto`: when noisy validation stops improving."""
    consent: bool = True
    """Whether a label changes only if the class Gaussians agree."""


class UnflipCalibration(CalibrationOptions):
    """The options of calibration, with another default."""

    head_lr: float = Field(0.01, gt=0.0)
    """Learning rate of the head's own optimiser, which follows the run's schedule."""


class UnflipMean(MeanOptions):
    """The options of mean-based calibration, with another default."""

    directions: PositiveInt | None = 64
    """Number of leading directions of the pooled covariance in which the mean is estimated robustly."""


class Unflip(PLC):
    """The method inside `unflip` (see ``recipes.py``): plc with consent and an automatic warm-up."""

    Options = UnflipOptions
