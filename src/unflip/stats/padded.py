"""Classes of about the same size, padded into one tensor, and work on such tensors in parallel threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf

import torch
from torch import Tensor

from unflip.stats.medians import even_length

_GROUP = 2**19  # padded numbers in a group of classes: the work of one thread, about 2 MB
_CHUNK = 4096  # examples gathered at once


class Padding:
    """Masks and weights for classes that are worked on together, each padded to the length of the longest.

    ``fence`` (b, 1, `even_length` of n) is added before medians are taken: it is 0 for members, and moves the padding
    to -∞ and +∞ in turns, such that the (upper) median of every class is in the middle of the padded row.
    """

    def __init__(self, counts: Sequence[int], dtype: torch.dtype) -> None:
        size = torch.tensor(counts)[:, None, None]
        longest = int(size.max())
        position = torch.arange(even_length(longest))
        self.fence = torch.where(position < size, 0.0, torch.where(position % 2 == 1, -inf, inf)).to(dtype)
        member = position[:longest] < size  # (b, 1, n), like those below
        self.beyond = torch.where(member, 0.0, inf).to(dtype)
        self.uniform = member.to(dtype) / size  # weights of the plain mean
        self.even = size % 2 == 0  # (b, 1, 1)
        self.any_even = bool(self.even.any())


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type to compute in for features of type ``dtype``: float32, or float64 if they are."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def gather(features: Tensor, members: Sequence[Tensor]) -> tuple[Tensor, Padding]:
    """Return the classes' features, (b, d, longest), on the CPU, and their padding."""
    counts = [len(indices) for indices in members]
    x = torch.empty(len(members), features.shape[1], max(counts), dtype=wide(features.dtype))
    for row, indices in zip(x, members, strict=True):
        row[:, len(indices) :] = 0
        for part, chosen in zip(row.split(_CHUNK, dim=1), indices.split(_CHUNK), strict=False):
            # Widened first: torch is slow at widening and transposing in one step.
            part[:, : len(chosen)] = features.index_select(0, chosen).to("cpu", x.dtype).T
    return x, Padding(counts, x.dtype)


def group_classes(counts: Sequence[int], dim: int) -> list[tuple[int, ...]]:
    """Group small classes of about the same size; the largest come first."""
    groups: list[tuple[int, ...]] = []
    longest = 0
    for c in sorted((c for c, count in enumerate(counts) if count), key=lambda c: -counts[c]):
        fits = groups and (len(groups[-1]) + 1) * longest * dim <= _GROUP
        if fits and counts[c] >= 0.9 * longest:
            groups[-1] += (c,)
        else:
            groups.append((c,))
            longest = counts[c]
    return groups


def one_thread_each(work: Callable[[Sequence[int]], Tensor], groups: Sequence[Sequence[int]]) -> list[Tensor]:
    """Work on as many groups in parallel as torch has threads; torch's setting is restored afterwards.

    torch keeps the number of threads per thread, and gives new threads the last one set: a worker's setting
    does not affect the caller, and the value for new threads is restored at the end.
    """
    threads = torch.get_num_threads()
    if threads == 1:  # starting a thread takes longer than a small group
        return [work(group) for group in groups]
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, groups))
    finally:
        torch.set_num_threads(threads)
