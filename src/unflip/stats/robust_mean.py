"""AgnosticMean (the paper's Algorithm 1): a mean of each class that is robust to mislabeled examples.

:func:`agnostic_mean` is the readable version, line by line; with normalize='count', complement='plain' it is the
algorithm as printed. :func:`class_agnostic_means`, which MDDC calls, computes the same means up to rounding, of all
classes at once and, unless as printed, many times faster. Public functions come first; the private ones below are about
speed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf, isqrt
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unflip.errors import InputError
from unflip.stats.gaussians import NOT_FINITE, NotFiniteError, add_upper, class_indices, class_means

Normalize = Literal["sum", "count"]
Complement = Literal["weighted", "plain"]

BLOCK_VALUES = 2**17
"""Values whose medians are computed at once; they fit in the cache of a core."""
CHUNK_ROWS = 2048
"""Examples added to a covariance at once: avoids a copy of the class, and fits in the cache."""
GATHER_ROWS = 4096
"""Examples gathered at once."""
GROUP_VALUES = 2**19
"""Padded values in a group of classes, the work of one thread: about 2 MB."""
SORT_LENGTH = 512
"""numpy sorts rows up to this length in vector registers, in a fifth of the time per value of longer rows."""


def agnostic_mean(
    features: Tensor, *, damping: float = 1.0, normalize: Normalize = "sum", complement: Complement = "weighted"
) -> Tensor:
    """Return the robust mean μ̂ (d,) of the features S = {h_1, ..., h_n} of one class (n, d), in double precision.

    Outlier damping (lines 4 to 6), with the coordinate-wise median m and a constant C:

        s² = C Tr(Σ_S),   ω_i = exp(-|h_i - m|² / s²)                             (eq. 4)
        μ_ω = Σ ω_i h_i / Z,   Σ_ω = Σ ω_i (h_i - μ_ω)(h_i - μ_ω)ᵀ / Z            (eq. 5)

    Projection (lines 7 to 9): V is spanned by the ⌊d/2⌋ leading eigenvectors of Σ_ω, and W by the others. On W, the
    estimate is μ_ω. On V, where outliers affect the mean, it is computed by repeating the two steps. In one dimension,
    it is the median.

    By default, this function departs from the printed algorithm in two ways, which docs/results/robust-mean.md
    compares. First, Z is Σ ω_i, because the division by n in the paper makes the estimate depend on the origin. Second,
    the mean on W is weighted. Damping moves the direction of far outliers into W, where they would count in full in a
    plain mean.

    Args:
        features: (n, d).
        damping: C; larger values damp less.
        normalize: whether Z is the ``"sum"`` of the weights or, as printed, the ``"count"`` of examples.
        complement: whether the mean on W is μ_ω (``"weighted"``) or, as printed, the mean of S (``"plain"``).
    """
    S = torch.as_tensor(features).detach().double()
    if S.ndim != 2 or not len(S):
        raise InputError(f"features have shape {tuple(S.shape)}; expected (n, d)")
    if not bool(S.isfinite().all()):
        raise NotFiniteError(NOT_FINITE)
    n, d = S.shape
    m = S.sort(dim=0).values[[(n - 1) // 2, n // 2]].mean(0)
    if d == 1:
        return m  # line 2
    s2 = damping * S.var(0, correction=0).sum()  # line 4
    omega = torch.exp(-(S - m).square().sum(1) / torch.where(s2 > 0, s2, 1))  # line 5
    Z = omega.sum() if normalize == "sum" else n
    mu = omega @ S / Z
    Sigma = (S - mu).T @ (omega[:, None] * (S - mu)) / Z  # line 6
    vectors = torch.linalg.eigh(Sigma).eigenvectors  # ascending
    W, V = vectors[:, : d - d // 2], vectors[:, d - d // 2 :]  # line 7
    mu_V = agnostic_mean(S @ V, damping=damping, normalize=normalize, complement=complement)  # line 8
    mu_W = (mu if complement == "weighted" else S.mean(0)) @ W
    mean: Tensor = V @ mu_V + W @ mu_W  # line 9
    return mean


def class_agnostic_means(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    damping: float = 1.0,
    normalize: Normalize = "sum",
    complement: Complement = "weighted",
) -> Tensor:
    """Return :func:`agnostic_mean` of every class, (num_classes, d); NaN for a class without examples.

    Where Σ_ω is singular, directions without variance count as part of W, however many there are. The printed forms are
    computed by :func:`agnostic_mean` itself.

    Everything runs on the CPU: most of the time goes into eigenvectors of matrices with a few hundred rows, at which
    accelerators are slow; so the means do not depend on the device. As many classes run in parallel as torch has
    threads, one thread per class: eigenvectors gain little from a second thread, and the result does not depend on the
    number of threads.

    Args:
        features: (n, d), on any device. Half precision is widened class by class; float64 is kept.
        labels: (n,) integers below ``num_classes``.
        num_classes: number of classes, which is that of rows returned.
        damping: see :func:`agnostic_mean`, as for the others.
        normalize: Z.
        complement: the mean on W.
    """
    by_class = class_indices(labels.to(features.device), num_classes)
    groups = _group_classes([len(indices) for indices in by_class], features.shape[1])

    wide = torch.promote_types(features.dtype, torch.float32)
    printed: dict[str, Any] = {"damping": damping, "normalize": normalize, "complement": complement}

    def estimate(classes: Sequence[int]) -> Tensor:
        if (normalize, complement) != ("sum", "weighted"):
            return torch.stack([agnostic_mean(features[by_class[c]].cpu(), **printed) for c in classes]).to(wide)
        x, padding = _gather(features, [by_class[c] for c in classes])
        return _robust_mean(x, x.shape[1], padding, damping)[:, 0]

    means = torch.full((num_classes, features.shape[1]), torch.nan, dtype=wide)
    for classes, estimates in zip(groups, _one_thread_each(estimate, groups), strict=True):
        means[classes] = estimates
    return means.to(features.device)


def robust_in_leading(features: Tensor, labels: Tensor, num_classes: int, n_components: int, **form: Any) -> Tensor:
    """Return class means (k, d) that are robust in the leading directions and plain in all others.

    ``mean(h) + B (robust(z) - mean(z))`` with ``z = B^T h``, the columns of B being the leading eigenvectors of the
    covariance of features about their class means, pooled over classes. Outliers cause most of the variance, so they
    lie along these directions. AgnosticMean computes such directions in each class and at every halving; one set for
    all classes costs far less.

    Args:
        features: (n, d).
        labels: (n,) integers below ``num_classes``.
        num_classes: k.
        n_components: the number of columns of B.
        form: see :func:`class_agnostic_means`, which estimates the robust means.
    """
    features = features.float()
    plain = class_means(features, labels, num_classes)
    pooled = pooled_covariance(features, labels, plain).cpu()
    basis: Tensor = torch.linalg.eigh(pooled).eigenvectors[:, -n_components:].to(features.device)
    robust = class_agnostic_means(features @ basis, labels, num_classes, **form)  # NaN for a class without examples
    return plain + (robust - plain @ basis).nan_to_num(0.0) @ basis.T


def pooled_covariance(features: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """Return ``sum_i (h_i - μ_y(i)) (h_i - μ_y(i))ᵀ / n`` (d, d) of n features about the means (k, d) of classes.

    Of more than 8,192 features, or 16 per dimension if that is more, a random subset of that size is used, always the
    same. The error of an entry is then about a hundredth of the product of its coordinates' standard deviations.
    """
    d = features.shape[1]
    limit = max(8192, 16 * d)
    if len(features) > limit:
        chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:limit].to(labels.device)
        features, labels = features[chosen], labels[chosen]
    pooled = features.new_zeros(d, d)
    for rows, classes in zip(features.split(GATHER_ROWS), labels.split(GATHER_ROWS), strict=True):
        within = rows - means[classes]
        pooled.addmm_(within.T, within, alpha=1 / len(features))
    return pooled


def damping_weights(features: Tensor, *, damping: float = 1.0, normalize: Normalize = "sum") -> Tensor:
    """Return ω_i / Z (eq. 4) of the features (n, d) of one class: (n,), small for outliers."""
    if not len(features):
        return torch.zeros(0, device=features.device)
    x, padding = _gather(features, [torch.arange(len(features), device=features.device)])
    _, mean, squares = _center(x, padding)
    return _damping(mean, squares, padding, damping, normalize)[0, 0].to(features.device)


# The fast path of class_agnostic_means and damping_weights.


class _Padding:
    """Masks and weights for a batch of classes, each padded to the length of the longest.

    ``fence`` (b, 1, `divisible_length` of n) is added before medians are computed: it is 0 for examples, and moves the
    padding to -∞ and +∞ in turns, such that the (upper) median of every class is in the middle of the padded row.
    """

    def __init__(self, counts: Sequence[int], dtype: torch.dtype) -> None:
        size = torch.tensor(counts)[:, None, None]
        longest = int(size.max())
        position = torch.arange(divisible_length(longest))
        self.fence = torch.where(position < size, 0.0, torch.where(position % 2 == 1, -inf, inf)).to(dtype)
        member = position[:longest] < size  # (b, 1, n), like those below
        self.beyond = torch.where(member, 0.0, inf).to(dtype)
        self.uniform = member.to(dtype) / size  # weights of the plain mean
        self.even = size % 2 == 0  # (b, 1, 1)


def _robust_mean(x: Tensor, dim: int, padding: _Padding, damping: float) -> Tensor:
    """Return the robust means (b, 1, r) of x (b, r, n), which is overwritten.

    ``dim`` is the dimension at this level of the recursion; r is less if only r directions vary.
    """
    medians, mean, squares = _center(x, padding)
    if dim == 1:
        return medians  # line 2
    weights = _damping(mean, squares, padding, damping)  # lines 4 and 5
    center = torch.bmm(weights, x.mT)
    x -= center.mT
    top, lift = _leading_half(x, dim // 2, weights)  # lines 6 and 7
    offset = lift(_robust_mean(top, dim // 2, padding, damping))  # line 8
    return medians + center + offset  # line 9; x is centered on μ_ω, whose part in W is thus zero


def _center(x: Tensor, padding: _Padding) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract the median of every coordinate in place.

    Return the medians (b, 1, r), and of what remains the means (b, 1, r) and squared lengths (b, 1, n).
    """
    b, _, n = x.shape
    squares = x.new_zeros(b, 1, n)
    medians, means = [], []
    for block in x.split(max(1, BLOCK_VALUES // (b * n)), dim=1):
        scratch = block.new_empty(*block.shape[:2], padding.fence.shape[2])
        scratch[:, :, n:] = padding.fence[:, :, n:]
        torch.add(block, padding.fence[:, :, :n], out=scratch[:, :, :n])
        lower, median = (
            torch.from_numpy(middle).view(*block.shape[:2], 1) for middle in middle_two(scratch.flatten(0, 1).numpy())
        )
        median = torch.where(padding.even, (median + lower) / 2, median)
        block -= median
        squares += (block * block).sum(1, keepdim=True)
        medians.append(median.mT)
        means.append(torch.bmm(padding.uniform, block.mT))
    if not bool(torch.isfinite(squares).all()):
        raise NotFiniteError(NOT_FINITE)
    return torch.cat(medians, dim=2), torch.cat(means, dim=2), squares


def _damping(mean: Tensor, squares: Tensor, padding: _Padding, damping: float, normalize: Normalize = "sum") -> Tensor:
    """Return the weights ω_i / Z (b, 1, n), given mean (b, 1, r) and squared lengths about the median."""
    trace = (squares * padding.uniform).sum(2, keepdim=True) - (mean * mean).sum(2, keepdim=True)
    scale = damping * torch.where(trace > 0, trace, 1)  # s²; identical examples get equal weights
    squares = squares + padding.beyond
    if normalize == "count":
        return torch.exp(-squares / scale) * padding.uniform
    weights = torch.exp((squares.amin(2, keepdim=True) - squares) / scale)  # the minimum cancels; it avoids underflow
    return weights / weights.sum(2, keepdim=True)


def _leading_half(x: Tensor, size: int, weights: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return x (b, r, n) in coordinates (b, k, n) of V, and a function that maps rows (b, 1, k) of these back.

    V is spanned by at most k = ``size`` leading eigenvectors of x diag(ω) xᵀ.

    Eigenvectors whose eigenvalue is a rounding error are replaced by zero: nothing varies along them.
    """
    if x.shape[2] < x.shape[1]:
        return _leading_half_by_example(x, size, weights)
    covariance = x.new_empty(len(x), x.shape[1], x.shape[1])
    for start in range(0, x.shape[2], CHUNK_ROWS):
        part = x[:, :, start : start + CHUNK_ROWS]
        add_upper(covariance, part * weights[:, :, start : start + CHUNK_ROWS], part, beta=min(start, 1))
    values, vectors = torch.linalg.eigh(covariance.mT)
    basis = vectors[:, :, -size:] * _varying(values[:, None, -size:])
    return basis.mT @ x, lambda z: z @ basis.mT


def _leading_half_by_example(x: Tensor, size: int, weights: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the same for n < r, from the smaller matrix G = YᵀY with Y = x diag(√ω).

    If G u = λ u, then v = Y u / √λ is an eigenvector of Y Yᵀ = x diag(ω) xᵀ with the same eigenvalue, and
    vᵀ x = √λ uᵀ diag(1/√ω); where weights are so small that this would magnify rounding errors, vᵀ x is
    computed directly.
    """
    root = weights.sqrt()
    y = x * root
    gram = x.new_empty(len(x), x.shape[2], x.shape[2])
    add_upper(gram, y.mT, y.mT, beta=0)
    values, vectors = torch.linalg.eigh(gram.mT)
    values, vectors = values[:, None, -size:], vectors[:, :, -size:]
    lengths = torch.where(_varying(values), values, 0).sqrt()
    shrink = torch.where(lengths > 0, 1 / lengths, 0)

    def lift(z: Tensor) -> Tensor:
        return torch.matmul((shrink * z) @ vectors.mT, y.mT)

    member = weights > 0
    if bool((torch.where(member, weights, 1) > 1e-3 * weights.amax(2, keepdim=True)).all()):
        return lengths.mT * vectors.mT * torch.where(member, 1 / root, 0), lift
    return torch.mul(shrink, x.mT @ y @ vectors).mT.contiguous(), lift


def _varying(values: Tensor) -> Tensor:
    """Return which of the ascending eigenvalues (b, 1, k) are larger than rounding errors."""
    return values > 16 * torch.finfo(values.dtype).eps * values[:, :, -1:]


def divisible_length(n: int) -> int:
    """Return the smallest length of at least ``n`` that can be cut into equal parts of at most 512."""
    parts = -(-n // SORT_LENGTH)
    return parts * -(-n // parts)


def middle_two(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the values at positions m // 2 - 1 and m // 2 of each row (r, m) when sorted; reorders the rows.

    m is a `divisible_length`. Parts of a row are sorted separately, and the middle of each is merged: four standard
    deviations of the rank that the row's median has in a random part. The middle of the merged values is the row's,
    unless a part was cut on the wrong side of it. Such rows, as those that were sorted before, are sorted whole.
    numpy's ``partition`` gives the same values, 10 to 40 times slower.
    """
    m = rows.shape[1]
    parts = -(-m // SORT_LENGTH)
    cut = rows.reshape(len(rows), parts, -1)
    cut.sort(axis=2)
    if parts == 1:
        return rows[:, m // 2 - 1], rows[:, m // 2]
    half, reach = cut.shape[2] // 2, 2 * isqrt(cut.shape[2]) + 2
    middle = cut[:, :, half - reach : half + reach]
    low, high = middle[:, :, 0].max(axis=1), middle[:, :, -1].min(axis=1)
    middle = np.sort(middle.reshape(len(rows), -1), axis=1)
    position = m // 2 - parts * (half - reach)
    lower, upper = middle[:, position - 1], middle[:, position]
    failed = ~((low <= lower) & (upper <= high))
    if failed.any():
        whole = np.sort(rows[failed], axis=1)
        lower[failed], upper[failed] = whole[:, m // 2 - 1], whole[:, m // 2]
    return lower, upper


def _gather(features: Tensor, by_class: Sequence[Tensor]) -> tuple[Tensor, _Padding]:
    """Return the classes' features, (b, d, longest), on the CPU, and their padding."""
    counts = [len(indices) for indices in by_class]
    wide = torch.promote_types(features.dtype, torch.float32)
    x = torch.empty(len(by_class), features.shape[1], max(counts), dtype=wide)
    for row, indices in zip(x, by_class, strict=True):
        row[:, len(indices) :] = 0
        for part, chosen in zip(row.split(GATHER_ROWS, dim=1), indices.split(GATHER_ROWS), strict=False):
            # widened first: torch is slow at widening and transposing in one step
            part[:, : len(chosen)] = features.detach().index_select(0, chosen).to("cpu", x.dtype).T
    return x, _Padding(counts, x.dtype)


def _group_classes(counts: Sequence[int], dim: int) -> list[list[int]]:
    """Group small classes of about the same size; the largest come first."""
    groups: list[list[int]] = []
    for c in sorted((c for c, count in enumerate(counts) if count), key=lambda c: -counts[c]):
        longest = counts[groups[-1][0]] if groups else inf
        if counts[c] >= 0.9 * longest and (len(groups[-1]) + 1) * longest * dim <= GROUP_VALUES:
            groups[-1].append(c)
        else:
            groups.append([c])
    return groups


def _one_thread_each(work: Callable[[Sequence[int]], Tensor], groups: Sequence[Sequence[int]]) -> list[Tensor]:
    """Map ``work`` over groups, in as many threads as torch has, each of which uses one; then restore the setting.

    torch keeps the number of threads per thread, and gives new threads the last value set: a worker's setting does not
    affect the caller, and the value for new threads is restored at the end.
    """
    threads = torch.get_num_threads()
    if threads == 1:  # starting a thread takes longer than a small group
        return [work(group) for group in groups]
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, groups))
    finally:
        torch.set_num_threads(threads)
