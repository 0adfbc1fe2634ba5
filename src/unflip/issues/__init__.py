"""Checks for issues other than wrong labels, one module each."""

from unflip.registry import Entry, Registry

checks = Registry(
    "check",
    Entry("outlier", "examples far from every class", "unflip.issues.outlier:find_outliers"),
    Entry("near_duplicate", "groups of near-identical examples", "unflip.issues.near_duplicate:find_near_duplicates"),
    Entry("leakage", "examples repeated in a test or validation set", "unflip.issues.leakage:find_leakage"),
    Entry("ambiguous", "examples with two equally likely classes", "unflip.issues.ambiguous:find_ambiguous"),
    Entry(
        "image_quality",
        "blank, dark, bright, tiny or long images",
        "unflip.issues.image_quality:find_low_quality_images",
    ),
    Entry("class_quality", "confused or very small classes", "unflip.issues.class_quality:find_class_issues"),
)
"""In the order in which issues are listed; :mod:`unflip.issues.audit` describes what a check is."""
