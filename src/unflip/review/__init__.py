"""The review page: a local web page on which people check label issues."""

from enum import StrEnum


class Order(StrEnum):
    """What comes first: the lowest label quality, the most informative decisions (active learning), a random sample, or
    the examples for which one more label helps most."""

    LOWEST_QUALITY = "lowest-quality"
    INFORMATIVE = "informative"
    SAMPLE = "sample"
    ANNOTATE = "annotate"
