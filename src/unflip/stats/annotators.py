"""Several annotators: the true class of each example and how reliable everyone is, by expectation maximization.

Dawid and Skene (1979) alternate between the posterior of the true classes and a transition matrix for each annotator.
Here a classifier's out-of-sample probabilities may take the place of the class prior, and matrices are shrunk: first
towards three habits, each a single number per annotator (the right class, the confusions that all annotators share, or
a class of their own whatever the example), then as far as their labels allow towards a matrix of their own.

Symbols: p, class probabilities without labels; q, with them; y, a label; M, the transition matrix of an annotator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from unflip.stats.discriminant import evenly_spaced

ROUNDS = 30
"""Largest number of iterations."""
_MIN_ROUNDS = 2
_TOLERANCE = 1e-4  # mean change of posteriors after which iteration stops
_BLOCK_VALUES = 2**22
_STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)  # labels that habits count as, for each class
_FIRST_ROUNDS = 5
_FIRST_STRENGTHS = (30.0,)  # of these rounds: posteriors that are still vague make all annotators look equally good
_HABIT_PRIOR = (4.0, 1.0, 1.0)  # labels of each habit that are added to those observed
_TINY = 1e-30
_SHARPNESS_ROWS = 10_000  # examples that it is fitted to
_NEWTON_STEPS = 3  # of it in each round
_LABEL_ROWS = 10_000  # labels that their weight is fitted to
_LABEL_WEIGHTS = tuple(i / 10 for i in range(1, 11))
_STEP = 0.25  # largest change of that weight in a round
_MIN_COMMON = 10  # examples that two annotators must share to be compared
_MIN_COPIED = 0.6  # fraction of the labels of one that are the other's
_FALSE_ALARMS = 0.01  # expected number of pairs that are taken for copies by chance


class Annotations(NamedTuple):
    """Labels in long form, each (m,): rows of examples, numbers of annotators, class numbers; no pair twice."""

    example: Tensor
    annotator: Tensor
    label: Tensor
    names: tuple[str, ...]
    """Of the annotators."""

    def to(self, device: torch.device | str) -> "Annotations":
        """Return the labels on a device."""
        example, annotator, label, names = self
        return Annotations(example.to(device), annotator.to(device), label.to(device), names)

    def counts(self, num_examples: int) -> Tensor:
        """Return the number of labels of each example (n,)."""
        return self.example.bincount(minlength=num_examples)

    def label_counts(self, num_examples: int, num_classes: int) -> Tensor:
        """Return how often each class was chosen (n, k)."""
        places = self.example * num_classes + self.label
        return places.bincount(minlength=num_examples * num_classes).view(num_examples, num_classes).float()

    def at(self, rows: Tensor, num_examples: int) -> "Annotations":
        """Return the labels of some examples, whose rows are counted from 0 in the order of ``rows`` (r,)."""
        place = torch.full((num_examples,), -1, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        kept = (place[self.example] >= 0).nonzero()[:, 0]
        return Annotations(place[self.example[kept]], self.annotator[kept], self.label[kept], self.names)


@dataclass
class AnnotatorFit:
    """What :func:`fit_annotators` found.

    Attributes:
        log_probs: log q (n, k).
        habits: probability of the right class, of a shared confusion and of a habitual class (a, 3).
        confusions: (k, k) which other class y annotators choose if they confuse class c; the diagonal is 0.
        favorites: (a, k) the distribution of habitual classes.
        pairs: (u,) the pairs of annotator and label that occur, ``annotator k + label``, sorted.
        counts: (u, k) how often each pair occurs, by true class.
        strength: labels that habits count as, for each class of an annotator.
        weights: (m,) of each label: 1, or less for one of several copies.
        sharpness: the power of p after which it explains the labels best.
        label_weight: the power of the evidence of all labels: 1 if annotators err independently of each other.
    """

    log_probs: Tensor
    habits: Tensor
    confusions: Tensor
    favorites: Tensor
    pairs: Tensor
    counts: Tensor
    strength: float
    weights: Tensor
    sharpness: float = 1.0
    label_weight: float = 1.0

    def columns(self, annotator: Tensor, label: Tensor) -> Tensor:
        """Return M[:, y] (b, k): the probability that an annotator (b,) gives a label (b,), by true class."""
        right, shared, own = (self.habits[annotator, kind, None] for kind in range(3))
        habits = shared * self.confusions.T[label] + own * self.favorites[annotator, label, None]
        habits.scatter_add_(1, label[:, None], right)
        if not len(self.pairs):
            return habits
        code = annotator * len(self.confusions) + label
        place = torch.searchsorted(self.pairs, code).clamp(max=len(self.pairs) - 1)
        counts = self.counts[place] * (self.pairs[place] == code)[:, None]
        return (counts + self.strength * habits) / (self.totals[annotator] + self.strength)

    @cached_property
    def totals(self) -> Tensor:
        """The number of labels of each annotator, by true class (a, k)."""
        totals = torch.zeros_like(self.favorites)
        return totals.index_add_(0, self.pairs // totals.shape[1], self.counts)

    def matrix(self, annotator: int) -> Tensor:
        """Return the transition matrix (k, k) of an annotator: true classes in rows."""
        labels = torch.arange(len(self.confusions), device=self.confusions.device)
        return self.columns(torch.full_like(labels, annotator), labels).T


def fit_annotators(
    annotations: Annotations,
    log_probs: Tensor,
    *,
    known: Tensor | None = None,
    rounds: int = ROUNDS,
    of_prior: bool = False,
    start: AnnotatorFit | None = None,
) -> AnnotatorFit:
    """Estimate the posterior of the true classes and the transition matrices of all annotators.

    E-step: ``q_i ∝ p_i^b prod_j M_j[:, y_j]^(g w_j)`` over the labels j of an example. M-step: expected counts of
    labels by annotator, class and label, see the module; b and g are fitted, too. Annotators who copy each other are
    found in the third round, and count once from then on (w).

    Args:
        annotations: m labels by a annotators.
        log_probs: log p (n, k); not changed.
        known: true classes (n,), -1 where unknown: they count as q.
        rounds: largest number of iterations.
        of_prior: estimate p, the same for all examples, as the mean of q: Dawid and Skene's model.
        start: an earlier fit to the same labels, from which it goes on.
    """
    (count, num_classes), example = log_probs.shape, annotations.example
    pairs, place = (annotations.annotator * num_classes + annotations.label).unique(return_inverse=True)
    fit = start or _first_guess(annotations, log_probs, pairs, of_prior=of_prior)
    q = _set_known(fit.log_probs.exp(), known)
    rows = evenly_spaced(count, _SHARPNESS_ROWS, log_probs.device)
    for number in range(rounds):
        is_early = start is None and number < _FIRST_ROUNDS
        fit = _maximize(fit, annotations, q, place, _FIRST_STRENGTHS if is_early else _STRENGTHS)
        if of_prior:
            prior = q.mean(0).clamp(min=1e-6).log().expand_as(q)
        else:
            fit.sharpness = _fit_sharpness(log_probs[rows].float(), q[rows], fit.sharpness)
            prior = (fit.sharpness * log_probs.float()).log_softmax(1)
        if number == _MIN_ROUNDS and start is None:  # later on, copies would have confirmed each other
            fit.weights = _copy_weights(copies(fit, annotations), annotations)
        before, evidence = q, torch.zeros_like(q)
        columns = fit.columns(pairs // num_classes, pairs % num_classes).clamp(min=_TINY).log()
        for part in _blocks(len(example), num_classes):
            evidence.index_add_(0, example[part], columns[place[part]] * fit.weights[part, None])
        if number >= _MIN_ROUNDS:
            fit.label_weight = _fit_label_weight(fit, annotations, prior, evidence)
        fit.log_probs = (prior + fit.label_weight * evidence).log_softmax(1)
        q = _set_known(fit.log_probs.exp(), known)
        if number > _MIN_ROUNDS and not is_early and float((q - before).abs().sum(1).mean()) < _TOLERANCE:
            break
    return fit


def _fit_label_weight(fit: AnnotatorFit, annotations: Annotations, prior: Tensor, evidence: Tensor) -> float:
    """Return the weight g of labels with which those of an example predict each other best.

    It maximizes ``sum_j log sum_c r_c M_j[c, y_j]`` with ``r ∝ p exp(g E)``, where E is the evidence (n, k) of the
    other labels of the example. If annotators err on the same examples, their labels are not independent given the
    class, and g is below 1.
    """
    several = (annotations.counts(len(prior)) > 1)[annotations.example].nonzero()[:, 0]
    rows = several[evenly_spaced(len(several), _LABEL_ROWS, several.device)]
    if not len(rows):
        return 1.0
    columns = fit.columns(annotations.annotator[rows], annotations.label[rows]).clamp(min=_TINY)
    others = evidence[annotations.example[rows]] - columns.log() * fit.weights[rows, None]
    own = prior[annotations.example[rows]]

    def likelihood(weight: float) -> float:
        return float(((own + weight * others).softmax(1) * columns).sum(1).clamp(min=_TINY).log().mean())

    near = [weight for weight in _LABEL_WEIGHTS if abs(weight - fit.label_weight) < _STEP]
    return max(near, key=likelihood)


def _fit_sharpness(log_probs: Tensor, q: Tensor, start: float) -> float:
    """Return the b that maximizes ``sum_i sum_c q_ic log softmax(b log p_i)_c``, by Newton's method, from 0.2 to 5.

    Predictions of a classifier that learned noisy labels are not confident enough for true classes.
    """
    sharpness = start
    for _ in range(_NEWTON_STEPS):
        probs = (sharpness * log_probs).softmax(1)
        mean = (probs * log_probs).sum(1)
        variance = (probs * log_probs.square()).sum(1) - mean.square()
        step = float(((q * log_probs).sum(1) - mean).sum() / variance.sum().clamp(min=1e-9))
        sharpness = min(5.0, max(0.2, sharpness + max(-1.0, min(1.0, step))))
    return sharpness


def _set_known(q: Tensor, known: Tensor | None) -> Tensor:
    if known is None:
        return q
    certain = torch.zeros_like(q).scatter_(1, known.clamp(min=0)[:, None], 1.0)
    return torch.where(known[:, None] >= 0, certain, q)


def _blocks(count: int, num_classes: int) -> Iterator[slice]:
    size = max(1, _BLOCK_VALUES // num_classes)
    return (slice(start, start + size) for start in range(0, count, size))


def _first_guess(annotations: Annotations, log_probs: Tensor, pairs: Tensor, *, of_prior: bool) -> AnnotatorFit:
    """Return q from the classes that were chosen most often, and the same habits for everyone."""
    (count, num_classes), device = log_probs.shape, log_probs.device
    chosen = annotations.label_counts(count, num_classes)
    chosen = chosen + (1 / num_classes if of_prior else log_probs.float().exp())
    places = annotations.annotator * num_classes + annotations.label
    favorites = places.bincount(minlength=len(annotations.names) * num_classes).view(-1, num_classes) + 1 / num_classes
    habits = torch.tensor(_HABIT_PRIOR, device=device)
    return AnnotatorFit(
        log_probs=(chosen / chosen.sum(1, keepdim=True)).log(),
        habits=(habits / habits.sum()).repeat(len(annotations.names), 1),
        confusions=torch.ones(num_classes, num_classes, device=device).fill_diagonal_(0) / max(1, num_classes - 1),
        favorites=favorites / favorites.sum(1, keepdim=True),
        pairs=pairs,
        counts=torch.zeros(len(pairs), num_classes, device=device),
        strength=1.0,
        weights=torch.ones(len(places), device=device),
    )


def _maximize(
    fit: AnnotatorFit, annotations: Annotations, q: Tensor, place: Tensor, strengths: Sequence[float]
) -> AnnotatorFit:
    """Return habits, shared confusions, matrices and their strength by expected counts under q (n, k).

    All of them depend on the counts of pairs alone; ``place`` (m,) is the pair of each label.
    """
    num_classes, device = q.shape[1], q.device
    counts = torch.zeros(len(fit.pairs), num_classes, device=device)
    for part in _blocks(len(place), num_classes):
        counts.index_add_(0, place[part], q[annotations.example[part]] * fit.weights[part, None])
    a, y = fit.pairs // num_classes, fit.pairs % num_classes
    own = fit.habits[a, 2] * fit.favorites[a, y]
    other = fit.habits[a, 1, None] * fit.confusions.T[y]  # 0 at the label itself
    by_confusion = counts * other / (other + own[:, None] + _TINY)
    by_right = counts.gather(1, y[:, None])[:, 0] * fit.habits[a, 0] / (fit.habits[a, 0] + own + _TINY)
    by_favorite = counts.sum(1) - by_right - by_confusion.sum(1)
    habits = torch.tensor(_HABIT_PRIOR, device=device).repeat(len(annotations.names), 1)
    habits.index_add_(0, a, torch.stack([by_right, by_confusion.sum(1), by_favorite], 1))
    confusions = torch.zeros_like(fit.confusions).index_add_(0, y, by_confusion).T + 1 / num_classes
    confusions.fill_diagonal_(0)
    favorites = torch.full_like(fit.favorites, 1 / num_classes)
    favorites.view(-1).index_add_(0, fit.pairs, by_favorite)
    result = replace(
        fit,
        habits=habits / habits.sum(1, keepdim=True),
        confusions=confusions / confusions.sum(1, keepdim=True).clamp(min=_TINY),
        favorites=favorites / favorites.sum(1, keepdim=True),
        counts=torch.zeros_like(counts),
    )
    return replace(result, counts=counts, strength=_fit_strength(result, counts, strengths))


def _fit_strength(fit: AnnotatorFit, counts: Tensor, strengths: Sequence[float]) -> float:
    """Return the number of labels that habits count as, by the Dirichlet-multinomial likelihood of expected counts.

    ``log Γ(s) - log Γ(s + n) + sum_y log Γ(s B_y + n_y) - log Γ(s B_y)`` for each annotator and class, where B are the
    probabilities by habits and n the counts (Minka 2000). Labels that do not occur add nothing.
    """
    num_classes = len(fit.confusions)
    habits = fit.columns(fit.pairs // num_classes, fit.pairs % num_classes)  # there are no counts yet
    totals = replace(fit, counts=counts).totals

    def likelihood(strength: float) -> float:
        prior = strength * habits + 1e-6
        of_labels = (torch.lgamma(prior + counts) - torch.lgamma(prior)).double().sum()
        whole = torch.tensor(strength, device=counts.device)
        return float(of_labels - (torch.lgamma(totals + strength) - torch.lgamma(whole)).double().sum())

    return max(strengths, key=likelihood)


def copies(fit: AnnotatorFit, annotations: Annotations) -> list[tuple[int, int, int, int]]:
    """Return the pairs of annotators who agree more often than their accuracies explain.

    Given all labels of an example but b's, b agrees with a with probability ``r = sum_c q_c M_b[c, y_a]``. Pairs share
    confusions that are typical of an example, so the excess ``agreements - sum r`` of a pair is compared to that of all
    pairs, in standard deviations ``sqrt(sum r (1 - r))``; the limit allows for the number of pairs (Bonferroni). Good
    annotators, too, agree more often than is expected before their matrices are known, but not by as much: if b copies
    a fraction s of the labels and chooses the others, they agree with probability ``s + (1 - s) r``.

    Returns:
        Two annotators, their common examples and how often they agree, for each pair.
    """
    example, annotator, label, names = annotations
    order = torch.argsort(example * len(names) + annotator)
    sorted_examples, pairs, same, rates = example[order], [], [], []
    count, num_classes = fit.log_probs.shape
    for offset in range(1, int(annotations.counts(count).max()) if len(example) else 0):
        first, second = order[:-offset], order[offset:]
        shared = sorted_examples[:-offset] == sorted_examples[offset:]
        first, second = first[shared], second[shared]
        for part in _blocks(len(first), num_classes):
            a, b = first[part], second[part]
            own = fit.columns(annotator[b], label[b]).clamp(min=_TINY).log() * fit.weights[b, None] * fit.label_weight
            without = (fit.log_probs[example[b]] - own).softmax(1)
            rates.append((without * fit.columns(annotator[b], label[a])).sum(1).clamp(1e-3, 1 - 1e-3))
            same.append(label[a] == label[b])
            pairs.append(annotator[a] * len(names) + annotator[b])
    if not pairs:
        return []
    codes, place = torch.cat(pairs).unique(return_inverse=True)
    rate, agreed = torch.cat(rates).double(), torch.cat(same).double()
    zeros = torch.zeros(len(codes), dtype=torch.float64, device=rate.device)
    common, agreements, expected, variance = (
        zeros.index_add(0, place, values) for values in (torch.ones_like(rate), agreed, rate, rate * (1 - rate))
    )
    expected += max(0.0, float((agreements - expected).sum() / common.sum())) * common
    scores = (agreements - expected) / variance.sqrt()
    copied = (agreements - expected) / (common - expected)
    limit = NormalDist().inv_cdf(1 - min(0.5, _FALSE_ALARMS / len(codes)))
    found = ((scores > limit) & (copied > _MIN_COPIED) & (common >= _MIN_COMMON)).nonzero()[:, 0].tolist()
    return [(*divmod(int(codes[i]), len(names)), int(common[i]), int(agreements[i])) for i in found]


def _copy_weights(pairs: Sequence[tuple[int, int, int, int]], annotations: Annotations) -> Tensor:
    """Return the weight of each label (m,): annotators who copy each other count once for each example."""
    group = list(range(len(annotations.names)))
    for first, second, *_ in pairs:
        low, high = sorted((group[first], group[second]))
        group = [low if number == high else number for number in group]
    of_label = torch.tensor(group, device=annotations.example.device)[annotations.annotator]
    codes = annotations.example * len(group) + of_label
    _, place, sizes = codes.unique(return_inverse=True, return_counts=True)
    weights: Tensor = sizes[place].float().reciprocal()
    return weights
