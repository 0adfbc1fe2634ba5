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


def held_out_rows(folds: Tensor, count: int) -> Tensor:
    """Return which examples (count, b) each member of an ensemble is not trained on, from their folds (b,)."""
    members = torch.arange(count, device=folds.device)[:, None]
    return ((folds - members) % count < len(folds_without(0, count))) & (folds >= 0)  # -1: a single member has no fold


def members_rows(held_out: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the positions (count, s) in a batch that each member is trained on, and whether it has any (count,).

    All members get the same number of examples, so that shapes are constant: surplus examples are dropped, missing ones
    repeated from the start.

    Args:
        held_out: which examples of the batch each member is not trained on (count, b).
        size: s, about as many as are left.

    >>> members_rows(torch.tensor([[True, False, False, True], [False, True, True, False]]), 2)
    (tensor([[1, 2],
            [0, 3]]), tensor([1., 1.]))
    """
    order = held_out.to(torch.uint8).argsort(dim=1, stable=True)
    left = (~held_out).sum(1)
    wrapped = torch.arange(size, device=held_out.device)[None] % left.clamp(min=1)[:, None]
    return order.gather(1, wrapped), (left > 0).float()
