"""Prior: are the classes unequal in truth, or did noise make them so?"""

import torch
from torch import Tensor

from unflip.labels.transition import explain
from unflip.stats.spread import spread

_LOW, _HIGH = 0.15, 0.25  # shares of explained inequality below which none, and above which all, is believed
_LEAST, _PER_CLASS = 10_000, 400  # examples that the question is asked of
_STEP, _STEPS, _CLOSE = 0.8, 200, 1e-3
_TINY = 1e-6
_LEAST_PROB, _MOST = 1e-30, 80.0  # of a probability and of an offset: what their products can hold
_ROWS = 4096  # examples at once; they fit in the cache


def believed_inequality(log_probs: Tensor, labels: Tensor, background: float, known: Tensor) -> float:
    """Return from 0 to 1 how much of the inequality of the classes is believed to be true.

    Let π be the mean of the probabilities p. If the classes were equal in truth, p moved to equal classes would explain
    the given labels as well, each under its best transition matrix. What it loses in log-likelihood, in units of the
    inequality KL(π | equal), speaks for true inequality: below 0.15 nothing of it is believed, above 0.25 all, between
    them a share. Both constants were chosen on data whose true classes were known. Inequality that so few examples show
    by chance, less than ``(k - 1) / (2 n (1 - e)²)`` nats, is not believed.

    Args:
        log_probs: log p (n, k), of views that have not seen the labels.
        labels: (n,).
        background: e, the share of labels drawn from all classes alike.
        known: which classes (k,) views can tell at all; of the others nothing is asked.
    """
    count, num_classes = len(log_probs), int(known.sum())
    rows = spread(count, max(_LEAST, _PER_CLASS * log_probs.shape[1]), labels.device)
    log_probs, labels, count = log_probs[rows].float(), labels[rows], len(rows)
    mean = class_shares(log_probs)
    inequality = float((mean * (mean * num_classes).log() * known).sum())
    if inequality <= (num_classes - 1) / (2 * count * (1 - background) ** 2):
        return 0.0
    equal = moved_shares(mean, 0.0, known)
    explained, offset = explain(log_probs, labels, background).likelihood, offsets_to(log_probs, equal)
    loss = explained - explain(log_probs.add_(offset).log_softmax(1), labels, background).likelihood
    return min(1.0, max(0.0, (loss / inequality - _LOW) / (_HIGH - _LOW)))


def moved_shares(shares: Tensor, exponent: float, known: Tensor) -> Tensor:
    """Return shares of classes (k,) to the power of ``exponent``, normalised; those that nobody knows (k,) stay."""
    wanted = (exponent * shares.log()).masked_fill(~known, -torch.inf).softmax(0)
    return wanted * (1 - (shares * ~known).sum()) + shares * ~known


def offsets_to(log_probs: Tensor, shares: Tensor) -> Tensor:
    """Return class offsets b (k,) after which the mean of ``softmax(log p + b)`` is ``shares`` (k,); damped iteration.

    This moves the prior of a classifier without its labels (Saerens, Latinne and Decaestecker 2002).
    """
    rows = spread(len(log_probs), max(_LEAST, _PER_CLASS * len(shares)), log_probs.device)
    probs, wanted = log_probs[rows].float().exp_().clamp_(min=_LEAST_PROB), shares.clamp(min=_TINY).log()
    offset = torch.zeros_like(wanted)
    for _ in range(_STEPS):
        factors = offset.clamp(max=_MOST).exp()
        moved = factors * (probs.T @ (1 / (probs @ factors)))  # the sum of the softmax, at a tenth of its cost
        missing = wanted - _shares(moved / len(rows)).log()
        offset = offset + _STEP * missing
        if float(missing.abs().max()) < _CLOSE:
            break
    return offset


def class_shares(log_probs: Tensor) -> Tensor:
    """Return the mean of probabilities (k,), each at least a millionth."""
    total = torch.stack([part.float().exp().sum(0) for part in log_probs.split(_ROWS)]).sum(0)
    return _shares(total / len(log_probs))


def _shares(mean: Tensor) -> Tensor:
    mean = mean.clamp(min=_TINY)
    return mean / mean.sum()
