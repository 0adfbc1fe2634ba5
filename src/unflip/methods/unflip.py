"""unflip: progressive correction whose changes need the consent of the class Gaussians; our own method."""

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from unflip.calibration.mean import MeanOptions
from unflip.labels.correction import CorrectionOptions
from unflip.methods.calibrated import CalibrationOptions
from unflip.methods.plc import PLC


class UnflipOptions(CorrectionOptions):
    """Those of plc with other defaults, which serve every data set."""

    warmup: NonNegativeInt | Literal["auto"] = "auto"
    """Labels first change at the end of this epoch (0 counts as 1); `auto`: when noisy validation improves no more."""
    consent: bool = True
    """Whether a change needs the vote of the class Gaussians."""


class UnflipCalibration(CalibrationOptions):
    """Those of calibration with another default."""

    head_lr: float = Field(0.01, gt=0.0)
    """Learning rate of the head's own optimiser; follows the same schedule."""


class UnflipMean(MeanOptions):
    """Those of mean-based calibration with another default."""

    directions: PositiveInt | None = 64
    """In how many leading directions of the pooled covariance the mean is robust."""


class Unflip(PLC):
    """What `unflip` calibrates (see ``recipes.py``): plc with consent, and a warm-up that ends by itself."""

    Options = UnflipOptions

    @classmethod
    def options_for(cls, epochs: int) -> dict[str, Any]:
        """Nothing: its warm-up ends by itself."""
        return {}
