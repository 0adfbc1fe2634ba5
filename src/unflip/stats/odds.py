"""How likely labels are right: views are pooled by fitted weights (stacking), log-odds calibrated by Platt scaling."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unflip.stats.discriminant import MIN_LOG_PROB, evenly_spaced

MAX_ROWS = 4000
"""Examples that weights are fitted to."""
_RIDGE = 1e-3  # pulls weights towards 1/2
_MAX_WEIGHT = 4.0
_GRID = (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_FINER = (1 / 3, 2 / 3)  # of the way to the rates of the grid on both sides of the best
_MAX_RATE = 0.95
_ROUNDS = 60
_TARGET_STD = 3.0  # standard deviation of calibrated log-odds of informative labels
_MAX_SLOPE = 1.5
_SHIFT = 0.25  # if every doubtful label counts
_MAX_LOG_ODDS = 30.0
_MAX_SHIFT = 100.0
_BISECTIONS = 60
_SHIFT_ROWS = 50_000  # that shifts are fitted to


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
    position = _GRID.index(-best)
    for other in (_GRID[max(0, position - 1)], (*_GRID, _MAX_RATE)[position + 1]):
        for step in _FINER:
            rate = _GRID[position] + step * (other - _GRID[position])
            score, refined = fit.at(rate, weights)
            results.append((score, -rate, refined))
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
        identity = torch.eye(len(weights))
        for _ in range(_ROUNDS):
            pool, own, likelihood = self._likelihood(weights, rate)
            informative = own / likelihood
            mean = (self.logs * pool).sum(2)
            centered = self.logs - mean[..., None]
            weighted = pool * informative[:, None]
            products = torch.stack([(view * weighted * centered).sum((1, 2)) for view in centered])
            hessian = products / len(self.labels) + _RIDGE * identity
            gradient = ((mean - self.own) * informative).mean(1) + _RIDGE * (weights - 0.5)
            optimum = (weights - torch.linalg.solve(hessian, gradient)).clamp(0, _MAX_WEIGHT)
            change = float((optimum - weights).abs().max())
            weights = (weights + 2 * optimum) / 3
            if change < 0.001:
                break
        _, _, likelihood = self._likelihood(weights, rate)
        penalty = _RIDGE / 2 * float((weights - 0.5).square().sum())
        return float(likelihood.log().mean()) - penalty, weights

    def _likelihood(self, weights: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pool p (m, k), the likelihood of each label as an informative one (m,), and in all (m,)."""
        pool = torch.einsum("v,vmk->mk", weights, self.logs).softmax(1)
        own = (1 - rate) * pool.gather(1, self.labels[:, None])[:, 0]
        return pool, own, own + rate / self.num_classes + 1e-30


def pool(views: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the log-linear pool ``log softmax(sum_v w_v log p_v)`` (m, k) of views (m, k)."""
    total = torch.zeros_like(views[0], dtype=torch.float32)
    for view, weight in zip(views, weights.tolist(), strict=True):
        total.add_(view.float().clamp(min=MIN_LOG_PROB), alpha=weight)
    return total.log_softmax(1)


class PlattScaling(NamedTuple):
    """Increasing functions that map log-odds to calibrated log-odds (Platt 1999): one slope, equally likely shifts.

    Each shift belongs to one value of an uncertain noise rate. Quality is the mean over them, so that its mean is the
    mean noise rate, and a label counts as wrong only if it does under most of the likely rates.
    """

    slope: float
    shifts: Tensor

    def apply(self, odds: Tensor) -> Tensor:
        """Return calibrated log-odds (n,) in double precision, so that distinct values stay distinct."""
        shifted = odds.double()[:, None] * self.slope + self.shifts.to(odds.device)
        return logsigmoid(shifted).logsumexp(1) - logsigmoid(-shifted).logsumexp(1)

    def wrong(self, odds: Tensor) -> Tensor:
        """Return the expected number of wrong labels (q,) under each shift; labels without a score do not count."""
        odds = odds[~odds.isnan()].double() * self.slope
        return torch.stack([torch.sigmoid(-odds - float(shift)).sum() for shift in self.shifts]).cpu()


def log_odds(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return ``log p_y - log sum_{c != y} p_c`` (n,) of log-probabilities (n, k), which need not be normalized."""
    own = log_probs.gather(1, labels[:, None])
    others = log_probs.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return own[:, 0] - others


def calibrate(odds: Tensor, slope: float, rates: Tensor) -> PlattScaling:
    """Find the shifts after which the mean of ``1 - q`` is each of ``rates`` (q,), at least half a label; by bisection.

    Up to 50,000 evenly spaced labels are used.

    Args:
        odds: log-odds (n,) that labels are right, NaN for labels without a score.
        slope: :func:`fit_slope`.
        rates: equally likely noise rates.
    """
    odds = odds[~odds.isnan()]
    if not len(odds):
        return PlattScaling(slope, torch.zeros(1, dtype=torch.float64))
    odds = (
        odds[evenly_spaced(len(odds), _SHIFT_ROWS, odds.device)].double().clamp(-_MAX_LOG_ODDS, _MAX_LOG_ODDS) * slope
    )
    rates = rates.double().clamp(min=0.5 / len(odds)).to(odds.device)
    distinct, position = rates.unique(return_inverse=True)
    low, high = torch.full_like(distinct, -_MAX_SHIFT), torch.full_like(distinct, _MAX_SHIFT)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_many = torch.sigmoid(-odds - middle[:, None]).mean(1) > distinct
        low, high = low.where(~too_many, middle), high.where(too_many, middle)
    return PlattScaling(slope, high[position].cpu())


def fit_slope(odds: Tensor, informative: Tensor) -> float:
    """Return the slope, at most 1.5, after which log-odds (n,) of informative labels have the standard deviation 3.

    Out-of-sample scores rank labels well, but noisy labels do not determine the scale of their log-odds: ambiguous
    features and ambiguous labels cannot be told apart. The constant was chosen on data with known true labels.
    """
    known = ~odds.isnan()
    odds, weight = odds[known].double().clamp(-_MAX_LOG_ODDS, _MAX_LOG_ODDS), informative[known].double()
    weight = weight / weight.sum().clamp(min=1e-30)
    mean = (weight * odds).sum()
    std = float((weight * (odds - mean).square()).sum().sqrt())
    return _TARGET_STD / max(std, _TARGET_STD / _MAX_SLOPE)


def disputed_fraction(odds: Tensor, slope: float) -> float:
    """Return the fraction of wrong labels if every doubtful label counted: the mean of ``1 - q`` at a shift of 1/4."""
    odds = odds[~odds.isnan()].double()
    return float(torch.sigmoid(-slope * odds - _SHIFT).mean()) if len(odds) else 0.0
