"""Standard: cross-entropy on the given labels, the baseline of every table."""

from unflip.methods.base import Method


class Standard(Method):
    """A method with all defaults."""
