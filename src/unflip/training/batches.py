"""Batches: how an epoch is split into batches, and each batch among processes."""

import torch
from torch import Tensor

_LEAST = 2  # examples per process that batch normalisation needs


def shuffled(indices: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``indices`` in random order, on their own device."""
    return indices[torch.randperm(len(indices), generator=generator).to(indices.device)]


def cut(order: Tensor, batch_size: int, processes: int, rank: int) -> tuple[Tensor, ...]:
    """Return this process's share of each batch of an epoch.

    Every process takes the same number of steps of the same sizes, so the mean of their gradients is that of the
    whole batch. For this the order is padded from its own beginning to a multiple of ``processes``, as in torch's
    DistributedSampler. Process r takes every ``processes``-th example starting at r, so interleaving the shares
    restores the order. A last batch too small for batch normalisation is merged into the one before it. An epoch that
    is too small repeats its examples; an empty one has no batch.
    """
    if not len(order):
        return ()
    least = _LEAST * processes
    missing = least - len(order) if len(order) < least else -len(order) % processes
    if missing:
        order = torch.cat([order, order.repeat(-(-missing // len(order)))[:missing]])
    size = max(least, batch_size // processes * processes)
    starts = list(range(0, len(order), size))
    if len(starts) > 1 and len(order) - starts[-1] < least:
        starts.pop()
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(order)], strict=True)]
    return torch.split(order[rank::processes], [length // processes for length in sizes])


def repeated(indices: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` of ``indices``: as many random permutations of them as needed, one after the other."""
    rounds = -(-count // len(indices))
    return torch.cat([shuffled(indices, generator) for _ in range(rounds)])[:count]
