"""The posterior of the true class, given out-of-sample class probabilities and the given label.

Pure functions, from class log-probabilities (n, k) and labels (n,) to corrected labels and label quality.
:class:`unflip.methods.unflip.method.Unflip` uses them at each epoch's end; :func:`score_labels` applies them to the
out-of-sample probabilities of any model.

Symbols: p, out-of-sample class probabilities; y, the label; e, the uniform noise rate, the fraction of labels drawn
uniformly from all classes; u, the probability that a label is informative, that is, not one of those; M, the transition
matrix of informative labels; g, the weight of a label's evidence.

The constants were chosen on data with known true labels: no criterion from noisy labels alone was found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.stats.annotators import AnnotatorFit
from unflip.stats.discriminant import Discriminant, evenly_spaced
from unflip.stats.noise_rate import QUANTILES, Confident, confident_part, feature_dependence, lapse_rates, noise_rates
from unflip.stats.odds import PlattScaling, calibrate, disputed_fraction, fit_slope, log_odds, pool, stack

BLOCK_ROWS = 4096
"""Examples processed at once, or fewer if there are more than 256 classes; they fit in the cache."""
_BLOCK_VALUES = 2**20
_TINY = 1e-30
# label weights
_SLOPE = 1.5  # decrease of a label's weight with disagreement
_MIN_WEIGHTS = (0.3, 0.4)  # of a label in the last targets, and for the final labels
_QUALITY_EXTRA = 0.15  # added to the latter for label quality
_TARGET_POWER = 1.5  # more does harm where most labels are wrong
_INACCURACY = (0.6, 1.4)  # of the noise rate that several annotators imply
# class prior
TRUST_LOW, TRUST_HIGH = 0.15, 0.25
"""Relative losses of likelihood below which the class prior is not trusted, and above which it is."""
_PRIOR_ROWS, _PRIOR_ROWS_PER_CLASS = 10_000, 400  # examples that a prior is estimated from
_PRIOR_VALUES = 2**26  # of their probabilities, that are in memory at once
_STEP, _MAX_STEPS, _TOLERANCE = 0.8, 200, 1e-3
_PAST_STEPS, _RIDGE, _MAX_MOVE = 6, 1e-8, 1.0  # of accelerated steps
_MIN_PROB = 1e-6
_MAX_OFFSET = 80.0  # avoids overflow
# transition matrix
_ROUNDS = 5
_NEIGHBORS = 1.0  # labels by which neighbors are preferred, if classes are ordered
_HALF = 0.5


def score_labels(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Score labels by out-of-sample class probabilities of any model.

    The last step of :class:`unflip.methods.unflip.method.Unflip`, with these probabilities as its only view: scale the
    log-probabilities by the likelihood of the labels, move the class prior as far as noise may have made it unequal,
    and compute the posterior of the true class given probabilities *and* label under an estimated transition matrix.

    Args:
        probs: p (n, k).
        labels: y (n,).

    Returns:
        Each example's label, or the one to replace it by where that is more likely right (n,); calibrated log-odds (n,)
        that its label is right; equally likely numbers of wrong labels (q,), in increasing order.
    """
    view = probs.clamp(min=_TINY).log()
    stacked = stack([view], labels)
    known = labels.bincount(minlength=probs.shape[1]) > 0
    top, top_probs, label_probs = top_one(view, labels)
    part = confident_part(top, top_probs, label_probs, labels, probs.shape[1])
    state = update_posterior(pool([view], stacked.weights), labels, stacked.uniform_noise_rate, known, part)
    state.lapses = lapse_rates(top_probs.double().logit(), top != labels)
    odds = state.odds(slice(None), labels)
    scaling = state.fit_scaling(odds, labels, torch.ones_like(labels, dtype=torch.bool))
    log_odds = scaling.apply(odds)
    return state.correct(slice(None), labels, log_odds)[0], log_odds, scaling.wrong(odds)


@dataclass
class PosteriorState:
    """Estimates for n examples and their labels; methods take ``rows`` of them, and all labels (n,).

    Attributes:
        log_probs: log p (n, k) under the adjusted class prior; in half precision if large.
        informative: u (n,).
        log_matrix: log M (k, k).
        offset: log-offsets (k,) that adjusted the class prior.
        uniform_noise_rate: e.
        prior_trust: fraction of the inequality of class sizes that is real, from 0 to 1.
        target_weight: g in training targets.
        label_weight: g for the current labels.
        confident: labels that networks, trained on given labels alone, predict confidently: evidence of noise.
        weights: weights of the views.
        gaussians: class Gaussians, if they are a view.
        network_pair: out-of-fold log-probabilities of each given and current label (n, 2), by networks.
        gaussian_pair: leave-one-out log-probabilities of both (n, 2), by class Gaussians.
        lapses: lapse rates (q,) of the labels under the predictions that ``confident`` describes. Views that were
            scaled to the labels are less sure where labels are wrong, which hides lapses if all examples are easy.
        annotators: if there are several: the posterior given all their labels, which replaces the one given a label.
        ordinal: whether classes are ordered: then labels near the true class are preferred.
    """

    log_probs: Tensor
    informative: Tensor
    log_matrix: Tensor
    offset: Tensor
    uniform_noise_rate: float
    prior_trust: float
    target_weight: float
    label_weight: float
    confident: Confident
    weights: Tensor | None = None
    gaussians: Discriminant | None = None
    network_pair: Tensor | None = None
    gaussian_pair: Tensor | None = None
    lapses: Tensor | None = None
    annotators: AnnotatorFit | None = None
    ordinal: bool = False

    @property
    def combined(self) -> Tensor:
        """Log-probabilities (n, k) by all views and, if there are several annotators, their labels."""
        return self.log_probs if self.annotators is None else self.annotators.log_probs

    def posterior(self, rows: slice, labels: Tensor, weight: float) -> Tensor:
        """Return P(true class | features, label) (r, k) with g = ``weight``; see :func:`posterior`."""
        if self.annotators is not None:
            return self.annotators.log_probs[rows].exp()
        log_probs = self.log_probs[rows].float()
        return posterior(log_probs, labels[rows], self.informative[rows], self.log_matrix, weight)

    def targets(self, rows: slice, labels: Tensor) -> Tensor:
        """Return training targets (r, k): the posterior with g = ``target_weight``, sharpened unless it is annotators'.

        Views fitted to noisy labels are less certain of the true class than they should be, and members trained on
        them would be, too. A power of the posterior undoes part of it, as in DivideMix (Li et al. 2020).
        """
        probs = self.posterior(rows, labels, self.target_weight)
        return probs if self.annotators is not None else F.normalize(probs**_TARGET_POWER, p=1.0, dim=1)

    def odds(self, rows: slice, labels: Tensor) -> Tensor:
        """Return log-odds (r,) that labels are right, before calibration: :meth:`posterior_odds` plus ``log p_y``.

        The posterior takes for granted that an example has a class. One that has none is explained by no class, so p_y
        is small whatever its label. Labels of several annotators tell more about such an example than p_y.
        """
        if self.annotators is not None:
            return log_odds(self.annotators.log_probs[rows], labels[rows])
        own = self.log_probs[rows].float().gather(1, labels[rows, None])[:, 0]
        return self.posterior_odds(rows, labels) + own

    def posterior_odds(self, rows: slice, labels: Tensor) -> Tensor:
        """Return ``log(p_y / sum_{c != y} p_c)`` (r,), where p is the posterior with g = ``label_weight`` + 0.15."""
        weight = min(1.0, self.label_weight + _QUALITY_EXTRA)
        log_probs, share, labels = self.log_probs[rows].float(), self.informative[rows], labels[rows]
        return log_odds(log_posterior(log_probs, labels, share, self.log_matrix, weight), labels)

    def correct(self, rows: slice, labels: Tensor, log_odds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the labels (r,) after correction, and the probability of each.

        A label is changed to the most likely other class c if that is more likely right than the label: if
        ``(1 - q) p_c > q``, where calibrated ``log_odds`` (r,) say that the label is right with probability q, and p_c
        is the probability of c among the other classes. Labels without a score stay. If classes are ordered, it is
        changed to the median of the distribution (q, (1 - q) p), which has the smallest expected distance.
        """
        others = self._others(rows, labels)
        labels = labels[rows]
        if self.ordinal:
            whole = (others * (-log_odds).sigmoid()[:, None]).scatter(1, labels[:, None], log_odds.sigmoid()[:, None])
            median = (whole.cumsum(1) >= _HALF).int().argmax(1).where(~log_odds.isnan(), labels)
            return median, whole.gather(1, median[:, None])[:, 0].nan_to_num(1.0).float()
        probs, most_likely = others.max(1)
        of_label, of_other = log_odds.sigmoid(), (-log_odds).sigmoid() * probs
        is_changed = of_other > of_label
        return most_likely.where(is_changed, labels), of_label.maximum(of_other).nan_to_num(1.0).float()

    def _others(self, rows: slice, labels: Tensor) -> Tensor:
        """Return the probabilities (r, k) of all classes but the label's, given that it is wrong."""
        others = self.posterior(rows, labels, self.label_weight).scatter(1, labels[rows, None], 0)
        return others / others.sum(1, keepdim=True).clamp(min=_TINY)

    def expected_error(self, rows: slice, labels: Tensor, log_odds: Tensor) -> Tensor:
        """Return the expected distance (r,) of labels from the true class: ``(1 - q) sum_c p_c |c - y|``."""
        classes = torch.arange(self.log_probs.shape[1], device=labels.device)
        distances = (classes - labels[rows, None]).abs()
        return (-log_odds).sigmoid() * (self._others(rows, labels) * distances).sum(1)

    def noise_rates(self, odds: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        """Return equally likely noise rates (q,) of the labels that are ``counted`` (n,), given log-odds (n,)."""
        if self.annotators is not None:
            known = odds[counted & ~odds.isnan()]
            rate = float(known.neg().sigmoid().double().mean()) if len(known) else 0.0
            return rate * torch.linspace(*_INACCURACY, QUANTILES, dtype=torch.float64)
        top, probs, _ = top_one(self.log_probs, labels)
        contradicted = (top != labels)[counted]
        pooled = lapse_rates(probs.double().logit()[counted], contradicted)
        networks = pooled if self.lapses is None else self.lapses.cpu()
        uniform = self.uniform_noise_rate * (1 - 1 / self.log_probs.shape[1])
        disputed = self._disputed(labels, counted & ~odds.isnan())
        share = float(contradicted.double().mean()) if len(contradicted) else 0.0
        evidence = feature_dependence(pooled, networks, self.confident, uniform)
        return noise_rates(pooled, networks, self.confident, evidence, uniform, disputed, share)

    def fit_scaling(self, odds: Tensor, labels: Tensor, counted: Tensor) -> PlattScaling:
        """Calibrate log-odds (n,) to the estimated noise rate of the labels that are ``counted`` (n,)."""
        return self.scaling_to(self.noise_rates(odds, labels, counted), odds, counted)

    def scaling_to(self, rates: Tensor, odds: Tensor, counted: Tensor) -> PlattScaling:
        """Calibrate log-odds (n,) to equally likely noise rates (q,) of the labels that are ``counted`` (n,)."""
        if self.annotators is not None:
            return calibrate(odds[counted], 1.0, rates)
        return calibrate(odds[counted], fit_slope(odds[counted], self.informative[counted]), rates)

    def _disputed(self, labels: Tensor, counted: Tensor) -> float:
        """Return the fraction of wrong labels if every doubtful label counted, among those where ``counted`` (n,)."""
        odds = torch.cat([self.posterior_odds(rows, labels) for rows in blocks(*self.log_probs.shape)])[counted]
        return disputed_fraction(odds, fit_slope(odds, self.informative[counted]))


def update_posterior(
    log_probs: Tensor,
    labels: Tensor,
    uniform_noise_rate: float,
    known: Tensor,
    confident: Confident,
    *,
    trust: float | None = None,
    steps: int = 1,
    progress: float = 1.0,
    ordinal: bool = False,
    broadcast: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> PosteriorState:
    """Estimate class prior, label weights and transition matrix.

    Args:
        log_probs: log p (n, k), which is overwritten.
        labels: y (n,).
        uniform_noise_rate: e.
        known: classes (k,) that the views can predict.
        confident: see :class:`PosteriorState`.
        trust: see :func:`prior_trust`, if known.
        steps: number of steps in which the prior is moved; this is one of them.
        progress: 0 at the end of the warm-up, where labels have full weight in targets, to 1 at the end of the run.
        ordinal: whether classes are ordered.
        broadcast: returns the tensor of the first process on every process.
    """
    share = informative_prob(log_probs, labels, uniform_noise_rate)
    wrong = disagreement(log_probs, labels, share)
    if trust is None:
        trust = prior_trust(log_probs, labels, uniform_noise_rate, known)
    offset = torch.zeros(log_probs.shape[1], device=log_probs.device)
    if trust < 1:
        prior = temper_prior(class_prior(log_probs), trust ** (1 / steps), known)
        offset = broadcast(fit_prior_offsets(log_probs, prior))
        for rows in blocks(*log_probs.shape):
            log_probs[rows] = _adjusted(log_probs[rows], offset)
    target, label = label_weights(uniform_noise_rate, wrong, log_probs.shape[1])
    target = 1 + (target - 1) * progress
    log_matrix = broadcast(estimate_transition(log_probs, labels, share, target, ordinal=ordinal))
    return PosteriorState(
        log_probs, share, log_matrix, offset, uniform_noise_rate, trust, target, label, confident, ordinal=ordinal
    )


def blocks(count: int, num_classes: int) -> Iterator[slice]:
    """Yield slices of a table of ``count`` rows and ``num_classes`` columns, each small enough for the cache."""
    size = max(1, min(BLOCK_ROWS, _BLOCK_VALUES // num_classes))
    for start in range(0, count, size):
        yield slice(start, start + size)


def top_one(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most likely class (n,), its probability (n,) and that of the label (n,), from log p (n, k)."""
    tops, top_probs, label_probs = [], [], []
    for rows in blocks(*log_probs.shape):
        probs = log_probs[rows].float().softmax(1)
        prob, top = probs.max(1)
        tops.append(top)
        top_probs.append(prob)
        label_probs.append(probs.gather(1, labels[rows, None])[:, 0])
    return torch.cat(tops), torch.cat(top_probs), torch.cat(label_probs)


def informative_prob(log_probs: Tensor, labels: Tensor, uniform_noise_rate: float) -> Tensor:
    """Return u (n,), the probability that each label is informative: ``(1 - e) p_y / ((1 - e) p_y + e / k)``.

    ``log_probs`` (n, k) predict given labels; see :func:`unflip.stats.odds.stack` for e.
    """
    own = (1 - uniform_noise_rate) * log_probs.gather(1, labels[:, None])[:, 0].float().exp()
    return own / (own + uniform_noise_rate / log_probs.shape[1] + _TINY)


def posterior(log_probs: Tensor, labels: Tensor, share: Tensor, log_matrix: Tensor, weight: float) -> Tensor:
    """Return P(true class | features, label) (n, k): ``(1 - u) p + u softmax(log p + g log M[:, y])``.

    With probability u = ``share`` (n,) a label is informative: then true class c has label y with probability M[c, y],
    and this evidence has weight g. Other labels carry no evidence.

    Args:
        log_probs: log p (n, k).
        labels: y (n,).
        share: u (n,).
        log_matrix: log M (k, k).
        weight: g.
    """
    moved = log_probs.add(log_matrix.T[labels], alpha=weight).softmax(1)
    return torch.lerp(log_probs.exp(), moved, share[:, None])


def log_posterior(log_probs: Tensor, labels: Tensor, share: Tensor, log_matrix: Tensor, weight: float) -> Tensor:
    """Return the logarithm (n, k) of :func:`posterior`, accurate where that rounds to 0 or 1."""
    moved = log_probs.add(log_matrix.T[labels], alpha=weight).log_softmax(1)
    share = share[:, None].clamp(max=1.0)
    return torch.logaddexp(log_probs + torch.log1p(-share), moved + share.log())


def disagreement(log_probs: Tensor, labels: Tensor, share: Tensor) -> float:
    """Return the fraction of informative labels (n,) that differ from the most likely class of log p (n, k)."""
    return float(((log_probs.argmax(1) != labels) * share).sum() / share.sum().clamp(min=1e-9))


def label_weights(uniform_noise_rate: float, wrong: float, num_classes: int) -> tuple[float, float]:
    """Return g in the last targets and for the final labels, at least 0.3 and 0.4, at most 1.

    Errors of the views are correlated between similar examples, and so are feature-dependent label errors: a label that
    agrees with its neighbors adds little evidence. Under uniform noise it adds more. So both weights increase with the
    fraction of disagreement that is due to uniform noise, ``f = b / (b + (1 - e) r)`` with ``b = e (1 - 1 / k)``, up to
    ``1 - 1.5 r``; r = ``wrong`` is the :func:`disagreement`.
    """
    uniform = uniform_noise_rate * (1 - 1 / num_classes)
    by_chance = uniform / (uniform + (1 - uniform_noise_rate) * wrong + 1e-9)
    target, label = (least + by_chance * max(0.0, 1 - _SLOPE * wrong - least) for least in _MIN_WEIGHTS)
    return target, label


def prior_trust(log_probs: Tensor, labels: Tensor, uniform_noise_rate: float, known: Tensor) -> float:
    """Return the fraction of the inequality of class sizes that is real, not caused by noise, from 0 to 1.

    Let π be the mean of p. If the true classes were equally frequent, p adjusted to a uniform prior would explain the
    given labels equally well, each under its best transition matrix. The loss of log-likelihood, relative to the
    inequality KL(π | uniform), is evidence of real inequality: below 0.15 none is trusted, above 0.25 all, linear
    between. Inequality within sampling error, below ``(k - 1) / (2 n (1 - e)²)`` nats, is not trusted.

    Args:
        log_probs: log p (n, k).
        labels: y (n,).
        uniform_noise_rate: e.
        known: classes (k,) that the views can predict; others are ignored.
    """
    count, num_classes = len(log_probs), int(known.sum())
    rows = evenly_spaced(count, max(_PRIOR_ROWS, _PRIOR_ROWS_PER_CLASS * log_probs.shape[1]), labels.device)
    if len(rows) < count:
        log_probs, labels, count = log_probs[rows], labels[rows], len(rows)
    mean = class_prior(log_probs)
    inequality = float((mean * (mean * num_classes).log() * known).sum())
    if inequality <= (num_classes - 1) / (2 * count * (1 - uniform_noise_rate) ** 2):
        return 0.0
    equal = temper_prior(mean, 0.0, known)
    fitted, offset = fit_transition(log_probs, labels, uniform_noise_rate), fit_prior_offsets(log_probs, equal)
    moved = fit_transition(log_probs, labels, uniform_noise_rate, offset)
    loss = fitted.log_likelihood - moved.log_likelihood
    return min(1.0, max(0.0, (loss / inequality - TRUST_LOW) / (TRUST_HIGH - TRUST_LOW)))


def temper_prior(prior: Tensor, exponent: float, known: Tensor) -> Tensor:
    """Return the class prior (k,) to the power of ``exponent``, normalized; classes not ``known`` (k,) keep theirs."""
    tempered = (exponent * prior.log()).masked_fill(~known, -torch.inf).softmax(0)
    return tempered * (1 - (prior * ~known).sum()) + prior * ~known


def fit_prior_offsets(log_probs: Tensor, prior: Tensor) -> Tensor:
    """Return log-offsets b (k,) such that the mean of ``softmax(log p + b)`` is ``prior`` (k,), by damped iteration.

    This adjusts a classifier to a new prior without labels (Saerens, Latinne and Decaestecker 2002). If there are too
    many probabilities to be kept in memory, each step computes them again. Then steps are accelerated, since fewer are
    needed; see :func:`_extrapolate`.
    """
    rows = evenly_spaced(len(log_probs), max(_PRIOR_ROWS, _PRIOR_ROWS_PER_CLASS * len(prior)), log_probs.device)
    target, fits = prior.clamp(min=_MIN_PROB).log(), len(rows) * len(prior) <= _PRIOR_VALUES
    parts = rows.split(len(rows) if fits else max(1, _BLOCK_VALUES // len(prior)))

    def probs_of(part: Tensor) -> Tensor:
        return log_probs[part].float().exp_().clamp_(min=_TINY)

    held = [probs_of(rows)] if fits else None
    offset = torch.zeros_like(target)
    past: list[tuple[Tensor, Tensor]] = []  # offsets and their errors, while steps are accelerated
    for _ in range(_MAX_STEPS):
        factors = offset.clamp(max=_MAX_OFFSET).exp()
        moved = torch.zeros_like(factors)
        for probs in held or map(probs_of, parts):
            moved += probs.T @ (1 / (probs @ factors))  # the sum of the softmax, at a tenth of its cost
        error = target - _normalized(factors * moved / len(rows)).log()
        if float(error.abs().max()) < _TOLERANCE:
            return offset + _STEP * error
        if fits:
            offset = offset + _STEP * error
        elif len(past) > 1 and float(error.norm()) > float(past[-1][1].norm()):
            offset, error = past[-1]  # the extrapolation went too far: take a step without it
            offset, past = offset + _STEP * error, []
        else:
            past = [*past, (offset, error)][-_PAST_STEPS:]
            offset = _extrapolate(past)
    return offset


def _extrapolate(past: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the next offsets (k,), from earlier ones x_1, ..., x_m and their errors f_1, ..., f_m, newest last.

    Anderson acceleration (Anderson 1965; Walker and Ni 2011) of the iteration ``x + 0.8 f``. It finds the weights w
    whose combination of error differences, ``sum_j w_j (f_(j+1) - f_j)``, is nearest to f_m, and subtracts the same
    combination of differences of ``x + 0.8 f``, at most 1 for any class.
    """
    offsets, errors = (torch.stack(part).double() for part in zip(*past, strict=True))
    steps = offsets + _STEP * errors
    differences = errors.diff(dim=0)
    products = differences @ differences.T
    products.diagonal().add_(_RIDGE * products.trace() + _TINY)  # differences may be linearly dependent
    weights = torch.linalg.solve(products, differences @ errors[-1])
    extrapolated: Tensor = steps[-1] - (weights @ steps.diff(dim=0)).clamp(-_MAX_MOVE, _MAX_MOVE)
    return extrapolated.float()


def class_prior(log_probs: Tensor) -> Tensor:
    """Return the mean of the class probabilities (k,), each at least 1e-6."""
    total = torch.stack([part.float().exp().sum(0) for part in log_probs.split(BLOCK_ROWS)]).sum(0)
    return _normalized(total / len(log_probs))


def _normalized(mean: Tensor) -> Tensor:
    mean = mean.clamp(min=_MIN_PROB)
    return mean / mean.sum()


class Transition(NamedTuple):
    """The most likely transition matrix, u of each label, and the mean log-likelihood."""

    log_matrix: Tensor
    informative: Tensor
    log_likelihood: float


def fit_transition(
    log_probs: Tensor, labels: Tensor, uniform_noise_rate: float, offset: Tensor | None = None
) -> Transition:
    """Fit a transition matrix to ``labels`` (n,) and log p (n, k) of true classes, under a uniform noise rate.

    Log-offsets (k,) adjust the class prior first; see :func:`fit_prior_offsets`.
    """
    share = torch.full((len(labels),), 1 - uniform_noise_rate, device=log_probs.device)
    for _ in range(3):
        log_matrix = estimate_transition(log_probs, labels, share, rounds=3, offset=offset)
        parts = [
            (_adjusted(log_probs[rows], offset) + log_matrix.T[labels[rows]]).logsumexp(1)
            for rows in blocks(*log_probs.shape)
        ]
        likelihood = torch.cat(parts).exp()
        own = (1 - uniform_noise_rate) * likelihood
        total = own + uniform_noise_rate / log_probs.shape[1] + _TINY
        share = own / total
    return Transition(log_matrix, share, float(total.log().mean()))


def _adjusted(log_probs: Tensor, offset: Tensor | None) -> Tensor:
    """Return log p (r, k) in single precision, after the class prior was adjusted by log-offsets (k,)."""
    return log_probs.float() if offset is None else (log_probs.float() + offset).log_softmax(1)


def estimate_transition(
    log_probs: Tensor,
    labels: Tensor,
    share: Tensor,
    weight: float = 1.0,
    rounds: int = _ROUNDS,
    offset: Tensor | None = None,
    *,
    ordinal: bool = False,
) -> Tensor:
    """Return log M (k, k), M[c, y] the probability of label y given true class c, by expectation maximization.

    E-step: ``q_i ∝ p_i M[:, y_i]^g``; M-step: ``M[c, y] ∝ 1 / k + [c = y] + sum_{i: y_i = y} u_i q_ic``. The added
    constants are a weak prior in favor of right labels. It starts from q = p. If classes are ordered, neighbors take
    the place of ``1 / k``: ``2^-|c - y|``, scaled to the sum 1 for each class.

    Args:
        log_probs: log p (n, k).
        labels: y (n,).
        share: u (n,).
        weight: g.
        rounds: number of iterations.
        offset: log-offsets (k,) that adjust the class prior first.
        ordinal: whether classes are ordered.
    """
    num_classes = log_probs.shape[1]
    log_matrix, constants = torch.empty(0), torch.full((num_classes, num_classes), 1 / num_classes)
    if ordinal:
        classes = torch.arange(num_classes)
        near = torch.exp2(-(classes[:, None] - classes).abs().float())
        constants = _NEIGHBORS * near / near.sum(1, keepdim=True)
    for number in range(rounds):
        counts = torch.zeros(num_classes, num_classes, device=log_probs.device)  # by label, then class
        for rows in blocks(*log_probs.shape):
            probs = _adjusted(log_probs[rows], offset)
            probs = probs.add(log_matrix.T[labels[rows]], alpha=weight).softmax(1) if number else probs.exp()
            counts.index_add_(0, labels[rows], probs * share[rows, None])
        matrix = counts.T.add(constants.to(counts.device))
        matrix.diagonal().add_(1)
        log_matrix = matrix.div_(matrix.sum(1, keepdim=True)).log_()
    return log_matrix
