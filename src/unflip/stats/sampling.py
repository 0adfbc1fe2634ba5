"""A random sample of labels to review, and the calibration of log-odds to its decisions."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unflip.stats.odds import PlattScaling, calibrate

Array = np.ndarray[Any, Any]
MIN_DECISIONS = 20
"""Fewer decisions than these tell less than the estimate without any."""
_STRATA = 10
_MIN_STD = 0.05  # of a right label, however sure: qualities may be wrong
_RATES = 20  # equally likely noise rates: from the first to the last is a 95 % interval
_LOG_SLOPES, _SLOPE_STD = np.linspace(-1.5, 1.2, 13), 0.5
_SHIFTS, _SHIFT_STD = np.linspace(-9.0, 9.0, 73), 3.0
_MAX_LOG_ODDS = 8.0  # no review tells more certain labels apart
_ROWS = 500  # labels that a noise rate is computed from


class Sample(NamedTuple):
    """An order of labels of which every beginning is a stratified random sample."""

    order: Array
    """All labels that have a quality, by row (m,)."""
    strata: Array
    """The stratum of every label (n,), -1 without one."""


def draw_sample(log_odds: Array, classes: Array, seed: int) -> Sample:
    """Order labels at random, so that each beginning has equally many of every stratum.

    Ten strata are formed along the log-odds, with equal sums of the standard deviation ``sqrt(q (1 - q))``, at least
    0.05: uncertain labels are in small strata and come early. Equally many of each is then the optimal (Neyman)
    allocation (equal aggregate stratification: Särndal, Swensson and Wretman 1992, section 12.4). Within a stratum,
    classes have their share of every beginning: of c labels of a class, the j-th has the place ``(j + u) / c`` with u
    uniform.

    Args:
        log_odds: that labels are right (n,); NaN excludes a label.
        classes: (n,).
        seed: of the random numbers.
    """
    random, strata = np.random.default_rng(seed), np.full(len(log_odds), -1)
    rows = np.flatnonzero(~np.isnan(log_odds))
    ascending = rows[np.argsort(log_odds[rows], kind="stable")]
    stds = np.maximum(_std(log_odds[ascending]), _MIN_STD)
    middles = np.cumsum(stds) - stds / 2
    strata[ascending] = np.floor(_STRATA * middles / max(stds.sum(), _MIN_STD))
    rows = random.permutation(rows)
    cells = strata[rows] * (classes.max(initial=0) + 1) + classes[rows]
    by_cell = np.argsort(cells, kind="stable")  # at random within a cell
    rows, cells = rows[by_cell], cells[by_cell]
    sizes = np.searchsorted(cells, cells, side="right") - np.searchsorted(cells, cells)
    places = (_turns(cells) + random.random(len(rows))) / sizes
    rows = rows[np.lexsort((places, strata[rows]))]
    return Sample(rows[np.lexsort((random.permutation(_STRATA)[strata[rows]], _turns(strata[rows])))], strata)


def _std(log_odds: Array) -> Array:
    """Return ``sqrt(q (1 - q))``, the standard deviation of whether a label is right."""
    return 0.5 / np.cosh(np.clip(log_odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS) / 2)


def _turns(groups: Array) -> Array:
    """Return the position of each element within its group, given sorted groups (m,)."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def inclusion_weights(sample: Sample, decided: Array, skipped: Array) -> Array:
    """Return how many labels each decision stands for (n,), 0 for labels that are not in the sample.

    In each stratum the sample ends before the first label that is neither decided nor skipped. So decisions made in
    another order count only as far as the sample would have reached them. A stratum of N labels of which d are decided
    gives each the weight N / d.

    Args:
        sample: :func:`draw_sample`.
        decided: labels with a decision (n,).
        skipped: labels that reviewers could not decide (n,).
    """
    weights = np.zeros(len(sample.strata))
    for stratum in range(_STRATA):
        rows = sample.order[sample.strata[sample.order] == stratum]
        reached = rows[: np.argmin(np.append((decided | skipped)[rows], False))]
        reached = reached[decided[reached]]
        weights[reached] = len(rows) / max(1, len(reached))
    return weights


def fit_review(log_odds: Array, sampled: Array, wrong: Array, weights: Array) -> tuple[float, Array]:
    """Fit slope and noise rate to a reviewed sample.

    Model: a label with calibrated log-odds s is right with probability ``sigmoid(a s + b)``, with the weak prior
    ``log a ~ N(0, 0.5²), b ~ N(0, 3²)`` around the calibration so far. The posterior is computed on a grid, from the
    weighted likelihood of the decisions (pseudo-likelihood: Binder 1983). Weights are multiplied by
    ``sum(w v) / sum(w² v)``, where ``v = q (1 - q)`` is the variance of a decision: with equal v they sum to the
    effective sample size of Kish (1965), and under optimal allocation to more.

    Args:
        log_odds: of the labels that were not reviewed (n,), without NaN.
        sampled: log-odds of the given labels of the sample (m,).
        wrong: whether these are wrong (m,).
        weights: how many labels each stands for (m,).

    Returns:
        The posterior mean of a (by its logarithm), and equally likely noise rates (20,) of the labels that were not
        reviewed, in increasing order; from the first to the last is a 95 % interval.
    """
    slopes, sampled = np.exp(_LOG_SLOPES), np.clip(sampled, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
    variances = np.maximum(_std(sampled), _MIN_STD) ** 2
    weights = weights * (weights @ variances) / (np.square(weights) @ variances)
    log_posterior = -np.square(_LOG_SLOPES / _SLOPE_STD)[:, None] / 2 - np.square(_SHIFTS / _SHIFT_STD) / 2
    for shift, column in zip(_SHIFTS, log_posterior.T, strict=True):
        moved = slopes[:, None] * sampled + shift
        column -= np.logaddexp(0, np.where(wrong, moved, -moved)) @ weights
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    if not len(log_odds):
        return float(np.exp(posterior.sum(1) @ _LOG_SLOPES)), np.zeros(_RATES)
    places = np.linspace(0, len(log_odds) - 1, min(len(log_odds), _ROWS)).round().astype(np.int64)
    some = np.clip(np.sort(log_odds)[places], -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
    moved = torch.from_numpy(slopes[:, None] * some)
    probs = [torch.sigmoid(-moved - shift) for shift in _SHIFTS]
    means, variances = (
        np.stack([of(part).mean(1).numpy() for part in probs], 1).ravel() for of in (torch.clone, lambda p: p * (1 - p))
    )
    # three points of equal first moments stand for the number of wrong labels at a given noise rate
    spread = np.sqrt(3 * variances / len(log_odds))
    rates = np.concatenate([means, np.maximum(means - spread, 0), np.minimum(means + spread, 1)])
    chances = np.concatenate([share * posterior.ravel() for share in (2 / 3, 1 / 6, 1 / 6)])
    order = np.argsort(rates)
    below = np.cumsum(chances[order]) - chances[order] / 2
    levels = (np.arange(_RATES) + 0.5) / _RATES
    return float(np.exp(posterior.sum(1) @ _LOG_SLOPES)), np.interp(levels, below, rates[order])


def calibrate_to_review(
    scaling: PlattScaling, odds: Tensor, sampled: Tensor, wrong: Tensor, weights: Tensor
) -> PlattScaling:
    """Calibrate log-odds to a reviewed sample; with fewer than 20 decisions ``scaling`` is returned.

    Args:
        scaling: the calibration without the review.
        odds: log-odds of the labels that were not reviewed (n,), before calibration; NaN without a score.
        sampled: the same of the given labels of the sample (m,).
        wrong: whether these are wrong (m,).
        weights: how many labels each stands for (m,).
    """
    known = ~sampled.isnan()
    if int(known.sum()) < MIN_DECISIONS:
        return scaling
    base = scaling.apply(odds[~odds.isnan()]), scaling.apply(sampled[known]), wrong[known], weights[known]
    slope, rates = fit_review(*(part.cpu().numpy() for part in base))
    return calibrate(odds, scaling.slope * slope, torch.from_numpy(rates))
