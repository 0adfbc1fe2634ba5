"""Definition 1 of the paper, the binary case: noise that satisfies it, and the smallest c1 of any other noise."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class BinaryPmd:
    """Noise functions of eta(x) = P(y = 1 | x) that satisfy Definition 1 (the paper's section 2).

    rho_01 = P(noisy = 1 | y = 0, x) <= c1 * eta^(1 + c2) wherever eta <= 1/2 - t0, and
    rho_10 = P(noisy = 0 | y = 1, x) <= c1 * (1 - eta)^(1 + c2) wherever eta >= 1/2 + t0.
    Here both equal the bound there, capped at ``level``, and equal ``level`` where the noise is unrestricted.

    Attributes:
        t0: the margin, in (0, 1/2): closer than this to 1/2 the noise is unrestricted.
        c1: scale of the bound, above 0.
        c2: how much faster than linearly the bound vanishes, above 0.
        level: the noise where it is unrestricted, in (0, 1].
    """

    t0: float
    c1: float
    c2: float
    level: float = 0.5

    def rho_01(self, eta: Tensor) -> Tensor:
        """Return the probability that a label 0 becomes 1."""
        eta = eta.double()
        bounded = pmd_bound(eta, c1=self.c1, c2=self.c2).clamp(max=self.level)
        return torch.where(eta <= 0.5 - self.t0, bounded, self.level)

    def rho_10(self, eta: Tensor) -> Tensor:
        """Return the probability that a label 1 becomes 0: rho_01 with the classes exchanged."""
        return self.rho_01(1 - eta.double())

    def draw(self, clean: Tensor, eta: Tensor, generator: torch.Generator) -> Tensor:
        """Flip each clean label (0 or 1) independently with its probability; all (n,), on the CPU."""
        flip = torch.where(clean == 1, self.rho_10(eta), self.rho_01(eta))
        uniform = torch.rand(len(clean), generator=generator, dtype=torch.float64)
        return torch.where(uniform < flip, 1 - clean, clean)


def pmd_bound(minor: Tensor, *, c1: float, c2: float) -> Tensor:
    """Return c1 * minor^(1 + c2), ``minor`` being the probability of the less probable of two classes.

    That is min(eta, 1 - eta) of the binary case and (1 - margin) / 2 in terms of the margin eta_u - eta_s.
    """
    return c1 * minor ** (1 + c2)


def smallest_c1(minor: Tensor, flip: Tensor, *, t0: float, c2: float) -> float:
    """Return the smallest c1 for which ``flip`` satisfies Definition 1 on these examples, given c2 and t0.

    ``flip`` is the probability that the more probable class becomes the other, ``minor`` as in :func:`pmd_bound`;
    for PMD of types I to III and any k that is 1 - keep and (1 - margin) / 2. The bound holds where
    minor <= 1/2 - t0. The result is 0 if there is no such example, and infinity if a flip does not vanish at minor = 0.
    """
    restricted = minor <= 0.5 - t0
    flip, shape = flip[restricted].double(), pmd_bound(minor[restricted].double(), c1=1.0, c2=c2)
    ratios = torch.where(flip > 0, flip / shape, 0)
    return float(ratios.max()) if len(ratios) else 0.0
