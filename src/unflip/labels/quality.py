"""Label quality: how likely each given label is right, according to two views that make different errors."""

from torch import Tensor


def pooled(probs: Tensor, votes: Tensor) -> Tensor:
    """Return the logarithmic pool (n, k) of both views.

    The pool of class probabilities ``probs`` (n, k), a network's, and ``votes`` (n, k), the class Gaussians', is

        q_c = sqrt(p_c v_c) / sum_j sqrt(p_j v_j)

    with equal weights (Genest and Zidek 1986): it is sure only where both are, and a class that either rules out is
    ruled out. Where, after rounding, every class is ruled out by one of the two, all classes are equally likely.
    """
    log_pool = (probs.log() + votes.log()) / 2
    log_pool = log_pool.where(log_pool.isfinite().any(1, keepdim=True), 0.0)
    return log_pool.softmax(1)


def suggested_labels(given: Tensor, current: Tensor, pool: Tensor) -> Tensor:
    """Return labels to suggest to a person (n,): the current one where it changed, else the pool's most likely class.

    So even a method that changes few labels, or none, has a suggestion for the others.
    """
    return current.where(current != given, pool.argmax(1))
