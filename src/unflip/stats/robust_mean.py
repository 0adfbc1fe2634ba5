"""AgnosticMean (the paper's Algorithm 1): the mean of each class, although some of its members belong elsewhere.

:func:`agnostic_mean` is the algorithm as it is printed, to be read. :func:`class_agnostic_means` gives the same means
for all classes at once, many times faster, and is what calibration uses; everything below it is about speed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf, isqrt
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unflip.errors import InputError
from unflip.stats.rows import NOT_FINITE, NotFiniteError, add_upper, class_indices, class_means, pooled_covariance

Normalize = Literal["sum", "count"]
Complement = Literal["weighted", "plain"]

_BLOCK = 2**17  # numbers whose medians are taken at once: they fit in the cache of a core
_CHUNK = 2048  # examples added to a covariance at once: avoids a copy of the class, and fits in the cache
_GATHERED = 4096  # examples gathered at once
_GROUP = 2**19  # padded numbers in a group of classes: the work of one thread, about 2 MB
_PART = 512  # numbers; numpy sorts so few in vector registers, at a fifth of the time per number of long rows


def agnostic_mean(
    features: Tensor, *, damping: float = 1.0, normalize: Normalize = "sum", complement: Complement = "weighted"
) -> Tensor:
    """Return the robust mean μ̂ (d,) of the members S = {h_1, ..., h_n} of one class (n, d), in double precision.

    Outlier damping (lines 4 to 6), with the coordinate-wise median m and a constant C::

        s² = C Tr(Σ_S),   ω_i = exp(-|h_i - m|² / s²)                             (eq. 4)
        μ_ω = Σ ω_i h_i / Z,   Σ_ω = Σ ω_i (h_i - μ_ω)(h_i - μ_ω)ᵀ / Z            (eq. 5)

    Projection (lines 7 to 9): V is spanned by the ⌊d/2⌋ leading eigenvectors of Σ_ω, W by the others. On W the mean is
    that of μ_ω; on V, where outliers move it, it is found by the same two steps. In one dimension it is the median.

    Two departures from the printed algorithm, both measured in docs/agnostic-mean.md, and both can be undone. Z is
    Σ ω_i; the paper divides by n, which makes the estimate depend on where the origin is. And the mean on W is
    weighted; with a plain one far outliers, whose direction damping moves into W, count in full.

    Args:
        features: (n, d).
        damping: C; larger values damp less.
        normalize: Z is the ``"sum"`` of the weights or, as printed, the ``"count"`` of the members.
        complement: the mean on W is μ_ω (``"weighted"``) or, as printed, the mean of S (``"plain"``).
    """
    S = features.detach().double()
    n, d = S.shape
    m = S.quantile(0.5, dim=0)
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
    """Return :func:`agnostic_mean` of every class, (num_classes, d); the row of a class without members is NaN.

    Where Σ_ω is singular, directions without variance count as part of W, however many there are.

    The work is done on the CPU: most of it is eigenvectors of matrices with a few hundred rows, at which
    accelerators are slow, and so the means are the same for every device. As many classes are worked on in
    parallel as torch has threads, one thread per class: eigenvectors gain little from a second thread, and so
    the result does not depend on the number of threads.

    Args:
        features: (n, d), on any device. Half precision is widened class by class; float64 is kept.
        labels: (n,) integers below ``num_classes``.
        num_classes: the number of rows to return.
        damping: C.
        normalize: what Z is.
        complement: what the mean on W is.
    """
    if features.ndim != 2 or len(features) != len(labels):
        raise InputError(
            f"features must be (n, d) with one label each, not {tuple(features.shape)} with {len(labels)} labels"
        )
    form = _Form(damping, normalize, complement)
    features = features.detach()
    members = class_indices(labels.to(features.device), num_classes)
    groups = _group_classes([len(indices) for indices in members], features.shape[1])

    def estimate(classes: Sequence[int]) -> Tensor:
        x, padding = _gather(features, [members[c] for c in classes])
        origin = x.new_zeros(len(x), 1, x.shape[1]) if form.normalize == "count" else None
        return _robust_mean(x, x.shape[1], padding, form, origin)[:, 0]

    means = torch.full((num_classes, features.shape[1]), torch.nan, dtype=_wide(features.dtype))
    for classes, found in zip(groups, _one_thread_each(estimate, groups), strict=True):
        means[list(classes)] = found
    return means.to(features.device)


def robust_in_leading(
    features: Tensor, labels: Tensor, num_classes: int, n_components: int, estimate: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return class means (k, d) that are robust in the leading directions and plain in all others.

    ``mean(h) + B (estimate(z) - mean(z))`` with ``z = B^T h``, the columns of B being the leading eigenvectors of the
    covariance of features about their class means, pooled over classes. Outliers cause most of the variance, so they
    lie along these directions. AgnosticMean searches for such directions in each class and at every halving; one set
    for all classes costs far less.

    Args:
        features: (n, d).
        labels: (n,) integers below ``num_classes``.
        num_classes: k.
        directions: the number of columns of B.
        estimate: maps features and labels to robust class means.
    """
    features = features.float()
    plain = class_means(features, labels, num_classes)
    pooled = pooled_covariance(features, labels, plain).cpu()
    basis: Tensor = torch.linalg.eigh(pooled).eigenvectors[:, -n_components:].to(features.device)
    shift = estimate(features @ basis, labels) - plain @ basis  # NaN for a class without members
    return plain + shift.nan_to_num(0.0) @ basis.T


def damping_weights(features: Tensor, *, damping: float = 1.0, normalize: Normalize = "sum") -> Tensor:
    """Return ω_i / Z (eq. 4) of the members (n, d) of one class: (n,), small for outliers."""
    if not len(features):
        return torch.zeros(0, device=features.device)
    x, padding = _gather(features.detach(), [torch.arange(len(features), device=features.device)])
    _, mean, squares = _center(x, padding)
    return _damping(mean, squares, padding, _Form(damping, normalize, "weighted"))[0, 0].to(features.device)


class _Form(NamedTuple):
    """Which variant of the algorithm to compute."""

    damping: float
    normalize: Normalize
    complement: Complement


class _Padding:
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


def _robust_mean(x: Tensor, dim: int, padding: _Padding, form: _Form, origin: Tensor | None) -> Tensor:
    """Return the robust means (b, 1, r) of x (b, r, n), which it overwrites.

    ``dim`` is the dimension at this level of the recursion; r is less where only r directions vary. ``origin``
    (b, 1, r) is where x = 0 was in the coordinates of the features; only the printed weights depend on it.
    """
    medians, mean, squares = _center(x, padding)
    if dim == 1:
        return medians  # line 2
    weights = _damping(mean, squares, padding, form)  # lines 4 and 5
    center = torch.bmm(weights, x.mT)
    if origin is not None:
        origin = origin + medians
        center += (weights.sum(2, keepdim=True) - 1) * origin
        origin = origin + center
    x -= center.mT
    top = _leading_half(x, dim // 2, weights)  # lines 6 and 7
    origin = top.project(origin) if origin is not None else None
    found = top.lift(_robust_mean(top.data, dim // 2, padding, form, origin))  # line 8
    if form.complement == "plain":
        rest = mean - center
        found += rest - top.lift(top.project(rest))
    return medians + center + found  # line 9; x is centered on μ_ω, whose part in W is thus zero


def _center(x: Tensor, padding: _Padding) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract the median of every coordinate in place.

    Return the medians (b, 1, r), and of what remains the means (b, 1, r) and squared lengths (b, 1, n).
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


def _damping(mean: Tensor, squares: Tensor, padding: _Padding, form: _Form) -> Tensor:
    """Return the weights ω_i / Z (b, 1, n), given mean (b, 1, r) and squared lengths about the median."""
    trace = (squares * padding.uniform).sum(2, keepdim=True) - (mean * mean).sum(2, keepdim=True)
    scale = form.damping * torch.where(trace > 0, trace, 1)  # s²; identical members get equal weights
    squares = squares + padding.beyond
    if form.normalize == "count":
        return torch.exp(-squares / scale) * padding.uniform
    weights = torch.exp((squares.amin(2, keepdim=True) - squares) / scale)  # the minimum cancels; it avoids underflow
    return weights / weights.sum(2, keepdim=True)


class _Subspace(NamedTuple):
    """The span V: the data in its coordinates (b, k, n), and functions that map rows (b, 1, r) to them and back."""

    data: Tensor
    project: Callable[[Tensor], Tensor]
    lift: Callable[[Tensor], Tensor]


def _leading_half(x: Tensor, keep: int, weights: Tensor) -> _Subspace:
    """Return V, spanned by at most ``keep`` leading eigenvectors of x diag(ω) xᵀ, where x is (b, r, n).

    Eigenvectors whose eigenvalue is a rounding error are replaced by zero: nothing varies along them.
    """
    if x.shape[2] < x.shape[1]:
        return _leading_half_by_example(x, keep, weights)
    covariance = x.new_empty(len(x), x.shape[1], x.shape[1])
    for start in range(0, x.shape[2], _CHUNK):
        part = x[:, :, start : start + _CHUNK]
        add_upper(covariance, part * weights[:, :, start : start + _CHUNK], part, beta=min(start, 1))
    values, vectors = torch.linalg.eigh(covariance.mT)
    basis = vectors[:, :, -keep:] * _varying(values[:, None, -keep:])
    return _Subspace(basis.mT @ x, lambda z: z @ basis, lambda z: z @ basis.mT)


def _leading_half_by_example(x: Tensor, keep: int, weights: Tensor) -> _Subspace:
    """Return the same V for n < r, from the smaller matrix G = YᵀY with Y = x diag(√ω).

    If G u = λ u, then v = Y u / √λ is an eigenvector of Y Yᵀ = x diag(ω) xᵀ with the same eigenvalue, and
    vᵀ x = √λ uᵀ diag(1/√ω); where weights are so small that this would magnify rounding errors, vᵀ x is
    computed directly.
    """
    root = weights.sqrt()
    y = x * root
    gram = x.new_empty(len(x), x.shape[2], x.shape[2])
    add_upper(gram, y.mT, y.mT, beta=0)
    values, vectors = torch.linalg.eigh(gram.mT)
    values, vectors = values[:, None, -keep:], vectors[:, :, -keep:]
    lengths = torch.where(_varying(values), values, 0).sqrt()
    shrink = torch.where(lengths > 0, 1 / lengths, 0)

    def project(z: Tensor) -> Tensor:
        return torch.mul(shrink, z @ y @ vectors)

    def lift(z: Tensor) -> Tensor:
        return torch.matmul((shrink * z) @ vectors.mT, y.mT)

    member = weights > 0
    if bool((torch.where(member, weights, 1) > 1e-3 * weights.amax(2, keepdim=True)).all()):
        return _Subspace(lengths.mT * vectors.mT * torch.where(member, 1 / root, 0), project, lift)
    return _Subspace(project(x.mT).mT.contiguous(), project, lift)


def _varying(values: Tensor) -> Tensor:
    """Return which of the ascending eigenvalues (b, 1, k) are larger than rounding errors."""
    return values > 16 * torch.finfo(values.dtype).eps * values[:, :, -1:]


def even_length(n: int) -> int:
    """Return the least length from ``n`` on that can be cut into equal parts of at most 512."""
    parts = -(-n // _PART)
    return parts * -(-n // parts)


def middle_two(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the numbers that come at m // 2 - 1 and at m // 2 in each row (r, m) once it is sorted; it reorders them.

    m is an `even_length`. Parts of a row are sorted by themselves and the middle of each is kept, as wide as four
    standard deviations of where the row's median comes in a random part; the middle of what is kept is the row's if no
    part was cut on the wrong side of it. Rows where one was, such as those that were sorted before, are sorted whole.
    numpy's ``partition`` gives the same numbers, 10 to 40 times slower.
    """
    m = rows.shape[1]
    parts = -(-m // _PART)
    cut = rows.reshape(len(rows), parts, -1)
    cut.sort(axis=2)
    if parts == 1:
        return rows[:, m // 2 - 1], rows[:, m // 2]
    half, reach = cut.shape[2] // 2, 2 * isqrt(cut.shape[2]) + 2
    kept = cut[:, :, half - reach : half + reach]
    least, most = kept[:, :, 0].max(axis=1), kept[:, :, -1].min(axis=1)
    kept = np.sort(kept.reshape(len(rows), -1), axis=1)
    position = m // 2 - parts * (half - reach)
    lower, upper = kept[:, position - 1], kept[:, position]
    unsure = ~((least <= lower) & (upper <= most))
    if unsure.any():
        whole = np.sort(rows[unsure], axis=1)
        lower[unsure], upper[unsure] = whole[:, m // 2 - 1], whole[:, m // 2]
    return lower, upper


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type to compute in for features of type ``dtype``: float32, or float64 if they are."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _gather(features: Tensor, members: Sequence[Tensor]) -> tuple[Tensor, _Padding]:
    """Return the classes' features, (b, d, longest), on the CPU, and their padding."""
    counts = [len(indices) for indices in members]
    x = torch.empty(len(members), features.shape[1], max(counts), dtype=_wide(features.dtype))
    for row, indices in zip(x, members, strict=True):
        row[:, len(indices) :] = 0
        for part, chosen in zip(row.split(_GATHERED, dim=1), indices.split(_GATHERED), strict=False):
            # Widened first: torch is slow at widening and transposing in one step.
            part[:, : len(chosen)] = features.index_select(0, chosen).to("cpu", x.dtype).T
    return x, _Padding(counts, x.dtype)


def _group_classes(counts: Sequence[int], dim: int) -> list[tuple[int, ...]]:
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


def _one_thread_each(work: Callable[[Sequence[int]], Tensor], groups: Sequence[Sequence[int]]) -> list[Tensor]:
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
