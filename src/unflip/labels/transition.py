"""Transition: from what a view that has not seen a label says of the class, and the label itself, to the true class."""

from typing import NamedTuple

import torch
from torch import Tensor

from unflip.stats.spread import spread

_ROWS = 4096  # examples at once; they fit in the cache
_ROUNDS = 5
_LEAST, _PER_CLASS = 4000, 100  # examples that tell how much noise depends on classes
_SHARPER = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2)


def informative(log_probs: Tensor, labels: Tensor, background: float) -> Tensor:
    """Return how likely each label (n,) is no background label, ``(1 - e) p_y / ((1 - e) p_y + e / k)``.

    ``log_probs`` (n, k) are of given labels, ``background`` is e, the share of labels drawn from all classes alike; see
    :func:`unflip.stats.stacking.stack`.
    """
    own = (1 - background) * log_probs.gather(1, labels[:, None])[:, 0].float().exp()
    return own / (own + background / log_probs.shape[1] + 1e-30)


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


def explained_noise(log_probs: Tensor, labels: Tensor, background: float) -> float:
    """Return the share of labels (n,) that are wrong if noise depends on classes alone: so much labels can tell.

    It is the mean of ``1 - P(true class = label)`` under the transition matrix M and the sharpness t that explain the
    labels best, ``(1 - e) sum_c softmax(t log p)_c M[c, y] + e / k``, where the label's evidence counts in full. Views
    that learnt noisy labels are less sure than of true ones, hence t, from 1 to 3.2. Where noise follows the features
    the result is too low: such noise looks like ambiguity.

    Args:
        log_probs: log p (n, k), of views that have not seen the labels.
        labels: y (n,).
        background: e, the share of labels drawn from all classes alike.
    """
    rows = spread(len(labels), max(_LEAST, _PER_CLASS * log_probs.shape[1]), labels.device)
    log_probs, labels = log_probs[rows].float(), labels[rows]
    best, noise = -torch.inf, 0.0
    for sharpness in _SHARPER:
        sharper = (sharpness * log_probs).log_softmax(1)
        explained = explain(sharper, labels, background)
        if explained.likelihood <= best:
            break
        best = explained.likelihood
        believed = posterior(sharper, labels, explained.share, explained.log_matrix, 1.0)
        noise = float(1 - believed.gather(1, labels[:, None]).mean())
    return noise


class Explained(NamedTuple):
    """The transition matrix that explains labels best, how likely each is informative, their mean log-likelihood."""

    log_matrix: Tensor
    share: Tensor
    likelihood: float


def explain(log_probs: Tensor, labels: Tensor, background: float) -> Explained:
    """Explain ``labels`` (n,) by true classes with log-probabilities (n, k), a transition matrix and background."""
    share = log_probs.new_full((len(labels),), 1 - background)
    for _ in range(3):
        log_matrix = estimate_transition(log_probs, labels, share, rounds=3)
        parts = zip(log_probs.split(_ROWS), labels.split(_ROWS), strict=True)
        likelihood = torch.cat([(part + log_matrix.T[given]).logsumexp(1) for part, given in parts]).exp()
        own = (1 - background) * likelihood
        share = own / (own + background / log_probs.shape[1] + 1e-30)
    return Explained(log_matrix, share, float((own + background / log_probs.shape[1] + 1e-30).log().mean()))


def estimate_transition(
    log_probs: Tensor, labels: Tensor, share: Tensor, weight: float = 1.0, rounds: int = _ROUNDS
) -> Tensor:
    """Return log M (k, k), the chance that an informative label of true class c reads y, by expectation maximisation.

    E-step: ``q_i ∝ p_i M[:, y_i]^g``; M-step: ``M[c, y] ∝ 1 / k + [c = y] + sum_{i: y_i = y} u_i q_ic``. The added
    constants are a weak prior on labels being right. It starts from q = p.

    Args:
        log_probs: log p (n, k), of views that have not seen the labels.
        labels: y (n,).
        share: u (n,), how likely each label is informative.
        weight: g, how much a label's evidence counts.
        rounds: of both steps.
    """
    num_classes = log_probs.shape[1]
    log_matrix: Tensor | None = None
    for _ in range(rounds):
        counts = torch.zeros(num_classes, num_classes, device=log_probs.device)  # by label, then class
        for start in range(0, len(labels), _ROWS):
            rows = slice(start, start + _ROWS)
            belief = log_probs[rows].float()
            if log_matrix is not None:
                belief = belief.add(log_matrix.T[labels[rows]], alpha=weight).softmax(1)
            else:
                belief = belief.exp()
            counts.index_add_(0, labels[rows], belief * share[rows, None])
        matrix = counts.T + 1 / num_classes + torch.eye(num_classes, device=counts.device)
        log_matrix = (matrix / matrix.sum(1, keepdim=True)).log()
    assert log_matrix is not None
    return log_matrix
