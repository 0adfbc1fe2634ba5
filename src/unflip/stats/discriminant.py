"""Linear discriminant: class probabilities from features alone, for Gaussian classes that share one covariance."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unflip.errors import ConfigError
from unflip.stats.members import NOT_FINITE, NotFiniteError, class_means, pooled_covariance

_ROWS = 4096  # features at once; they fit in the cache
_LARGE = 1e15  # features beyond it are scaled down, since their squares may not add up to a finite number


@dataclass(frozen=True)
class Discriminant:
    """Linear discriminant analysis: class c has N(μ_c, Σ), with the same Σ for all classes, and prior n_c / n.

    Attributes:
        whiten: (d, d), the inverse L⁻¹ of Σ = L Lᵀ.
        origin: (d,), L⁻¹ μ for the mean μ of all features, from which all is measured to avoid rounding errors.
        means: (k, d), m_c = L⁻¹ (μ_c - μ); meaningless for a class without members.
        counts: (k,), n_c.
    """

    whiten: Tensor
    origin: Tensor
    means: Tensor
    counts: Tensor

    def posterior(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return P(c | h) for features (m, d) as (m, k): proportional to ``n_c exp(-|L⁻¹ (h - μ_c)|² / 2)``.

        Give ``labels`` for features that the fit used, with the labels it used; then none votes for itself: the mean of
        its own class is taken without it. Leaving h out of n members moves their mean ``n / (n - 1)`` times as far off,
        so the squared distance D of h to its own class becomes ``(n / (n - 1))² D`` and the count n - 1; Σ stays the
        same. The only member of a class is not left out.
        """
        result = features.new_empty(len(features), len(self.means), dtype=torch.float32)
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            result[rows] = self._scores(features[rows], None if labels is None else labels[rows, None]).softmax(1)
        return result

    def _scores(self, features: Tensor, own: Tensor | None) -> Tensor:
        """Return ``log n_c - D_c / 2 + |w|² / 2 = log n_c + w·m_c - |m_c|² / 2`` for w = L⁻¹ (h - μ)."""
        white = torch.addmm(-self.origin, features.detach().float(), self.whiten.T)
        squares = self.means.square().sum(1) / 2
        scores = torch.addmm(self.counts.log() - squares, white, self.means.T)  # -inf for a class without members
        if own is not None:
            half_length = white.square().sum(1, keepdim=True) / 2
            count = self.counts[own]
            others = (count - 1).clamp(min=1)
            half_distance = (half_length + count.log() - scores.gather(1, own)).clamp_(min=0)
            scores.scatter_(1, own, others.log() - (count / others).square() * half_distance + half_length)
        return scores


def fit_discriminant(features: Tensor, labels: Tensor, num_classes: int, *, shrink: float = 0.1) -> Discriminant:
    """Fit class means and the pooled covariance W of n features h_i (n, d) about them, shrunk towards a multiple of I.

    ``W = sum_i (h_i - μ_y(i)) (h_i - μ_y(i))ᵀ / n`` and ``Σ = (1 - s) W + s (tr W / d) I`` with s = ``shrink``
    (Friedman 1989, regularised discriminant analysis). Features that do not vary at all get Σ = I.
    """
    if not 0 < shrink <= 1:
        raise ConfigError(f"shrink must be above 0 and at most 1, not {shrink}")
    features = features.detach().float()
    low, high = (float(end) for end in features.aminmax()) if len(features) else (0.0, 0.0)
    unit = max(-low, high) if max(-low, high) > _LARGE else 1.0
    features = features / unit if unit > 1 else features
    counts = labels.bincount(minlength=num_classes).to(features)
    means = class_means(features, labels, num_classes)
    pooled = pooled_covariance(features, labels, means).cpu()  # accelerators are slow at factoring small matrices
    scale = float(pooled.diagonal().mean())
    if not math.isfinite(scale):
        raise NotFiniteError(NOT_FINITE)
    identity = torch.eye(len(pooled))
    lower = torch.linalg.cholesky((1 - shrink) * pooled / scale + shrink * identity) if scale > 0 else identity
    whiten = torch.linalg.solve_triangular(lower, identity, upper=False) / (math.sqrt(scale) if scale > 0 else 1)
    whiten = whiten.to(features.device)
    mean = counts @ means / len(features)
    return Discriminant(whiten / unit, whiten @ mean, (means - mean) @ whiten.T, counts)


def gaussian_votes(features: Tensor, labels: Tensor, num_classes: int) -> Callable[[Tensor], Tensor]:
    """Return a function that maps positions (c,) among the features (m, d) to class probabilities (c, k).

    They come from Gaussians fitted to the features under ``labels`` (m,): a second opinion with far fewer parameters
    than a network, which cannot memorise single wrong labels. No example votes for its own label.
    """
    fitted = fit_discriminant(features, labels, num_classes)
    return lambda rows: fitted.posterior(features[rows], labels[rows])
