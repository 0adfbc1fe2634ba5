"""unflip: train classifiers on data whose labels are partly wrong, and get the labels back, corrected."""

from unflip._version import __version__

__all__ = ["__version__"]
