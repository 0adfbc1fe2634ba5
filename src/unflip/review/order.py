"""Order: the ways in which people can go through the examples of a run."""

from enum import StrEnum


class Order(StrEnum):
    """What comes first: the most doubtful labels, or those about which a decision teaches most."""

    DOUBTFUL = "doubtful"
    HELPFUL = "helpful"
