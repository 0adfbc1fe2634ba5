"""Log-odds that labels are right, and their calibration by Platt scaling, without clean labels."""

from typing import NamedTuple

import torch
from torch import Tensor

_TARGET_STD = 3.0  # standard deviation of calibrated log-odds of informative labels
_MAX_SLOPE = 1.5
_SHIFT = 0.25
_FULL_DISAGREEMENT = 0.35  # fraction of contradicted labels from which on the shift is not raised
_MAX_LOG_ODDS = 30.0
_MAX_SHIFT = 100.0
_BISECTIONS = 60


class PlattScaling(NamedTuple):
    """An increasing line that maps log-odds to calibrated log-odds (Platt 1999)."""

    slope: float
    shift: float

    def apply(self, odds: Tensor) -> Tensor:
        """Return calibrated log-odds (n,) in double precision, so that distinct values stay distinct."""
        return odds.double() * self.slope + self.shift


def log_odds(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return ``log p_y - log sum_{c != y} p_c`` (n,) of log-probabilities (n, k), which need not be normalized."""
    own = log_probs.gather(1, labels[:, None])
    others = log_probs.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return own[:, 0] - others


def calibrate(odds: Tensor, informative: Tensor, *, explained: float, wrong: float) -> PlattScaling:
    """Fit the line after which a fraction q of the labels with quality q is right, from noisy labels alone.

    Out-of-sample scores rank labels well, but noisy labels determine scale and offset of the log-odds s only in part:
    ambiguous features and ambiguous labels cannot be told apart. So both are set by rule.

    - Slope: log-odds of informative labels get the standard deviation 3; the slope is at most 1.5.
    - Shift: ``b = 1/4``, unless few labels are contradicted. Let D be the mean of ``1 - q`` at that b. The fraction x
      that class-conditional noise explains is taken as wrong. Of the rest, since ambiguous features of clean data
      contradict a fraction r of the labels, too, only a part ``(r / 0.35)²`` counts, at most all of it: b is raised
      until the mean of ``1 - q`` is ``x + (D - x) (r / 0.35)²``.

    The constants were chosen on data with known true labels: docs/audit.md.

    Args:
        odds: s (n,), NaN for labels without a score.
        informative: probability that each label is informative (n,).
        explained: x, see :func:`unflip.methods.unflip.posterior.class_conditional_noise`.
        wrong: r, the fraction of informative labels that the most likely class contradicts.
    """
    known = ~odds.isnan()
    odds = odds[known].double().clamp(-_MAX_LOG_ODDS, _MAX_LOG_ODDS)
    weight = informative[known].double()
    weight = weight / weight.sum().clamp(min=1e-30)
    mean = (weight * odds).sum()
    std = float((weight * (odds - mean).square()).sum().sqrt())
    slope = _TARGET_STD / max(std, _TARGET_STD / _MAX_SLOPE)
    counted = min(1.0, (wrong / _FULL_DISAGREEMENT) ** 2)
    if counted == 1 or not len(odds):
        return PlattScaling(slope, _SHIFT)
    rate = float(torch.sigmoid(-slope * odds - _SHIFT).mean())
    expected = explained + counted * (rate - explained)
    return PlattScaling(slope, _raise_shift(slope * odds, max(expected, 0.5 / len(odds))))


def _raise_shift(odds: Tensor, expected: float) -> float:
    """Return the shift, at least 1/4, after which the mean of ``1 - q`` is at most ``expected``; by bisection."""
    low, high = _SHIFT, _MAX_SHIFT
    if float(torch.sigmoid(-odds - low).mean()) <= expected:
        return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if float(torch.sigmoid(-odds - middle).mean()) > expected:
            low = middle
        else:
            high = middle
    return high
