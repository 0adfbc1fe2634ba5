"""Checks for issues other than wrong labels, in modules by topic."""

from unflip.registry import Entry, Registry

_IN = "unflip.issues"

checks = Registry(
    "check",
    [
        Entry("outlier", "examples unlike all others", f"{_IN}.outlier:find_outliers"),
        Entry("near_duplicate", "groups of near-identical examples", f"{_IN}.duplicates:find_near_duplicates"),
        Entry("leakage", "examples repeated in a test or validation set", f"{_IN}.duplicates:find_leakage"),
        Entry("ambiguous", "examples with two equally likely classes", f"{_IN}.class_quality:find_ambiguous"),
        Entry(
            "image_quality", "blank, blurry, dark, bright, tiny or long images", f"{_IN}.image_quality:find_poor_images"
        ),
        Entry("class_quality", "confused or very small classes", f"{_IN}.class_quality:find_class_issues"),
        Entry(
            "column_quality", "useless columns, and ones that give the label away", f"{_IN}.columns:find_column_issues"
        ),
        Entry("slice", "values of a column, or clusters, with many wrong labels", f"{_IN}.columns:find_slices"),
    ],
)
"""In the order in which issues are listed; :mod:`unflip.issues.audit` describes what a check is."""
