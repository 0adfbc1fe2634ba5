"""Stacking: weights of out-of-sample predictions (views), and the uniform noise rate, by maximum likelihood."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unflip.stats.discriminant import MIN_LOG_PROB, evenly_spaced

MAX_ROWS = 4000
"""Examples that weights are fitted to."""
_RIDGE = 1e-3  # pulls weights towards 1/2
_MAX_WEIGHT = 4.0
_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_FINER = (-0.06, -0.03, 0.03, 0.06)
_MAX_RATE = 0.95
_ROUNDS = 60


class Stacked(NamedTuple):
    """Weights (v,) of the views, and the fraction of labels drawn uniformly from all classes."""

    weights: Tensor
    uniform_noise_rate: float


def stack(views: Sequence[Tensor], labels: Tensor, uniform_noise_rate: float | None = None) -> Stacked:
    """Find the weights w and the uniform noise rate e that maximize the likelihood of the labels y.

    The likelihood of a label is ``(1 - e) softmax(sum_v w_v log p_v)_y + e / k``: a log-linear pool of the views
    (Genest and Zidek 1986) and uniform noise. Weights may sum to less than 1, if all views are overconfident. Views
    must be out-of-sample: one that has memorized the labels would get all the weight.

    For each e of a grid, or the one given, Newton's method finds w between 0 and 4, with a small ridge towards 1/2;
    then the best pair is taken. Up to 4,000 evenly spaced examples are used.

    Args:
        views: class log-probabilities (n, k) of each view; clipped at -30.
        labels: (n,).
        uniform_noise_rate: e, if known.
    """
    count, num_classes = views[0].shape
    rows = evenly_spaced(count, MAX_ROWS, labels.device)
    logs = torch.stack([view[rows].float().clamp(min=MIN_LOG_PROB) for view in views]).cpu()  # (v, m, k)
    fit = _Fit(logs, labels[rows].cpu(), num_classes)
    weights = torch.full((len(views),), 0.5)
    if uniform_noise_rate is not None:
        return Stacked(fit.at(uniform_noise_rate, weights)[1], uniform_noise_rate)
    results = []
    for rate in _GRID:
        score, weights = fit.at(rate, weights)
        results.append((score, -rate, weights))
    _, best, weights = max(results, key=lambda entry: entry[:2])
    for step in _FINER:
        if 0 <= step - best < _MAX_RATE:
            score, refined = fit.at(step - best, weights)
            results.append((score, best - step, refined))
    _, best, weights = max(results, key=lambda entry: entry[:2])
    return Stacked(weights, -best)


class _Fit:
    """The likelihood of labels, as a function of weights and uniform noise rate."""

    def __init__(self, logs: Tensor, labels: Tensor, num_classes: int) -> None:
        self.logs, self.labels, self.num_classes = logs, labels, num_classes
        self.own = logs.gather(2, labels.expand(len(logs), -1)[..., None])[..., 0]  # (v, m)

    def at(self, rate: float, weights: Tensor) -> tuple[float, Tensor]:
        """Return the best penalized mean log-likelihood at a noise rate, and its weights, by damped Newton steps.

        With p the pool, u the probability that a label is informative and m_v = E_p[log p_v], the gradient is
        ``E[u (m_v - log p_v,y)]`` and the (expected) Hessian ``E[u Cov_p(log p_a, log p_b)]``.
        """
        views, identity = len(weights), torch.eye(len(weights))
        for _ in range(_ROUNDS):
            pool = torch.einsum("v,vmk->mk", weights, self.logs).softmax(1)
            informative = self._informative(pool, rate)
            mean = (self.logs * pool).sum(2)
            centered = self.logs - mean[..., None]
            weighted = pool * informative[:, None]
            hessian = (
                torch.stack([(centered[a] * weighted * centered).sum((1, 2)) for a in range(views)]) / len(self.labels)
                + _RIDGE * identity
            )
            gradient = ((mean - self.own) * informative).mean(1) + _RIDGE * (weights - 0.5)
            optimum = (weights - torch.linalg.solve(hessian, gradient)).clamp(0, _MAX_WEIGHT)
            change = float((optimum - weights).abs().max())
            weights = (weights + 2 * optimum) / 3
            if change < 0.001:
                break
        likelihood = self._likelihood(torch.einsum("v,vmk->mk", weights, self.logs).softmax(1), rate)
        penalty = _RIDGE / 2 * float((weights - 0.5).square().sum())
        return float(likelihood.log().mean()) - penalty, weights

    def _likelihood(self, pool: Tensor, rate: float) -> Tensor:
        return (1 - rate) * pool.gather(1, self.labels[:, None])[:, 0] + rate / self.num_classes + 1e-30

    def _informative(self, pool: Tensor, rate: float) -> Tensor:
        own = (1 - rate) * pool.gather(1, self.labels[:, None])[:, 0]
        return own / (own + rate / self.num_classes + 1e-30)


def pool(views: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the log-linear pool ``log softmax(sum_v w_v log p_v)`` (m, k) of views (m, k)."""
    total = torch.zeros_like(views[0], dtype=torch.float32)
    for view, weight in zip(views, weights.tolist(), strict=True):
        total.add_(view.float().clamp(min=MIN_LOG_PROB), alpha=weight)
    return total.log_softmax(1)
