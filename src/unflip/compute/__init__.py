"""Compute: devices and processes, and passes of networks over many examples without gradients."""
