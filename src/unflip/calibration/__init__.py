"""Calibration: features and current labels in, class Gaussians out."""
