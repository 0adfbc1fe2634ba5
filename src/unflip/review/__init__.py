"""The review page: a local web page on which people check label issues."""

from enum import StrEnum


class Order(StrEnum):
    """What comes first: the lowest label quality, or the most informative decisions (active learning)."""

    LOWEST_QUALITY = "lowest-quality"
    INFORMATIVE = "informative"
