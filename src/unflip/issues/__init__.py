"""Issues: what else may be wrong with data besides its labels; one file per check."""

from unflip.registry import Entry, Registry

checks = Registry(
    "check",
    Entry("outlier", "examples that are far from every class", "unflip.issues.outlier:find_outliers"),
    Entry(
        "near_duplicate",
        "examples that are there twice, or nearly so; they share a fold",
        "unflip.issues.near_duplicate:find_near_duplicates",
    ),
    Entry(
        "leakage",
        "examples that are in a test or validation set, too, or nearly so",
        "unflip.issues.leakage:find_leakage",
    ),
    Entry(
        "ambiguous", "examples of which two classes are about equally likely", "unflip.issues.ambiguous:find_ambiguous"
    ),
    Entry(
        "image_quality",
        "blank, dark, bright, tiny or very long images",
        "unflip.issues.image_quality:find_image_quality",
    ),
    Entry(
        "class_quality",
        "classes that are confused, or have few examples",
        "unflip.issues.class_quality:find_class_quality",
    ),
)
"""In the order in which issues are listed. A check is a function: see :mod:`unflip.issues.audit`."""
