"""Folds: which examples a member of the ensemble does not learn from, so that it can score their labels."""

import torch
from torch import Tensor

from unflip.seeding import generator


def assign_folds(labels: Tensor, groups: Tensor | None, count: int, seed: int) -> Tensor:
    """Return the fold (m,) of each example, from 0 to ``count`` - 1: at random, as many of every class in each.

    Examples of one group (m,) share a fold, and its first member in random order stands for its class. The groups of a
    class are dealt in turn, the largest first, so that two folds differ by at most its largest group.
    """
    order = torch.randperm(len(labels), generator=generator(seed, "folds")).to(labels.device)
    if groups is None:
        groups = torch.arange(len(labels), device=labels.device)
    numbers = int(groups.max()) + 1
    first = torch.full((numbers,), len(order), device=labels.device)
    first.scatter_reduce_(0, groups[order], torch.arange(len(order), device=labels.device), "amin")
    heads = order[first[first < len(order)].sort().values]  # one example stands for each group
    heads = heads[groups.bincount()[groups[heads]].argsort(stable=True, descending=True)]
    heads = heads[labels[heads].argsort(stable=True)]
    of_group = torch.zeros(numbers, dtype=torch.long, device=labels.device)
    of_group[groups[heads]] = torch.arange(len(heads), device=labels.device) % count
    return of_group[groups]


def members_rows(folds: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the positions (count, s) in a batch that each member learns from, and whether it has any (count,).

    ``folds`` (b,) are those of the batch. A member takes examples of other folds than its own. All members take the
    same number, what is left of a batch on average, so that no shape depends on the draw: one with more leaves out the
    last, one with fewer takes the first again. They take two at least, as batch normalization needs.

    >>> members_rows(torch.tensor([0, 1, 1, 0]), 2)
    (tensor([[1, 2],
            [0, 3]]), tensor([1., 1.]))
    """
    size = max(2, round(len(folds) * (count - 1) / count)) if count > 1 else len(folds)
    own = folds[None] == torch.arange(count, device=folds.device)[:, None]
    order = own.to(torch.uint8).argsort(dim=1, stable=True)
    left = len(folds) - own.sum(1)
    wrapped = torch.arange(size, device=folds.device)[None] % left.clamp(min=1)[:, None]
    return order.gather(1, wrapped), (left > 0).float()
