"""Standard: cross-entropy on the labels as they came, the baseline of every table."""

from unflip.methods.base import Method


class Standard(Method):
    """All defaults of a method."""
