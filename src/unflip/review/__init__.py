"""The review page: a local web page on which people check doubtful labels."""

from enum import StrEnum


class Order(StrEnum):
    """What comes first: the most doubtful labels, or those about which a decision teaches most."""

    LOWEST_QUALITY = "lowest-quality"
    INFORMATIVE = "informative"
