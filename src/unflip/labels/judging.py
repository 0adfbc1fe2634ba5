"""Judging: from what views that have not seen the labels say, to better labels and how likely the given ones are right.

The constants were chosen on data whose true labels were known: no criterion from noisy labels alone was found.
"""

from typing import NamedTuple

from torch import Tensor

from unflip.labels.odds import calibrate, log_odds
from unflip.labels.prior import believed_inequality, class_shares, moved_shares, offsets_to
from unflip.labels.transition import estimate_transition, explained_noise, informative, log_posterior, posterior
from unflip.stats.stacking import pool, stack

_SLOPE = 1.5  # how fast disagreement lowers what a label counts
_LAST_WEIGHT = (0.3, 0.4)  # what a label counts least in the last targets, and for the final labels
_QUALITY_MORE = 0.15  # what a label counts beyond that for its quality


class Judged(NamedTuple):
    """The likeliest class of each example (n,), and calibrated log-odds that its given label is right (n,)."""

    labels: Tensor
    log_odds: Tensor

    @property
    def quality(self) -> Tensor:
        """How likely each given label is right (n,)."""
        return self.log_odds.sigmoid().float()


def judge(probs: Tensor, labels: Tensor) -> Judged:
    """Judge labels (n,) by class probabilities (n, k) of anybody's model that has not learnt them.

    The last step of :class:`unflip.methods.unflip.Unflip`, with these probabilities as its only view: sharpened or
    flattened until the labels are likeliest, the classes' sizes moved as far as noise may have made them unequal, then
    the posterior of the true class given probabilities *and* label under an estimated transition matrix.
    """
    view = probs.clamp(min=1e-30).log()
    stacked = stack([view], labels)
    log_probs = pool([view], stacked.weights)
    share = informative(log_probs, labels, stacked.background)
    wrong = disagreement(log_probs, labels, share)
    known = labels.bincount(minlength=probs.shape[1]) > 0
    inequality = believed_inequality(log_probs, labels, stacked.background, known)
    if inequality < 1:
        wanted = moved_shares(class_shares(log_probs), inequality, known)
        log_probs = (log_probs + offsets_to(log_probs, wanted)).log_softmax(1)
    target, weight = label_weights(stacked.background, wrong, probs.shape[1])
    log_matrix = estimate_transition(log_probs, labels, share, target)
    odds = label_odds(log_probs, labels, share, log_matrix, weight)
    calibration = calibrate(
        odds,
        share,
        explained=explained_noise(log_probs, labels, stacked.background),
        wrong=disagreement(log_probs, labels, share),
    )
    return Judged(posterior(log_probs, labels, share, log_matrix, weight).argmax(1), calibration.apply(odds))


def disagreement(log_probs: Tensor, labels: Tensor, share: Tensor) -> float:
    """Return the share of informative labels (n,) that the likeliest class of log-probabilities (n, k) contradicts."""
    return float(((log_probs.argmax(1) != labels) * share).sum() / share.sum().clamp(min=1e-9))


def label_weights(background: float, wrong: float, num_classes: int) -> tuple[float, float]:
    """Return what a given label counts in the last targets and for the final labels, at least 0.3 and 0.4, at most 1.

    The views' mistakes are alike for similar examples, and so are those of labels that depend on the features: there
    a label that agrees with its neighbours says little more than they do. A label that is wrong by chance says more. So
    both weights rise with the share of disagreement that is background, ``f = b / (b + (1 - e) r)`` with
    ``b = e (1 - 1 / k)``, to ``1 - 1.5 r``, r = ``wrong`` being the share of informative labels that views contradict.
    """
    spread = background * (1 - 1 / num_classes)
    by_chance = spread / (spread + (1 - background) * wrong + 1e-9)
    target, label = (least + by_chance * max(0.0, 1 - _SLOPE * wrong - least) for least in _LAST_WEIGHT)
    return target, label


def label_odds(log_probs: Tensor, labels: Tensor, share: Tensor, log_matrix: Tensor, weight: float) -> Tensor:
    """Return the log-odds that each label (m,) is right, ``log(p_y / sum_{c != y} p_c)``, to be calibrated.

    p is the posterior in which the label counts 0.15 more than ``weight``, which it has for the final labels.
    """
    return log_odds(log_posterior(log_probs, labels, share, log_matrix, min(1.0, weight + _QUALITY_MORE)), labels)
