"""Transition: from what a view that has not seen a label says of the class, and the label itself, to the true class."""

import torch
from torch import Tensor

_ROWS = 4096  # examples at once; they fit in the cache
_ROUNDS = 5


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
