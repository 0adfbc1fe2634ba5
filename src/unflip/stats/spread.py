"""Spread: evenly spaced examples, where fewer than all are enough."""

import torch
from torch import Tensor


def spread(count: int, most: int, device: torch.device) -> Tensor:
    """Return ``most`` evenly spaced positions below ``count`` on ``device``, or all of them.

    >>> spread(10, 4, torch.device("cpu"))
    tensor([0, 3, 6, 9])
    """
    if count <= most:
        return torch.arange(count, device=device)
    return torch.linspace(0, count - 1, most, dtype=torch.float64).long().to(device)
