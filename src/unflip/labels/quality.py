"""Label quality: how likely each given label is right, by two views that err differently."""

from torch import Tensor


def pooled(probs: Tensor, votes: Tensor) -> Tensor:
    """Return the logarithmic pool (n, k) of both views.

    The pool of class probabilities ``probs`` (n, k), a network's, and ``votes`` (n, k), the class Gaussians', is

        q_c = sqrt(p_c v_c) / sum_j sqrt(p_j v_j)

    with equal weights (Genest and Zidek 1986): it is sure only where both are, and what one of them rules out is ruled
    out. Where each rules out what the other allows, as rounding may, all classes are as likely.
    """
    log_pool = (probs.log() + votes.log()) / 2
    log_pool = log_pool.where(log_pool.isfinite().any(1, keepdim=True), 0.0)
    return log_pool.softmax(1)


def label_quality(given: Tensor, probs: Tensor, votes: Tensor) -> Tensor:
    """Return for each example the share (n,) that its given label has in the pool of both views."""
    return pooled(probs, votes).gather(1, given[:, None])[:, 0]


def suggested_labels(given: Tensor, current: Tensor, probs: Tensor, votes: Tensor) -> Tensor:
    """Return what to propose to a person (n,): the current label where it was changed, else the likeliest of the pool.

    A method that changes few labels, or none, so has something to propose for the others too.
    """
    return current.where(current != given, pooled(probs, votes).argmax(1))
