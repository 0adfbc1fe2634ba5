"""Odds: how likely labels are right, as log-odds; and from what views say to a probability that one can count on."""

from typing import NamedTuple

import torch
from torch import Tensor

_SPREAD = 3.0  # standard deviation that log-odds of informative labels are given
_STEEPEST = 1.5  # the most by which they are multiplied
_SHIFT = 0.25  # what speaks for any label beforehand
_CONTRADICTED = 0.35  # share of contradicted labels from which on all doubt is believed
_LARGE = 30.0  # log-odds beyond it are as good as certain
_MOST = 100.0  # of a shift
_HALVINGS = 60


class PlattScaling(NamedTuple):
    """An increasing line from log-odds that views give to calibrated ones."""

    slope: float
    shift: float

    def apply(self, odds: Tensor) -> Tensor:
        """Return calibrated log-odds (n,) in double precision, so that different ones stay different."""
        return odds.double() * self.slope + self.shift


def log_odds(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return ``log p_y - log sum_{c != y} p_c`` (n,) of log-probabilities (n, k), which need not be normalized."""
    own = log_probs.gather(1, labels[:, None])
    others = log_probs.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return own[:, 0] - others


def calibrate(odds: Tensor, share: Tensor, *, explained: float, wrong: float) -> PlattScaling:
    """Find the line after which of labels with quality q about a share q is right, by means of noisy labels alone.

    The order of the labels is what views know. The scale of their log-odds s and where these should lie can be read
    from noisy labels only in part: it looks the same whether features or labels are ambiguous. So they are set.

    - Slope: log-odds of informative labels get the standard deviation 3, but are multiplied by 1.5 at most.
    - Shift: ``b = 1/4``, unless few labels are contradicted. Let D be the mean of ``1 - q`` at that b. What noise that
      depends on classes alone explains, a share x of labels, is believed. A share of labels r that is contradicted is
      what features of any real data may cause, so of the other doubt only ``(r / 0.35)²`` is believed, at most all:
      b is raised until the mean of ``1 - q`` is ``x + (D - x) (r / 0.35)²``.

    The four constants were chosen on data whose true labels were known: docs/audit.md.

    Args:
        odds: s (n,), NaN where nothing can be said.
        share: how likely each label is informative (n,).
        explained: x, see :func:`unflip.methods.unflip.posterior.class_conditional_noise`.
        wrong: r, the share of informative labels that views contradict.
    """
    known = ~odds.isnan()
    odds, share = odds[known].double().clamp(-_LARGE, _LARGE), share[known].double()
    weight = share / share.sum().clamp(min=1e-30)
    mean = (weight * odds).sum()
    spread = float((weight * (odds - mean).square()).sum().sqrt())
    slope = _SPREAD / max(spread, _SPREAD / _STEEPEST)
    believed = min(1.0, (wrong / _CONTRADICTED) ** 2)
    if believed == 1 or not len(odds):
        return PlattScaling(slope, _SHIFT)
    doubt = float(torch.sigmoid(-slope * odds - _SHIFT).mean())
    expected = explained + believed * (doubt - explained)
    return PlattScaling(slope, _raised(slope * odds, max(expected, 0.5 / len(odds))))


def _raised(odds: Tensor, expected: float) -> float:
    """Return the shift, at least 1/4, after which the mean of ``1 - q`` is at most ``expected``; by bisection."""
    low, high = _SHIFT, _MOST
    if float(torch.sigmoid(-odds - low).mean()) <= expected:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(torch.sigmoid(-odds - middle).mean()) > expected:
            low = middle
        else:
            high = middle
    return high
