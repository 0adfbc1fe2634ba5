"""AgnosticMean (Algorithm 1): a robust mean of each class, some of whose members belong elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

import torch
from torch import Tensor

from unflip.errors import ConfigError, InputError
from unflip.stats.medians import middle_two
from unflip.stats.members import NOT_FINITE, NotFiniteError, class_members
from unflip.stats.padded import Padding, gather, group_classes, one_thread_each, wide
from unflip.stats.subspace import leading_half

Normalise = Literal["sum", "count"]
Complement = Literal["weighted", "plain"]

_BLOCK = 2**17  # numbers whose medians are taken at once: they fit in the cache of a core


def agnostic_mean(
    features: Tensor,
    *,
    damping: float = 1.0,
    normalise: Normalise = "sum",
    complement: Complement = "weighted",
) -> Tensor:
    """Return the robust mean (d,) of one class's features (n, d); see `class_agnostic_means`."""
    labels = torch.zeros(len(features), dtype=torch.int64, device=features.device)
    return class_agnostic_means(features, labels, 1, damping=damping, normalise=normalise, complement=complement)[0]


def class_agnostic_means(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    damping: float = 1.0,
    normalise: Normalise = "sum",
    complement: Complement = "weighted",
) -> Tensor:
    """Return the robust mean of every class, (num_classes, d); the row of a class without members is NaN.

    For the members h_i of one class, S, with coordinate-wise median m (Algorithm 1 of the paper):

    1. if d = 1, the mean is the median;
    2. s² = C Tr(Σ_S), ω_i = exp(-|h_i - m|² / s²)                                       (eq. weights)
    3. μ_ω = Σ ω_i h_i / Z,  Σ_ω = Σ ω_i (h_i - μ_ω)(h_i - μ_ω)ᵀ / Z            (eq. weighted_covariance)
    4. V is spanned by the ⌊d/2⌋ leading eigenvectors of Σ_ω, W by the others; on W the mean is that of μ_ω,
       on V it is found by the same steps, whose coordinates are those eigenvectors.

    Two departures from the printed algorithm, both measured in docs/agnostic-mean.md: Z is Σ ω_i, while the
    paper divides by the number of members, which makes the estimate depend on where the origin is; and the
    mean on W is weighted, while a plain one lets far outliers, whose direction damping moves into W, count
    in full. Where Σ_ω is singular, directions without variance count as part of W, however many there are.

    Args:
        features: (n, d), on any device. Half precision is widened class by class; float64 is kept.
        labels: (n,) integers below ``num_classes``.
        num_classes: the number of rows to return.
        damping: C; larger values damp less.
        normalise: Z is the ``"sum"`` of the weights, or, as printed, the ``"count"`` of the members.
        complement: the mean on W is μ_ω (``"weighted"``) or, as printed, the mean of S (``"plain"``).

    The work is done on the CPU: most of it is eigenvectors of matrices with a few hundred rows, at which
    accelerators are slow, and so the means are the same for every device. As many classes are worked on in
    parallel as torch has threads, one thread per class: eigenvectors gain little from a second thread, and so
    the result does not depend on the number of threads.
    """
    if features.ndim != 2 or len(features) != len(labels):
        raise InputError(
            f"features must be (n, d) with one label each, not {tuple(features.shape)} with {len(labels)} labels"
        )
    form = _Form(damping, normalise, complement)
    features = features.detach()
    members = class_members(labels.to(features.device), num_classes)
    groups = group_classes([len(indices) for indices in members], features.shape[1])

    def estimate(classes: Sequence[int]) -> Tensor:
        x, padding = gather(features, [members[c] for c in classes])
        origin = x.new_zeros(len(x), 1, x.shape[1]) if form.normalise == "count" else None
        return _robust_mean(x, x.shape[1], padding, form, origin)[:, 0]

    means = torch.full((num_classes, features.shape[1]), torch.nan, dtype=wide(features.dtype))
    for classes, found in zip(groups, one_thread_each(estimate, groups), strict=True):
        means[list(classes)] = found
    return means.to(features.device)


def damping_weights(features: Tensor, *, damping: float = 1.0, normalise: Normalise = "sum") -> Tensor:
    """Return ω_i / Z (eq. weights) of the members (n, d) of one class: (n,), small for outliers."""
    form = _Form(damping, normalise, "weighted")
    if not len(features):
        return torch.zeros(0, device=features.device)
    x, padding = gather(features.detach(), [torch.arange(len(features), device=features.device)])
    _, mean, squares = _centre(x, padding)
    return _damping(mean, squares, padding, form)[0, 0].to(features.device)


@dataclass(frozen=True)
class _Form:
    """Which variant of the algorithm to compute."""

    damping: float
    normalise: Normalise
    complement: Complement

    def __post_init__(self) -> None:
        if not 0 < self.damping < inf:
            raise ConfigError(f"damping must be above 0 and finite, not {self.damping}")
        for name, allowed in (("normalise", get_args(Normalise)), ("complement", get_args(Complement))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {allowed}, not {getattr(self, name)!r}")


def _robust_mean(x: Tensor, dim: int, padding: Padding, form: _Form, origin: Tensor | None) -> Tensor:
    """Return the robust means (b, 1, r) of x (b, r, n), which it overwrites.

    ``dim`` is the dimension at this level of the recursion; r is less where only r directions vary. ``origin``
    (b, 1, r) is where x = 0 was in the coordinates of the features; only the printed weights depend on it.
    """
    medians, mean, squares = _centre(x, padding)
    if dim == 1:
        return medians  # line 2
    weights = _damping(mean, squares, padding, form)  # lines 4 and 5
    centre = torch.bmm(weights, x.mT)
    if origin is not None:
        origin = origin + medians
        centre += (weights.sum(2, keepdim=True) - 1) * origin
        origin = origin + centre
    x -= centre.mT
    top = leading_half(x, dim // 2, weights)  # lines 6 and 7
    origin = top.project(origin) if origin is not None else None
    found = top.lift(_robust_mean(top.data, dim // 2, padding, form, origin))  # line 8
    if form.complement == "plain":
        rest = mean - centre
        found += rest - top.lift(top.project(rest))
    return medians + centre + found  # line 9; x is centred on μ_ω, whose part in W is thus zero


def _centre(x: Tensor, padding: Padding) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract the median of every coordinate in place.

    Return the medians (b, 1, r), and of what is left the means (b, 1, r) and squared lengths (b, 1, n).
    """
    b, _, n = x.shape
    squares = x.new_zeros(b, 1, n)
    medians, means = [], []
    for block in x.split(max(1, _BLOCK // (b * n)), dim=1):
        scratch = block.new_empty(*block.shape[:2], padding.fence.shape[2])
        scratch[:, :, n:] = padding.fence[:, :, n:]
        torch.add(block, padding.fence[:, :, :n], out=scratch[:, :, :n])
        lower, median = (
            torch.from_numpy(middle).view(*block.shape[:2], 1) for middle in middle_two(scratch.flatten(0, 1).numpy())
        )
        if padding.any_even:
            median = torch.where(padding.even, (median + lower) / 2, median)
        block -= median
        squares += (block * block).sum(1, keepdim=True)
        medians.append(median.mT)
        means.append(torch.bmm(padding.uniform, block.mT))
    if not bool(torch.isfinite(squares).all()):
        raise NotFiniteError(NOT_FINITE)
    return torch.cat(medians, dim=2), torch.cat(means, dim=2), squares


def _damping(mean: Tensor, squares: Tensor, padding: Padding, form: _Form) -> Tensor:
    """Return the weights ω_i / Z (b, 1, n), given mean (b, 1, r) and squared lengths about the median."""
    trace = (squares * padding.uniform).sum(2, keepdim=True) - (mean * mean).sum(2, keepdim=True)
    scale = form.damping * torch.where(trace > 0, trace, 1)  # s²; identical members get equal weights
    squares = squares + padding.beyond
    if form.normalise == "count":
        return torch.exp(-squares / scale) * padding.uniform
    weights = torch.exp((squares.amin(2, keepdim=True) - squares) / scale)  # the minimum cancels; it avoids underflow
    return weights / weights.sum(2, keepdim=True)
