"""Checks: what else may be wrong with data besides its labels; one file per check."""

from unflip.registry import Registry

checks = Registry("check")
"""In the order in which findings are listed. A check is a function: see :mod:`unflip.checks.examined`."""
