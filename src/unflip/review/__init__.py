"""The review page: a local web page on which people check label issues."""

from enum import StrEnum


class Order(StrEnum):
    """What comes first: the lowest label quality, the most informative decisions (active learning), or a sample."""

    LOWEST_QUALITY = "lowest-quality"
    INFORMATIVE = "informative"
    SAMPLE = "sample"
