"""Which examples belong to each class."""

import torch
from torch import Tensor

from unflip.errors import InputError


def class_members(labels: Tensor, num_classes: int) -> tuple[Tensor, ...]:
    """Return for every class the positions of its members, ascending; sorts once, and stays on the device.

    >>> class_members(torch.tensor([1, 0, 1]), 3)
    (tensor([1]), tensor([0, 2]), tensor([], dtype=torch.int64))
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(f"labels must be one row of integers, not {tuple(labels.shape)} of {labels.dtype}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InputError(
            f"labels must be within 0 and {num_classes - 1}, these go from {int(labels.min())} "
            f"to {int(labels.max())}; is num_classes={num_classes} right?"
        )
    # A stable sort of 16-bit labels takes a third of the time of one of 64-bit labels.
    narrow = labels.to(torch.int16) if num_classes <= 2**15 else labels
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    order: Tensor = narrow.argsort(stable=True)
    return torch.split(order, counts)
