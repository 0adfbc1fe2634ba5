"""Stacking: how much each view of the examples counts, chosen by the likelihood of labels that no view has seen."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unflip.stats.discriminant import FLOOR
from unflip.stats.rows import evenly_spaced

_MOST = 4000  # examples that weights are fitted to
_RIDGE = 1e-3  # pulls weights towards 1/2
_TOP = 4.0  # the largest weight
_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_FINER = (-0.06, -0.03, 0.03, 0.06)
_HIGHEST = 0.95  # share of uniform noise
_ROUNDS = 60


class Stacked(NamedTuple):
    """Weights (v,) of the views, and the share of labels that are drawn from all classes alike."""

    weights: Tensor
    uniform_noise_rate: float


def stack(views: Sequence[Tensor], labels: Tensor, uniform_noise_rate: float | None = None) -> Stacked:
    """Find the weights w and the share e of uniform noise under which the labels y are likeliest.

    The likelihood of a label is ``(1 - e) softmax(sum_v w_v log p_v)_y + e / k``: a log-linear pool of the views
    (Genest and Zidek 1986), whose weights may add up to less than 1 where all are too sure of themselves, and labels
    that mean nothing. No view may have learned the label that it is asked about, or it would get all the weight for its
    memory.

    For each e of a grid, or the one given, Newton's method finds w between 0 and 4, pulled towards 1/2 by a small
    ridge; then the best pair is taken. Up to 4,000 evenly spaced examples are used.

    Args:
        views: class log-probabilities (n, k) of each view; lower ones than -30 count as -30.
        labels: (n,).
        uniform_noise_rate: e, if it is known.
    """
    count, num_classes = views[0].shape
    rows = evenly_spaced(count, _MOST, labels.device)
    logs = torch.stack([view[rows].float().clamp(min=FLOOR) for view in views]).cpu()  # (v, m, k)
    fit = _Fit(logs, labels[rows].cpu(), num_classes)
    weights = torch.full((len(views),), 0.5)
    if uniform_noise_rate is not None:
        return Stacked(fit.at(uniform_noise_rate, weights)[1], uniform_noise_rate)
    found = []
    for share in _GRID:
        score, weights = fit.at(share, weights)
        found.append((score, -share, weights))
    _, best, weights = max(found, key=lambda entry: entry[:2])
    for step in _FINER:
        if 0 <= step - best < _HIGHEST:
            score, near = fit.at(step - best, weights)
            found.append((score, best - step, near))
    _, best, weights = max(found, key=lambda entry: entry[:2])
    return Stacked(weights, -best)


class _Fit:
    """The likelihood of labels, for weights and a share of uniform noise."""

    def __init__(self, logs: Tensor, labels: Tensor, num_classes: int) -> None:
        self.logs, self.labels, self.num_classes = logs, labels, num_classes
        self.own = logs.gather(2, labels.expand(len(logs), -1)[..., None])[..., 0]  # (v, m)

    def at(self, share: float, weights: Tensor) -> tuple[float, Tensor]:
        """Return the best penalized mean log-likelihood for a share, and its weights; Newton's steps, damped by 2/3.

        With p the pool, u the probability that a label is informative and m_v = E_p[log p_v], the gradient is
        ``E[u (m_v - log p_v,y)]`` and the (expected) Hessian ``E[u Cov_p(log p_a, log p_b)]``.
        """
        views, identity = len(weights), torch.eye(len(weights))
        for _ in range(_ROUNDS):
            pool = torch.einsum("v,vmk->mk", weights, self.logs).softmax(1)
            trusted = self._trusted(pool, share)
            mean = (self.logs * pool).sum(2)
            centered = self.logs - mean[..., None]
            weighted = pool * trusted[:, None]
            hessian = (
                torch.stack([(centered[a] * weighted * centered).sum((1, 2)) for a in range(views)]) / len(self.labels)
                + _RIDGE * identity
            )
            gradient = ((mean - self.own) * trusted).mean(1) + _RIDGE * (weights - 0.5)
            better = (weights - torch.linalg.solve(hessian, gradient)).clamp(0, _TOP)
            moved = float((better - weights).abs().max())
            weights = (weights + 2 * better) / 3
            if moved < 0.001:
                break
        likelihood = self._likelihood(torch.einsum("v,vmk->mk", weights, self.logs).softmax(1), share)
        penalty = _RIDGE / 2 * float((weights - 0.5).square().sum())
        return float(likelihood.log().mean()) - penalty, weights

    def _likelihood(self, pool: Tensor, share: float) -> Tensor:
        return (1 - share) * pool.gather(1, self.labels[:, None])[:, 0] + share / self.num_classes + 1e-30

    def _trusted(self, pool: Tensor, share: float) -> Tensor:
        own = (1 - share) * pool.gather(1, self.labels[:, None])[:, 0]
        return own / (own + share / self.num_classes + 1e-30)


def pool(views: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the log-linear pool ``log softmax(sum_v w_v log p_v)`` (m, k) of views (m, k)."""
    total = torch.zeros_like(views[0], dtype=torch.float32)
    for view, weight in zip(views, weights.tolist(), strict=True):
        total.add_(view.float().clamp(min=FLOOR), alpha=weight)
    return total.log_softmax(1)
