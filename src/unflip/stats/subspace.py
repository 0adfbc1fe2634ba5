"""The span of the leading eigenvectors of weighted covariances, for a batch of classes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 2048  # examples added to a covariance at once: avoids a copy of the class, and fits in the cache


@dataclass(frozen=True)
class Subspace:
    """The span V: the data in its coordinates, and functions that map rows (b, 1, r) to them and back."""

    data: Tensor  # (b, k, n)
    project: Callable[[Tensor], Tensor]
    lift: Callable[[Tensor], Tensor]


def leading_half(x: Tensor, keep: int, weights: Tensor) -> Subspace:
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
    return Subspace(basis.mT @ x, lambda z: z @ basis, lambda z: z @ basis.mT)


def _leading_half_by_example(x: Tensor, keep: int, weights: Tensor) -> Subspace:
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
        return Subspace(lengths.mT * vectors.mT * torch.where(member, 1 / root, 0), project, lift)
    return Subspace(project(x.mT).mT.contiguous(), project, lift)


def _varying(values: Tensor) -> Tensor:
    """Return which of the ascending eigenvalues (b, 1, k) are larger than rounding errors."""
    return values > 16 * torch.finfo(values.dtype).eps * values[:, :, -1:]


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
