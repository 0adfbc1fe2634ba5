"""Rows of numbers: which belong to each class, their means and covariance, a part of them, and how they are stored."""

import torch
from torch import Tensor

from unflip.errors import InputError

NOT_FINITE = "features hold NaN, infinity or values too large to compute with"
_ROWS = 4096  # features at once; they fit in the cache
_ENOUGH, _PER_DIMENSION = 8192, 16  # examples that a covariance is estimated from
HALF_ABOVE = 2**26
"""Values beyond which a table is stored in half precision: 256 MB in single precision."""
HALF_MOST = 65504.0
"""The largest number that half precision can hold."""


class NotFiniteError(InputError):
    """Features, or what follows from them, hold NaN or infinity, or are too large to compute with."""


def class_indices(labels: Tensor, num_classes: int) -> tuple[Tensor, ...]:
    """Return for every class the positions of its members, ascending; sorts once, and stays on the device.

    >>> class_indices(torch.tensor([1, 0, 1]), 3)
    (tensor([1]), tensor([0, 2]), tensor([], dtype=torch.int64))
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(f"labels must be integers of shape (n,), not {labels.dtype} of shape {tuple(labels.shape)}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InputError(
            f"labels must be from 0 to {num_classes - 1}, these go from {int(labels.min())} "
            f"to {int(labels.max())}; is num_classes={num_classes} right?"
        )
    # A stable sort of 16-bit labels takes a third of the time of one of 64-bit labels.
    narrow = labels.to(torch.int16) if num_classes <= 2**15 else labels
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    order: Tensor = narrow.argsort(stable=True)
    return torch.split(order, counts)


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the plain mean of each class (k, d); zero for a class without members."""
    total = features.new_zeros(num_classes, features.shape[1]).index_add_(0, labels, features)
    return total / labels.bincount(minlength=num_classes).clamp(min=1)[:, None]


def pooled_covariance(features: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """Return ``sum_i (h_i - mu_y(i)) (h_i - mu_y(i))^T / n`` (d, d) of n features about the means (k, d) of classes.

    Where there are more, n features are picked at random, always the same ones: 8,192, or 16 per dimension if that is
    more. The error of an entry is then about a hundredth of the product of its two coordinates' standard deviations.
    """
    d = features.shape[1]
    enough = max(_ENOUGH, _PER_DIMENSION * d)
    if len(features) > enough:
        picked = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:enough].to(labels.device)
        features, labels = features[picked], labels[picked]
    pooled = features.new_zeros(d, d)
    for start in range(0, len(features), _ROWS):
        within = features[start : start + _ROWS] - means[labels[start : start + _ROWS]]
        pooled.addmm_(within.T, within, alpha=1 / len(features))
    return pooled


def add_upper(total: Tensor, left: Tensor, right: Tensor, beta: float) -> None:
    """Set ``total`` to beta · total + left rightᵀ in the upper triangle (and part of the rest).

    Its transpose is what eigh and cholesky read: a lower triangle, column by column.
    """
    half = total.shape[1] // 2
    if half < 64:
        total.baddbmm_(left, right.mT, beta=beta)
        return
    total[:, :half].baddbmm_(left[:, :half], right.mT, beta=beta)
    add_upper(total[:, half:, half:], left[:, half:], right[:, half:], beta)


def evenly_spaced(count: int, most: int, device: torch.device) -> Tensor:
    """Return ``most`` evenly spaced positions below ``count`` on ``device``, or all of them.

    >>> evenly_spaced(10, 4, torch.device("cpu"))
    tensor([0, 3, 6, 9])
    """
    if count <= most:
        return torch.arange(count, device=device)
    return torch.linspace(0, count - 1, most, dtype=torch.float64).long().to(device)


def storage_dtype(values: int) -> torch.dtype:
    """Return the type of a table of so many values; whoever computes with rows of it makes them float32 first."""
    return torch.float16 if values > HALF_ABOVE else torch.float32
