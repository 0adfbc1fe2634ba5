"""The posterior of the true class, given what out-of-sample views say of an example and given its label.

Pure functions, from class log-probabilities (n, k) and labels (n,) to better labels and to how likely the given ones
are right. :class:`unflip.methods.unflip.method.Unflip` uses them at each epoch's end; :func:`score_labels` puts them
together for the probabilities of any model.

Symbols: p, the probabilities of views that have not learned the label; y, the label; e, the uniform noise rate, the
share of labels drawn from all classes alike; u, the probability that a label is informative, that is, not one of those;
M, the transition matrix of informative labels; g, how much a label's evidence counts.

The constants were chosen on data whose true labels were known: no criterion from noisy labels alone was found.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unflip.stats.discriminant import Discriminant
from unflip.stats.odds import PlattScaling, calibrate, log_odds
from unflip.stats.rows import evenly_spaced
from unflip.stats.stacking import pool, stack

_ROWS = 4096  # examples at once; they fit in the cache
_TINY = 1e-30
# label weights
_SLOPE = 1.5  # how fast disagreement lowers what a label counts
_LAST_WEIGHT = (0.3, 0.4)  # what a label counts least in the last targets, and for the final labels
_QUALITY_MORE = 0.15  # what a label counts beyond that for its quality
# class prior
_LOW, _HIGH = 0.15, 0.25  # shares of explained inequality below which none, and above which all, is trusted
_ASKED, _ASKED_PER_CLASS = 10_000, 400  # examples that a prior is estimated from
_STEP, _STEPS, _CLOSE = 0.8, 200, 1e-3
_LEAST_SHARE = 1e-6
_MOST_OFFSET = 80.0  # what products of probabilities and offsets can hold
# transition matrix
_ROUNDS = 5
_FITTED, _FITTED_PER_CLASS = 4000, 100  # examples that tell how much noise depends on classes
_SHARPER = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2)


class LabelScores(NamedTuple):
    """The most likely class of each example (n,), and calibrated log-odds that its given label is right (n,)."""

    labels: Tensor
    log_odds: Tensor

    @property
    def quality(self) -> Tensor:
        """How likely each given label is right (n,)."""
        return self.log_odds.sigmoid().float()


def score_labels(probs: Tensor, labels: Tensor) -> LabelScores:
    """Score labels (n,) by class probabilities (n, k) of any model that has not learned them.

    The last step of :class:`unflip.methods.unflip.method.Unflip`, with these probabilities as its only view: sharpened
    or flattened until the labels are most likely, the class prior moved as far as noise may have made it unequal, then
    the posterior of the true class given probabilities *and* label under an estimated transition matrix.
    """
    view = probs.clamp(min=_TINY).log()
    stacked = stack([view], labels)
    known = labels.bincount(minlength=probs.shape[1]) > 0
    state = update_posterior(pool([view], stacked.weights), labels, stacked.uniform_noise_rate, known)
    odds = state.odds(slice(None), labels)
    scaling = state.fit_scaling(odds, labels, torch.ones_like(labels, dtype=torch.bool))
    return LabelScores(state.posterior(slice(None), labels, state.label_weight).argmax(1), scaling.apply(odds))


@dataclass
class PosteriorState:
    """What is known of n examples and their labels; methods take some ``rows`` of them, and all labels (n,).

    Attributes:
        log_probs: log p (n, k), with the class prior moved; a large table is in half precision.
        informative: u (n,).
        log_matrix: log M (k, k).
        offset: of the classes (k,): what moved their prior.
        uniform_noise_rate: e.
        prior_trust: how much of the classes' inequality is true, from 0 to 1.
        target_weight: g in training targets.
        label_weight: g for the current labels.
        weights: of the views.
        gaussians: the view by class Gaussians, if it is used.
        network_pair: log-probabilities of each given and current label (n, 2), by networks that have not learned it.
        gaussian_pair: those by the class Gaussians without the example.
    """

    log_probs: Tensor
    informative: Tensor
    log_matrix: Tensor
    offset: Tensor
    uniform_noise_rate: float
    prior_trust: float
    target_weight: float
    label_weight: float
    weights: Tensor | None = None
    gaussians: Discriminant | None = None
    network_pair: Tensor | None = None
    gaussian_pair: Tensor | None = None

    def posterior(self, rows: slice, labels: Tensor, weight: float) -> Tensor:
        """Return P(true class | features, label) (r, k) with g = ``weight``; see :func:`posterior`."""
        log_probs = self.log_probs[rows].float()
        return posterior(log_probs, labels[rows], self.informative[rows], self.log_matrix, weight)

    def odds(self, rows: slice, labels: Tensor) -> Tensor:
        """Return the log-odds (r,) that labels are right, to be scaled; see :func:`label_odds`."""
        log_probs = self.log_probs[rows].float()
        return label_odds(log_probs, labels[rows], self.informative[rows], self.log_matrix, self.label_weight)

    def fit_scaling(self, odds: Tensor, labels: Tensor, unsure: Tensor) -> PlattScaling:
        """Return what makes log-odds (n,) calibrated, by the labels that nobody has reviewed, ``unsure`` (n,)."""
        return calibrate(
            odds[unsure],
            self.informative[unsure],
            explained=class_conditional_noise(self.log_probs, labels, self.uniform_noise_rate),
            wrong=disagreement(self.log_probs, labels, self.informative * unsure),
        )


def update_posterior(
    log_probs: Tensor,
    labels: Tensor,
    uniform_noise_rate: float,
    known: Tensor,
    *,
    trust: float | None = None,
    steps: int = 1,
    progress: float = 1.0,
    broadcast: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> PosteriorState:
    """Estimate class prior, label weights and transition matrix.

    Args:
        log_probs: log p (n, k), which is overwritten.
        labels: y (n,).
        uniform_noise_rate: e.
        known: which classes (k,) the views can tell at all.
        trust: how much of the classes' inequality is true, if it is known already.
        steps: in how many steps the prior is moved; this is one of them.
        progress: from 0, where a label counts in full in the targets, to 1, where it counts as little as it will.
        broadcast: gives every process the first one's tensor.
    """
    share = informative_prob(log_probs, labels, uniform_noise_rate)
    wrong = disagreement(log_probs, labels, share)
    if trust is None:
        trust = prior_trust(log_probs, labels, uniform_noise_rate, known)
    offset = torch.zeros(log_probs.shape[1], device=log_probs.device)
    if trust < 1:
        wanted = temper_prior(class_prior(log_probs), trust ** (1 / steps), known)
        offset = broadcast(fit_prior_offsets(log_probs, wanted))
        for rows in blocks(len(labels)):
            log_probs[rows] = (log_probs[rows].float() + offset).log_softmax(1)
    target, label = label_weights(uniform_noise_rate, wrong, log_probs.shape[1])
    target = 1 + (target - 1) * progress
    log_matrix = broadcast(estimate_transition(log_probs, labels, share, target))
    return PosteriorState(log_probs, share, log_matrix, offset, uniform_noise_rate, trust, target, label)


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of a table of ``count`` rows that fit in the cache."""
    for start in range(0, count, _ROWS):
        yield slice(start, start + _ROWS)


def informative_prob(log_probs: Tensor, labels: Tensor, uniform_noise_rate: float) -> Tensor:
    """Return u (n,), how likely each label is informative: ``(1 - e) p_y / ((1 - e) p_y + e / k)``.

    ``log_probs`` (n, k) are of given labels; see :func:`unflip.stats.stacking.stack` for e.
    """
    own = (1 - uniform_noise_rate) * log_probs.gather(1, labels[:, None])[:, 0].float().exp()
    return own / (own + uniform_noise_rate / log_probs.shape[1] + _TINY)


def posterior(log_probs: Tensor, labels: Tensor, share: Tensor, log_matrix: Tensor, weight: float) -> Tensor:
    """Return P(true class | features, label) (n, k): ``(1 - u) p + u softmax(log p + g log M[:, y])``.

    A label that is informative, which it is with probability u = ``share`` (n,), came from the true class c with
    probability M[c, y]; its evidence counts g = ``weight`` times. Any other label says nothing.
    """
    moved = log_probs.add(log_matrix.T[labels], alpha=weight).softmax(1)
    return torch.lerp(log_probs.exp(), moved, share[:, None])


def log_posterior(log_probs: Tensor, labels: Tensor, share: Tensor, log_matrix: Tensor, weight: float) -> Tensor:
    """Return the logarithm (n, k) of :func:`posterior`, which tells apart what that rounds to 0 or 1."""
    moved = log_probs.add(log_matrix.T[labels], alpha=weight).log_softmax(1)
    share = share[:, None].clamp(max=1.0)
    return torch.logaddexp(log_probs + torch.log1p(-share), moved + share.log())


def disagreement(log_probs: Tensor, labels: Tensor, share: Tensor) -> float:
    """Return the share of informative labels (n,) that the most likely class of log p (n, k) contradicts."""
    return float(((log_probs.argmax(1) != labels) * share).sum() / share.sum().clamp(min=1e-9))


def label_weights(uniform_noise_rate: float, wrong: float, num_classes: int) -> tuple[float, float]:
    """Return what a given label counts in the last targets and for the final labels, at least 0.3 and 0.4, at most 1.

    The views' mistakes are alike for similar examples, and so are those of labels that depend on the features: there
    a label that agrees with its neighbors says little more than they do. A label that is wrong by chance says more. So
    both weights rise with the share of disagreement that is uniform noise, ``f = b / (b + (1 - e) r)`` with
    ``b = e (1 - 1 / k)``, to ``1 - 1.5 r``, r = ``wrong`` being the share of informative labels that views contradict.
    """
    uniform = uniform_noise_rate * (1 - 1 / num_classes)
    by_chance = uniform / (uniform + (1 - uniform_noise_rate) * wrong + 1e-9)
    target, label = (least + by_chance * max(0.0, 1 - _SLOPE * wrong - least) for least in _LAST_WEIGHT)
    return target, label


def label_odds(log_probs: Tensor, labels: Tensor, share: Tensor, log_matrix: Tensor, weight: float) -> Tensor:
    """Return the log-odds that each label (m,) is right, ``log(p_y / sum_{c != y} p_c)``, to be calibrated.

    p is the posterior in which the label counts 0.15 more than ``weight``, which it has for the final labels.
    """
    return log_odds(log_posterior(log_probs, labels, share, log_matrix, min(1.0, weight + _QUALITY_MORE)), labels)


def prior_trust(log_probs: Tensor, labels: Tensor, uniform_noise_rate: float, known: Tensor) -> float:
    """Return from 0 to 1 how much of the inequality of the classes is true, rather than made by noise.

    Let π be the mean of the probabilities p. If the classes were equal in truth, p moved to equal classes would explain
    the given labels as well, each under its best transition matrix. What it loses in log-likelihood, in units of the
    inequality KL(π | equal), speaks for true inequality: below 0.15 nothing of it is trusted, above 0.25 all, between
    them a share. Inequality that so few examples show by chance, less than ``(k - 1) / (2 n (1 - e)²)`` nats, is not
    trusted.

    Args:
        log_probs: log p (n, k).
        labels: y (n,).
        uniform_noise_rate: e.
        known: which classes (k,) views can tell at all; of the others nothing is asked.
    """
    count, num_classes = len(log_probs), int(known.sum())
    rows = evenly_spaced(count, max(_ASKED, _ASKED_PER_CLASS * log_probs.shape[1]), labels.device)
    log_probs, labels, count = log_probs[rows].float(), labels[rows], len(rows)
    mean = class_prior(log_probs)
    inequality = float((mean * (mean * num_classes).log() * known).sum())
    if inequality <= (num_classes - 1) / (2 * count * (1 - uniform_noise_rate) ** 2):
        return 0.0
    equal = temper_prior(mean, 0.0, known)
    fitted, offset = fit_transition(log_probs, labels, uniform_noise_rate), fit_prior_offsets(log_probs, equal)
    moved = fit_transition(log_probs.add_(offset).log_softmax(1), labels, uniform_noise_rate)
    loss = fitted.log_likelihood - moved.log_likelihood
    return min(1.0, max(0.0, (loss / inequality - _LOW) / (_HIGH - _LOW)))


def temper_prior(prior: Tensor, exponent: float, known: Tensor) -> Tensor:
    """Return the class prior (k,) to the power of ``exponent``, normalized; classes not ``known`` (k,) keep theirs."""
    wanted = (exponent * prior.log()).masked_fill(~known, -torch.inf).softmax(0)
    return wanted * (1 - (prior * ~known).sum()) + prior * ~known


def fit_prior_offsets(log_probs: Tensor, prior: Tensor) -> Tensor:
    """Return class offsets b (k,) after which the mean of ``softmax(log p + b)`` is ``prior`` (k,); damped iteration.

    This moves the prior of a classifier without its labels (Saerens, Latinne and Decaestecker 2002).
    """
    rows = evenly_spaced(len(log_probs), max(_ASKED, _ASKED_PER_CLASS * len(prior)), log_probs.device)
    probs, wanted = log_probs[rows].float().exp_().clamp_(min=_TINY), prior.clamp(min=_LEAST_SHARE).log()
    offset = torch.zeros_like(wanted)
    for _ in range(_STEPS):
        factors = offset.clamp(max=_MOST_OFFSET).exp()
        moved = factors * (probs.T @ (1 / (probs @ factors)))  # the sum of the softmax, at a tenth of its cost
        missing = wanted - _normalized(moved / len(rows)).log()
        offset = offset + _STEP * missing
        if float(missing.abs().max()) < _CLOSE:
            break
    return offset


def class_prior(log_probs: Tensor) -> Tensor:
    """Return the mean of probabilities (k,), each at least a millionth."""
    total = torch.stack([part.float().exp().sum(0) for part in log_probs.split(_ROWS)]).sum(0)
    return _normalized(total / len(log_probs))


def _normalized(mean: Tensor) -> Tensor:
    mean = mean.clamp(min=_LEAST_SHARE)
    return mean / mean.sum()


def class_conditional_noise(log_probs: Tensor, labels: Tensor, uniform_noise_rate: float) -> float:
    """Return the share of labels (n,) that are wrong if noise depends on classes alone: so much labels can tell.

    It is the mean of ``1 - P(true class = label)`` under the transition matrix M and the sharpness t that explain the
    labels best, ``(1 - e) sum_c softmax(t log p)_c M[c, y] + e / k``, where the label's evidence counts in full. Views
    that learned noisy labels are less sure than of true ones, hence t, from 1 to 3.2. Where noise follows the features
    the result is too low: such noise looks like ambiguity.
    """
    rows = evenly_spaced(len(labels), max(_FITTED, _FITTED_PER_CLASS * log_probs.shape[1]), labels.device)
    log_probs, labels = log_probs[rows].float(), labels[rows]
    best, noise = -torch.inf, 0.0
    for sharpness in _SHARPER:
        sharper = (sharpness * log_probs).log_softmax(1)
        fitted = fit_transition(sharper, labels, uniform_noise_rate)
        if fitted.log_likelihood <= best:
            break
        best = fitted.log_likelihood
        found = posterior(sharper, labels, fitted.informative, fitted.log_matrix, 1.0)
        noise = float(1 - found.gather(1, labels[:, None]).mean())
    return noise


class Transition(NamedTuple):
    """The transition matrix that explains labels best, how likely each is informative, their mean log-likelihood."""

    log_matrix: Tensor
    informative: Tensor
    log_likelihood: float


def fit_transition(log_probs: Tensor, labels: Tensor, uniform_noise_rate: float) -> Transition:
    """Explain ``labels`` (n,) by true classes with log-probabilities (n, k), a transition matrix and uniform noise."""
    share = log_probs.new_full((len(labels),), 1 - uniform_noise_rate)
    for _ in range(3):
        log_matrix = estimate_transition(log_probs, labels, share, rounds=3)
        parts = zip(log_probs.split(_ROWS), labels.split(_ROWS), strict=True)
        likelihood = torch.cat([(part + log_matrix.T[given]).logsumexp(1) for part, given in parts]).exp()
        own = (1 - uniform_noise_rate) * likelihood
        total = own + uniform_noise_rate / log_probs.shape[1] + _TINY
        share = own / total
    return Transition(log_matrix, share, float(total.log().mean()))


def estimate_transition(
    log_probs: Tensor, labels: Tensor, share: Tensor, weight: float = 1.0, rounds: int = _ROUNDS
) -> Tensor:
    """Return log M (k, k), the chance that an informative label of true class c reads y, by expectation maximization.

    E-step: ``q_i ∝ p_i M[:, y_i]^g``; M-step: ``M[c, y] ∝ 1 / k + [c = y] + sum_{i: y_i = y} u_i q_ic``. The added
    constants are a weak prior on labels being right. It starts from q = p.

    Args:
        log_probs: log p (n, k).
        labels: y (n,).
        share: u (n,), how likely each label is informative.
        weight: g, how much a label's evidence counts.
        rounds: of both steps.
    """
    num_classes = log_probs.shape[1]
    log_matrix: Tensor | None = None
    for _ in range(rounds):
        counts = torch.zeros(num_classes, num_classes, device=log_probs.device)  # by label, then class
        for rows in blocks(len(labels)):
            found = log_probs[rows].float()
            if log_matrix is not None:
                found = found.add(log_matrix.T[labels[rows]], alpha=weight).softmax(1)
            else:
                found = found.exp()
            counts.index_add_(0, labels[rows], found * share[rows, None])
        matrix = counts.T + 1 / num_classes + torch.eye(num_classes, device=counts.device)
        log_matrix = (matrix / matrix.sum(1, keepdim=True)).log()
    assert log_matrix is not None
    return log_matrix
