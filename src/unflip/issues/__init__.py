"""Checks for issues other than wrong labels, one module each; near-duplicates and leakage share one."""

from unflip.registry import Entry, Registry

_HERE = "unflip.issues"

checks = Registry(
    "check",
    [
        Entry("outlier", "examples far from every class", f"{_HERE}.outlier:find_outliers"),
        Entry("near_duplicate", "groups of near-identical examples", f"{_HERE}.near_duplicate:find_near_duplicates"),
        Entry("leakage", "examples repeated in a test or validation set", f"{_HERE}.near_duplicate:find_leakage"),
        Entry("ambiguous", "examples with two equally likely classes", f"{_HERE}.ambiguous:find_ambiguous"),
        Entry("image_quality", "blank, dark, bright, tiny or long images", f"{_HERE}.image_quality:find_poor_images"),
        Entry("class_quality", "confused or very small classes", f"{_HERE}.class_quality:find_class_issues"),
    ],
)
"""In the order in which issues are listed; :mod:`unflip.issues.audit` describes what a check is."""
