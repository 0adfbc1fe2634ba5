"""Calibration: features and current labels in, class Gaussians out."""

from unflip.registry import Entry, Registry

calibrators = Registry(
    "calibrator",
    Entry("mean", "robust class means by AgnosticMean (MDDC)", "unflip.calibration.mean:MeanCalibrator"),
    Entry("covariance", "disturbed class covariances (CDDC)", "unflip.calibration.covariance:CovarianceCalibrator"),
)
