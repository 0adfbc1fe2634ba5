"""Which examples validate: a share of every class, drawn by the seed; groups stay together."""

import numpy as np
import torch
from torch import Tensor

from unflip.data.array_files import Array
from unflip.seeding import generator


def group_numbers(groups: Array) -> Tensor:
    """Number groups, whatever they are called."""
    return torch.from_numpy(np.unique(groups, return_inverse=True)[1])


def stratified_split(
    labels: Tensor, num_classes: int, fraction: float, seed: int, groups: Tensor | None = None
) -> Tensor:
    """Return which examples validate: of each class the rounded ``fraction``, drawn by ``seed``.

    Examples with the same number in ``groups`` (n,) stay together, and ``fraction`` is then the most of a class: groups
    are taken in random order, each if all of it still fits.
    """
    if groups is not None:
        return _grouped_split(labels, num_classes, fraction, seed, groups)
    order = torch.randperm(len(labels), generator=generator(seed, "split"))
    order = order[labels[order].argsort(stable=True)]  # by class, random within
    counts = torch.bincount(labels, minlength=num_classes)
    position = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    chosen = position < (counts * fraction + 0.5).long().repeat_interleave(counts)
    is_val = torch.zeros(len(labels), dtype=torch.bool)
    is_val[order[chosen]] = True
    return is_val


def _grouped_split(labels: Tensor, num_classes: int, fraction: float, seed: int, groups: Tensor) -> Tensor:
    sizes = torch.bincount(groups).tolist()
    members = groups.argsort(stable=True).split(sizes)
    room = torch.bincount(labels, minlength=num_classes).mul(fraction).add(0.5).long()
    is_val = torch.zeros(len(labels), dtype=torch.bool)
    for group in torch.randperm(len(sizes), generator=generator(seed, "split")).tolist():
        if not bool(room.any()):
            break
        taken = labels[members[group]].bincount(minlength=num_classes)
        if bool((taken <= room).all()):
            is_val[members[group]] = True
            room -= taken
    return is_val
