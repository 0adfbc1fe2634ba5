"""Left out: how far Gaussian classes are from examples that were taken out of them, one group of examples at a time.

Taking a group g of examples h_j with shares t_jc out of :func:`unflip.stats.discriminant.fit_discriminant` leaves
``r_c = n_c - sum_j t_jc`` members and the mean ``μ'_c = (n_c μ_c - sum_j t_jc h_j) / r_c``. The scatter of a class
about its own mean loses ``sum_j t_jc (h_j - μ_c) (h_j - μ_c)ᵀ + r_c (μ'_c - μ_c) (μ'_c - μ_c)ᵀ`` (Chan, Golub and
LeVeque 1983, the other way round). With u_j = h_j - Σ_c t_jc μ_c in place of h_j - μ_c, which is the same for an
example of one class, all classes together lose

    U (I + Σ_c t_c t_cᵀ / r_c) Uᵀ        U = (u_1, ..., u_m),  t_c = (t_1c, ..., t_mc)

which is exact for examples of one class each; for others it leaves out what the class means alone add. Means and
features are whitened, Σ = I, so that the new Σ' is I - a U (...) Uᵀ with a = (1 - s) / n: the trace in Σ stays. Members
that the covariance was not estimated from have u = 0. A class that the group leaves without members has no mean any
more, so its term 1 / r_c is left out.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

NOBODY = 1e-3
"""A class with fewer members than this has none."""
MOST_LOST = 0.99
"""Share of the covariance in one direction that examples may take with them."""


def distances_without(
    white: Tensor, shares: Tensor, in_covariance: Tensor, means: Tensor, counts: Tensor, lost: float
) -> Tensor:
    """Return the squared distances (b, m, k) of b groups of m examples from the classes without their own group.

    By the formula of Woodbury (1950), with the factor F Fᵀ = U (...) Uᵀ and the eigenvectors V and values λ of FᵀF,

        D_c = |v|² + a Σ_e (V_eᵀ Fᵀ v)² / (1 - a λ_e)        v = h - μ'_c

    which takes (m, m) products of the members instead of their means (k, d).

    Args:
        white: whitened features (b, m, d).
        shares: t (b, m, k).
        in_covariance: which of them the covariance was estimated from (b, m).
        means: whitened (k, d).
        counts: n_c (k,).
        lost: a.
    """
    white, shares, means, counts = white.double(), shares.double(), means.double(), counts.double()
    others = (counts - shares.sum(1, keepdim=True)).clamp(min=NOBODY)  # r_c (b, 1, k)
    along = white @ means.T
    sums = white @ white.mT @ shares  # h_j · sum_l t_lc h_l
    to_means = (counts * along - sums) / others
    norms = counts.square() * means.square().sum(1) - 2 * counts * (shares * along).sum(1) + (shares * sums).sum(1)
    squares = white.square().sum(2, keepdim=True) - 2 * to_means + norms[:, None] / others.square()  # |v|²

    own = (white - shares @ means) * in_covariance[..., None]
    within = shares * in_covariance[..., None]
    weights = torch.eye(white.shape[1]).to(white) + within / others.where(others > NOBODY, torch.inf) @ within.mT
    factor = torch.linalg.cholesky(weights).mT @ own  # Fᵀ (b, m, d)
    values, vectors = torch.linalg.eigh(factor @ factor.mT)
    taken = (MOST_LOST / values.clamp(min=1e-30)).clamp(max=lost)
    stretch = (taken / (1 - taken * values)).sqrt()[..., None] * (vectors.mT @ factor)
    here = stretch @ white.mT  # (b, e, m)
    there = (counts * (stretch @ means.T) - here @ shares) / others
    gained = here.square().sum(1)[..., None] + there.square().sum(1, keepdim=True) - 2 * here.mT @ there
    found: Tensor = (squares + gained).clamp(min=0).float()
    return found


def refitted_without(
    blocks: Iterable[tuple[Tensor, Tensor, Tensor]], means: Tensor, counts: Tensor, lost: float
) -> tuple[Tensor, Tensor]:
    """Return the means (k, d) without one large group, and what whitens once more (d, d), by sums over its members.

    The blocks hold what :func:`distances_without` takes, of some members each: (m, d), (m, k) and (m,).
    """
    means, counts = means.double(), counts.double()
    total, scatter = torch.zeros_like(counts), means.new_zeros(means.shape[1], means.shape[1])
    sums, moved = torch.zeros_like(means), torch.zeros_like(means)
    for white, shares, in_covariance in blocks:
        white, shares = white.double(), shares.double()
        own = (white - shares @ means) * in_covariance[:, None]
        total += shares.sum(0)
        sums += shares.T @ white
        moved += shares.T @ own
        scatter += own.T @ own
    others = (counts - total).clamp(min=NOBODY)[:, None]
    values, vectors = torch.linalg.eigh(scatter + (moved / others.where(others > NOBODY, torch.inf)).T @ moved)
    kept = (1 - lost * values).clamp(min=1 - MOST_LOST)
    return (counts[:, None] * means - sums) / others, vectors / kept.sqrt()
