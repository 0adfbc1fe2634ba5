"""Checks: what else may be wrong with data besides its labels; one file per check."""

from unflip.registry import Entry, Registry

checks = Registry(
    "check",
    Entry(
        "near_duplicate",
        "examples that are there twice, or nearly so; they share a fold",
        "unflip.checks.near_duplicate:find",
    ),
    Entry("leak", "examples that are in a test or validation set, too, or nearly so", "unflip.checks.leak:find"),
)
"""In the order in which findings are listed. A check is a function: see :mod:`unflip.checks.examined`."""
