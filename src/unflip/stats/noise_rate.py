"""How many labels are wrong, from out-of-sample predictions and the noisy labels alone.

A label that contradicts a *confident* prediction is wrong, or the prediction is. Errors of a weak model become rare as
its confidence rises; wrong labels do not. So the rate at which labels contradict predictions, as a function of
confidence, levels off at the noise rate: :func:`lapse_rates` fits that level. Noise that follows the features is more
frequent where predictions are uncertain, where it looks like ambiguity: :func:`feature_dependence` is the evidence of
such noise, and :func:`noise_rates` combines both.
"""

from typing import NamedTuple

import torch
from torch import Tensor

QUANTILES = 15
"""Number of equally likely values by which an uncertain noise rate is represented."""
_RATES = (0.0001, 0.0003, 0.001, 0.002, *(i / 250 for i in range(1, 25)), *(i / 50 for i in range(5, 48)))
_LOG_SLOPES = torch.linspace(-3.0, 1.2, 22, dtype=torch.float64)
_SHIFTS = torch.linspace(-2.0, 3.0, 21, dtype=torch.float64)
_SLOPE_STD, _SHIFT_MEAN, _SHIFT_STD = 0.5, 0.3, 1.0  # weak prior: predictions are roughly calibrated
_BINS, _MIN_PER_BIN = 100, 3
_MIN_MARGIN, _MAX_MARGIN = -6.0, 14.0
_CONFIDENT = 0.25  # fraction of the examples that counts as confidently predicted
_EXCESS = (0.015, 0.04)  # wrong labels among these, beyond uniform noise: no evidence below, full evidence above
_BY_CLASS = (0.1, 0.25)  # how much better classes than examples foretell wrong labels: full evidence below, none above
_BY_EXAMPLE = 0.2  # how much more excess it takes if examples foretell them better: then predictions may be wrong
_MIN_PER_CLASS = 2.0  # contradicted labels that this takes
_DISPUTED = (0.7, 1.0)  # fraction of all disputed labels that is wrong if noise follows the features


class Confident(NamedTuple):
    """The most confidently predicted quarter of the examples."""

    contradicted: float
    """Fraction of labels that differ from the predicted class."""
    std: float
    """Its standard error."""
    expected: float
    """What the predictions' own confidence expects: the mean of ``1 - p``."""
    by_class: float
    """Of the labels that differ, the fraction that the predicted class alone foretells, less the fraction that are the
    example's second most likely class."""
    per_class: float
    """Labels that differ, per class."""


def confident_part(top2: Tensor, probs: Tensor, labels: Tensor, num_classes: int) -> Confident:
    """Describe the labels of the most confidently predicted quarter.

    Args:
        top2: the two most likely classes (n, 2).
        probs: probability of the first (n,), by networks that were trained on other examples; not calibrated to the
            labels.
        labels: (n,).
        num_classes: k.
    """
    size = max(1, int(_CONFIDENT * len(labels)))
    rows = probs.topk(min(size, len(labels))).indices
    wrong = rows[top2[rows, 0] != labels[rows]]
    fraction = len(wrong) / max(1, len(rows))
    predicted, given = top2[wrong, 0], labels[wrong]
    pairs, position, counts = (predicted * num_classes + given).unique(return_inverse=True, return_counts=True)
    largest = counts.new_zeros(num_classes).scatter_reduce_(0, pairs // num_classes, counts, "amax")
    foretold = (counts[position] == largest[predicted]) & (counts[position] > 1)
    by_example = top2[wrong, 1] == given
    return Confident(
        contradicted=fraction,
        std=(max(fraction * (1 - fraction), 0.25 / max(1, len(rows))) / max(1, len(rows))) ** 0.5,
        expected=float((1 - probs[rows].double()).mean()) if len(rows) else 0.0,
        by_class=float((foretold.float() - by_example.float()).mean()) if len(wrong) else 0.0,
        per_class=len(wrong) / num_classes,
    )


def feature_dependence(part: Confident, uniform: float) -> float:
    """Return the evidence that noise follows the features, from 0 (none) to 1.

    It takes wrong labels in the confident part, beyond what the predictions' own confidence and uniform noise (a
    fraction ``uniform`` of all labels) explain, that are not simply a function of the class. If the second most likely
    class foretells them too well, some of them are right and the predictions wrong: then it takes more of them.
    """
    excess = part.contradicted - part.std - part.expected - uniform + _BY_EXAMPLE * min(0.0, part.by_class)
    if part.per_class < _MIN_PER_CLASS:
        return 0.0
    return _ramp(excess, *_EXCESS) * (1 - _ramp(part.by_class, *_BY_CLASS))


def _ramp(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))


def noise_rates(lapses: Tensor, part: Confident, uniform: float, disputed: float) -> Tensor:
    """Return the noise rate as equally likely values (q,), in increasing order.

    The lapse rate, but at most what the confident part allows: the labels contradicted there, less half of what the
    predictions expect, or the uniform noise. With evidence f of feature-dependent noise it moves a fraction f of the
    way to 0.7 to 1 times the fraction of disputed labels.

    Args:
        lapses: :func:`lapse_rates`.
        part: :func:`confident_part`.
        uniform: fraction of labels that uniform noise made wrong.
        disputed: expected fraction of wrong labels if every doubtful label counted.
    """
    steps = torch.linspace(-1.8, 1.8, len(lapses), dtype=torch.float64)
    most = max(part.contradicted - part.expected / 2, uniform) + part.std * steps
    rates = lapses.minimum(most.clamp(min=0.0))
    of_disputed = disputed * torch.linspace(*_DISPUTED, len(lapses), dtype=torch.float64)
    return rates + feature_dependence(part, uniform) * (of_disputed - rates).clamp(min=0.0)


def lapse_rates(margins: Tensor, contradicted: Tensor) -> Tensor:
    """Return the lapse rate of labels, as equally likely values (15,) in increasing order.

    Model: a label differs from the predicted class with probability ``l + (1 - l) sigmoid(-(a m + b))``, where m is the
    prediction's log-odds: a psychometric function with the lapse rate l (Wichmann and Hill 2001). Its posterior is
    computed on a grid of l, a and b, with a weak prior around calibrated predictions and ``1 / sqrt(l)`` for l.

    Args:
        margins: log-odds of the predicted class (n,), clipped to [-6, 14].
        contradicted: whether the label differs (n,).
    """
    if not len(margins):
        return torch.zeros(QUANTILES, dtype=torch.float64)
    order = margins.argsort().cpu()
    margins = margins.cpu().double().clamp(_MIN_MARGIN, _MAX_MARGIN)[order]
    count = max(1, min(_BINS, len(order) // _MIN_PER_BIN))
    edges = torch.linspace(0, len(order), count + 1).long()
    sizes = edges.diff().double()

    def binned(values: Tensor) -> Tensor:
        sums: Tensor = torch.cat([values.new_zeros(1), values.cumsum(0)])[edges].diff()
        return sums

    centers, wrong = binned(margins) / sizes, binned(contradicted.cpu()[order].double())
    slopes, rates = _LOG_SLOPES.exp(), torch.tensor(_RATES, dtype=torch.float64)
    ambiguous = torch.sigmoid(-(slopes[:, None, None] * centers + _SHIFTS[:, None]))  # (a, b, bins)
    prior = -0.5 * (_LOG_SLOPES[:, None] / _SLOPE_STD).square() - 0.5 * ((_SHIFTS - _SHIFT_MEAN) / _SHIFT_STD).square()
    log_weights = torch.stack([_log_evidence(rate + (1 - rate) * ambiguous, wrong, sizes, prior) for rate in rates])
    widths = torch.gradient(rates)[0]
    weights = (log_weights + (widths / rates.sqrt()).log()).softmax(0)
    levels = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    return rates[torch.searchsorted(weights.cumsum(0), levels).clamp(max=len(rates) - 1)]


def _log_evidence(probs: Tensor, wrong: Tensor, sizes: Tensor, prior: Tensor) -> Tensor:
    """Return the log-likelihood of the counts in all bins, summed over the grid (a, b) with its log-prior."""
    log_likelihood = (wrong * probs.log() + (sizes - wrong) * (-probs).log1p()).sum(-1)
    return (log_likelihood + prior).flatten().logsumexp(0)
