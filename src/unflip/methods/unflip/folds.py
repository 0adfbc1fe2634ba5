"""Folds: which examples each member of the ensemble is not trained on, so that it scores them out of sample."""

import torch
from torch import Tensor

from unflip.compute import generator

_TWO_FOLDS = 5  # members from which on each leaves two folds out, so that two of them score each example


def assign_folds(labels: Tensor, groups: Tensor | None, count: int, seed: int) -> Tensor:
    """Return random stratified folds (m,), from 0 to ``count`` - 1.

    Examples of a group share a fold. A group counts towards the class of its first example in random order. The groups
    of a class are assigned in turn, largest first, so that two folds differ by at most its largest group.

    Args:
        labels: (m,).
        groups: group number of each example (m,); by default each is a group of its own.
        count: number of folds.
        seed: random seed.
    """
    order = torch.randperm(len(labels), generator=generator(seed, "folds")).to(labels.device)
    if groups is None:
        groups = torch.arange(len(labels), device=labels.device)
    numbers = int(groups.max()) + 1
    first = torch.full((numbers,), len(order), device=labels.device)
    first.scatter_reduce_(0, groups[order], torch.arange(len(order), device=labels.device), "amin")
    heads = order[first[first < len(order)].sort().values]  # one example per group
    heads = heads[groups.bincount()[groups[heads]].argsort(stable=True, descending=True)]
    heads = heads[labels[heads].argsort(stable=True)]
    of_group = torch.zeros(numbers, dtype=torch.long, device=labels.device)
    of_group[groups[heads]] = torch.arange(len(heads), device=labels.device) % count
    return of_group[groups]


def folds_without(member: int, count: int) -> tuple[int, ...]:
    """Return the folds that a member of an ensemble of ``count`` is not trained on: two, or one of fewer than five."""
    return (member, (member + 1) % count) if count >= _TWO_FOLDS else (member,)


def members_rows(folds: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the positions (count, s) in a batch that each member is trained on, and whether it has any (count,).

    ``folds`` (b,) are those of the batch. All members get the same number of examples, the average of what is left
    without their own folds, so that shapes are constant: surplus examples are dropped, missing ones repeated from the
    start. Each gets at least two, as batch normalization needs.

    >>> members_rows(torch.tensor([0, 1, 1, 0]), 2)
    (tensor([[1, 2],
            [0, 3]]), tensor([1., 1.]))
    """
    num_without = len(folds_without(0, count))
    size = max(2, round(len(folds) * (count - num_without) / count)) if count > 1 else len(folds)
    members = torch.arange(count, device=folds.device)[:, None]
    own = ((folds - members) % count < num_without) & (folds >= 0)  # -1: a single member has no fold
    order = own.to(torch.uint8).argsort(dim=1, stable=True)
    left = len(folds) - own.sum(1)
    wrapped = torch.arange(size, device=folds.device)[None] % left.clamp(min=1)[:, None]
    return order.gather(1, wrapped), (left > 0).float()
