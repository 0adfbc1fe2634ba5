"""How many labels are wrong, from out-of-sample predictions and the noisy labels alone.

A label that contradicts a *confident* prediction is wrong, or the prediction is. Errors of a weak model become rare as
its confidence rises; wrong labels do not. So the rate at which labels contradict predictions, as a function of
confidence, levels off at the noise rate: :func:`lapse_rates` fits that level. Confident errors of a weak model raise
it, too. But such an error is what the example suggests, and uniform or class-conditional noise is not:
:func:`confident_part` tells them apart. Noise that follows the features is more frequent where predictions are
uncertain, where it looks like ambiguity: lapses that nothing else explains are evidence of it
(:func:`feature_dependence`). :func:`noise_rates` combines all three.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

QUANTILES = 31
"""Number of equally likely values by which an uncertain noise rate is represented."""
_RATES = (0.0001, 0.0003, 0.001, 0.002, *(i / 250 for i in range(1, 25)), *(i / 50 for i in range(5, 48)))
_LOG_SLOPES = torch.linspace(-3.0, 1.2, 22, dtype=torch.float64)
_SHIFTS = torch.linspace(-2.0, 3.0, 21, dtype=torch.float64)
_SLOPE_STD, _SHIFT_MEAN, _SHIFT_STD = 0.5, 0.3, 1.0  # weak prior: predictions are roughly calibrated
_HIGH_IS_RARE = 4.0  # exponent of the prior of the lapse rate, whose mean is 9 %
_BINS, _MIN_PER_BIN = 100, 3
_MIN_MARGIN, _MAX_MARGIN = -6.0, 14.0
_CONFIDENT, _MOST_CONFIDENT = 0.25, 0.01  # fractions of the examples that count as (most) confidently predicted
_ROUNDS = 100
_PSEUDOCOUNT = 0.5  # labels of each kind that are added to those observed
_PURITY = (0.65, 0.8)  # of labels explained by the class: not, and surely, class-conditional noise
_UNEXPLAINED = (0.0021, 0.0027)  # product of three signs: no evidence below, full evidence above
_SMALL_LAPSE = 0.01
_MIN_PER_CLASS = 4.0  # contradicted labels that evidence takes
_INACCURACY = (0.8, 1.3)  # noise rate, relative to its estimate without evidence
_DISPUTED = (0.8, 1.2)  # wrong labels, relative to disputed ones, if noise follows the features
_MAX_RATE = 0.95


class Confident(NamedTuple):
    """The most confidently predicted quarter of the examples."""

    contradicted: float
    """Fraction of labels that differ from the predicted class."""
    std: float
    """Its standard error."""
    expected: float
    """What the predictions' own confidence expects: the mean of ``1 - p``."""
    uniform: float
    """Of the labels that differ, the fraction that looks drawn uniformly from all other classes."""
    by_class: float
    """The fraction that the predicted class alone explains."""
    purity: float
    """Of these, the fraction that are the most frequent label of their predicted class."""
    per_class: float
    """Labels that differ, per class."""
    noise: float
    """Fraction of all labels that uniform and class-conditional noise may have made wrong."""
    floor: float = 0.0
    """``1 - p`` of an example that only 1 % of all are predicted more confidently than."""


def confident_part(top: Tensor, top_probs: Tensor, label_probs: Tensor, labels: Tensor, num_classes: int) -> Confident:
    """Describe the labels of the most confidently predicted quarter.

    A label that differs from the predicted class c is uniform noise, class-conditional noise, or neither: the
    prediction is wrong, or noise follows the features. In the last case the label is what the example itself suggests.
    So labels have the likelihood ``u / (k - 1) + m M[c, y] + (1 - u - m) p_y / (1 - p_c)``, where M are the relative
    frequencies among the *other* labels that differ from c. u and m are found by expectation maximization (Dempster,
    Laird and Rubin 1977). Two classes cannot be told apart this way: then all is uniform.

    Noise may be confined to a few classes, which are then predicted with less confidence than others. So the fraction
    of uniform and class-conditional noise is found in the most confident quarter of each predicted class, too, and the
    larger one counts.

    Args:
        top: the most likely class c (n,), by networks that were trained on other examples.
        top_probs: its probability p_c (n,), not calibrated to the labels.
        label_probs: the probability p_y of each label (n,).
        labels: y (n,).
        num_classes: k.
    """
    top, top_probs, label_probs, labels = (part.cpu() for part in (top, top_probs, label_probs, labels))
    order = top_probs.argsort(descending=True, stable=True)
    by_class = order[top[order].argsort(stable=True)]  # by predicted class, then confidence
    sizes = top.bincount(minlength=num_classes)
    rank = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[top[by_class]]
    of_all = _describe(order[: max(1, int(_CONFIDENT * len(order)))], top, top_probs, label_probs, labels, num_classes)
    of_each = by_class[rank < (_CONFIDENT * sizes).ceil()[top[by_class]]]
    of_each_class = _describe(of_each, top, top_probs, label_probs, labels, num_classes)
    floor = float(1 - top_probs[order[int(_MOST_CONFIDENT * len(order))]]) if len(order) else 0.0
    return of_all._replace(noise=max(of_all.noise, of_each_class.noise), floor=floor)


def _describe(
    rows: Tensor, top: Tensor, top_probs: Tensor, label_probs: Tensor, labels: Tensor, num_classes: int
) -> Confident:
    """Describe the labels of some examples; see :func:`confident_part`."""
    wrong = rows[top[rows] != labels[rows]]
    fraction = len(wrong) / max(1, len(rows))
    uniform, by_class, purity = _explain(
        top[wrong] * num_classes + labels[wrong],
        (label_probs[wrong] / (1 - top_probs[wrong]).clamp(min=1e-6)).clamp(max=1.0).double(),
        num_classes,
    )
    return Confident(
        contradicted=fraction,
        std=(max(fraction * (1 - fraction), 0.25 / max(1, len(rows))) / max(1, len(rows))) ** 0.5,
        expected=float((1 - top_probs[rows].double()).mean()) if len(rows) else 0.0,
        uniform=uniform,
        by_class=by_class,
        purity=purity,
        per_class=len(wrong) / num_classes,
        noise=fraction * (uniform + by_class),
    )


def _explain(pairs: Tensor, by_example: Tensor, num_classes: int) -> tuple[float, float, float]:
    """Return u, m and the purity, from pairs ``c k + y`` (w,) and likelihoods of the labels given the example (w,)."""
    if num_classes == 2 or not len(pairs):
        return 1.0, 0.0, 0.0
    distinct, position, counts = pairs.unique(return_inverse=True, return_counts=True)
    classes = distinct // num_classes
    per_class = counts.new_zeros(num_classes).index_add_(0, classes, counts)[classes]
    others = num_classes - 1
    frequencies = (counts - 1 + 1 / others).double() / per_class  # without the label itself, plus one spread evenly
    likelihoods = torch.stack([torch.full_like(by_example, 1 / others), frequencies[position], by_example], 1)
    shares = likelihoods.new_full((3,), 1 / 3)
    for _ in range(_ROUNDS):
        memberships = likelihoods * shares
        memberships /= memberships.sum(1, keepdim=True)
        shares = (memberships.sum(0) + _PSEUDOCOUNT) / (len(pairs) + 3 * _PSEUDOCOUNT)
    explained = memberships.new_zeros(len(distinct)).index_add_(0, position, memberships[:, 1])
    largest = explained.new_zeros(num_classes).scatter_reduce_(0, classes, explained, "amax")
    return float(shares[0]), float(shares[1]), float(largest.sum() / explained.sum())


def feature_dependence(pooled: Tensor, networks: Tensor, part: Confident, uniform: float) -> float:
    """Return the evidence that noise follows the features, from 0 (none) to 1.

    Three signs are multiplied, the last two to the power 1.5:

    - Lapses, at their lower quartile, beyond uniform noise (at least a fraction ``uniform`` of all labels),
      class-conditional noise and 1 %: lapses of the networks, or the mean of both where the pooled views have more.
      Views that were scaled to the labels can hide lapses.
    - The :func:`_excess` of contradicted labels. If features are ambiguous, predictions are uncertain, too.
    - The fraction of contradicted labels that the predicted class does not explain. Class-conditional noise has few
      targets: where labels are explained by the class, but spread over many, they still count as lapses.

    See :func:`noise_rates` for the arguments.
    """
    if part.per_class < _MIN_PER_CLASS:
        return 0.0
    lapses = (networks + networks.maximum(pooled)) / 2
    lapse = max(0.0, float(lapses[len(lapses) // 4]) - _explained(part, uniform) - _SMALL_LAPSE)
    return _ramp((_excess(part, uniform) * (1 - part.by_class)) ** 1.5 * lapse, *_UNEXPLAINED)


def _excess(part: Confident, uniform: float) -> float:
    """Return by how much confidently predicted labels are contradicted more often than predictions expect, 0 to 1.

    Relative to what they expect, both without noise that the features do not tell: labels without those that uniform
    and class-conditional noise explain, a standard error more of them, and a standard error less of all that are
    contradicted; predictions without the uniform noise that they have learned, which no confidence is free of.
    """
    explained = _explained(part, uniform)
    explained = min(_MAX_RATE, explained + part.std * math.sqrt(explained / max(part.contradicted, 1e-9)))
    learned = min(part.floor, uniform)
    contradicted = (part.contradicted - part.std - explained) / (1 - explained)
    expected = (part.expected - learned) / (1 - learned)
    return min(1.0, max(0.0, contradicted / max(expected, 1e-9) - 1))


def _explained(part: Confident, uniform: float) -> float:
    """Return the fraction of labels that uniform and class-conditional noise made wrong."""
    class_conditional = part.by_class * _ramp(part.purity, *_PURITY)
    return max(uniform, part.contradicted * (part.uniform + class_conditional))


def _ramp(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))


def noise_rates(
    pooled: Tensor,
    networks: Tensor,
    part: Confident,
    evidence: float,
    uniform: float,
    disputed: float,
    contradicted: float,
) -> Tensor:
    """Return the noise rate as equally likely values (q,), in increasing order.

    The larger lapse rate, but at most the uniform and class-conditional noise of the confident part: other contradicted
    labels may be errors of the predictions. With evidence f of feature-dependent noise, a fraction f of them counts,
    and the rate moves a fraction f of the way to 0.8 to 1.2 times the fraction of disputed labels. Without it, the true
    rate is within 0.8 to 1.3 times the estimate: on data with known errors, the estimate was a little too low.

    Noise may follow the features exactly as the model sees them, and then nothing tells it from ambiguous features. So
    the largest value is at least the fraction of labels that contradict a prediction at all.

    Args:
        pooled: :func:`lapse_rates` under the pooled views.
        networks: the same under networks that were trained on given labels alone.
        part: :func:`confident_part`.
        evidence: f, :func:`feature_dependence`.
        uniform: fraction of labels that uniform noise made wrong.
        disputed: expected fraction of wrong labels if every doubtful label counted.
        contradicted: fraction of labels that differ from the most likely class under the pooled views.
    """
    count = len(pooled)
    most = max(part.noise, uniform)
    most += evidence * max(0.0, part.contradicted - part.expected / 2 - most)
    steps = torch.linspace(-1.8, 1.8, count, dtype=torch.float64)
    rates = pooled.maximum(networks).minimum((most + part.std * steps).clamp(min=0.0))
    rates = rates * torch.linspace(*_INACCURACY, count, dtype=torch.float64)
    rates += evidence * (disputed * torch.linspace(*_DISPUTED, count, dtype=torch.float64) - rates).clamp(min=0.0)
    rates[-1] = rates[-1].clamp(min=contradicted)
    return rates.clamp(max=_MAX_RATE)


def lapse_rates(margins: Tensor, contradicted: Tensor) -> Tensor:
    """Return the lapse rate of labels, as equally likely values (31,) in increasing order.

    Model: a label differs from the predicted class with probability ``l + (1 - l) sigmoid(-(a m + b))``, where m is the
    prediction's log-odds: a psychometric function with the lapse rate l (Wichmann and Hill 2001). Its posterior is
    computed on a grid of l, a and b, with a weak prior around calibrated predictions and ``(1 - l)^4 / sqrt(l)`` for l.

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
    log_odds = slopes[:, None, None] * centers + _SHIFTS[:, None]  # (a, b, bins)
    ambiguous, right = torch.sigmoid(-log_odds), sizes - wrong
    prior = -0.5 * (_LOG_SLOPES[:, None] / _SLOPE_STD).square() - 0.5 * ((_SHIFTS - _SHIFT_MEAN) / _SHIFT_STD).square()
    # One minus the probability is (1 - l) sigmoid(a m + b), so that only its other part is computed for each rate.
    of_right = torch.nn.functional.logsigmoid(log_odds) @ right + prior
    of_wrong = ((rate + (1 - rate) * ambiguous).log() @ wrong for rate in rates)
    log_weights = torch.stack([(of_right + part).flatten().logsumexp(0) for part in of_wrong])
    log_weights += right.sum() * (1 - rates).log()
    widths = torch.gradient(rates)[0]
    weights = (log_weights + (widths * (1 - rates) ** _HIGH_IS_RARE / rates.sqrt()).log()).softmax(0)
    levels = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    return rates[torch.searchsorted(weights.cumsum(0), levels).clamp(max=len(rates) - 1)]
