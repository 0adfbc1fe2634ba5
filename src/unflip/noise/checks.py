"""Checks of what noise is made from: labels, levels, matrices and posteriors."""

import torch
from torch import Tensor

from unflip.errors import InputError

ROW_SUM_TOLERANCE = 1e-6
"""How far the sum of a row of a transition matrix may be from one; float32 files stay well below."""

POSTERIOR_SUM_TOLERANCE = 1e-3
"""How far the sum of a row of posteriors may be from one; float16 files stay below."""


def check_level(level: float) -> float:
    """Return ``level`` if it is a fraction strictly between 0 and 1."""
    if not 0 < level < 1:
        hint = f"; levels are fractions, try {level / 100:g}" if 1 < level < 100 else ""
        raise InputError(f"noise level {level:g} is outside (0, 1){hint}")
    return level


def check_labels(labels: Tensor, num_classes: int, *, what: str = "labels") -> Tensor:
    """Return ``labels`` as int64 on the CPU if they are (n,) integers in 0..num_classes-1."""
    if num_classes < 2:
        raise InputError(f"num_classes is {num_classes}; label noise needs at least 2 classes")
    if labels.ndim != 1 or len(labels) == 0:
        raise InputError(f"{what} have shape {tuple(labels.shape)}; expected one label per example, (n,)")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{what} are {labels.dtype}; expected integer class ids 0 to {num_classes - 1}")
    labels = labels.detach().cpu().long()
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        row = int(outside.int().argmax())
        raise InputError(
            f"{what}: row {row} holds class {int(labels[row])}; there are {num_classes} classes, 0 to {num_classes - 1}"
        )
    return labels


def check_same_length(labels: Tensor, reference: Tensor, *, what: str) -> None:
    """Refuse label vectors of different lengths."""
    if len(labels) != len(reference):
        raise InputError(f"{what}: {len(labels)} labels for {len(reference)} clean ones; give one for each")


def check_matrix(matrix: Tensor, num_classes: int | None = None) -> Tensor:
    """Return ``matrix`` as float64 with rows that sum to one, if it is square and row-stochastic (to 1e-6)."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"transition matrix has shape {tuple(matrix.shape)}; it must be square")
    if num_classes is not None and len(matrix) != num_classes:
        raise InputError(f"transition matrix is for {len(matrix)} classes; the data have {num_classes}")
    matrix = matrix.detach().cpu().double()
    if not matrix.isfinite().all():
        row, column = (~matrix.isfinite()).nonzero()[0].tolist()
        raise InputError(
            f"transition matrix: row {row}, column {column} holds {float(matrix[row, column])}; "
            "probabilities must be finite"
        )
    if (matrix < 0).any():
        row, column = (matrix < 0).nonzero()[0].tolist()
        raise InputError(
            f"transition matrix: row {row}, column {column} holds {float(matrix[row, column]):g}; "
            "probabilities must not be negative"
        )
    sums = matrix.sum(dim=1)
    wrong = (sums - 1).abs() > ROW_SUM_TOLERANCE
    if wrong.any():
        row = int(wrong.int().argmax())
        raise InputError(
            f"transition matrix: row {row} sums to {float(sums[row]):.8g}; every row must sum to 1 "
            "(row i says where labels of class i go)"
        )
    return matrix / sums[:, None]


def check_posterior(posterior: Tensor, num_examples: int, num_classes: int) -> Tensor:
    """Return ``posterior`` on the CPU if it holds one distribution over the classes for every example."""
    if posterior.ndim != 2 or posterior.shape[0] != num_examples or posterior.shape[1] != num_classes:
        raise InputError(
            f"posterior has shape {tuple(posterior.shape)}; expected ({num_examples}, {num_classes}), "
            "one row per example and one column per class"
        )
    if not posterior.is_floating_point():
        raise InputError(f"posterior is {posterior.dtype}; expected floating-point probabilities")
    posterior = posterior.detach().cpu()
    if posterior.dtype not in (torch.float32, torch.float64):
        posterior = posterior.float()
    sums = posterior.sum(dim=1)
    smallest = posterior.amin(dim=1)
    # This finds NaN too, since every comparison with NaN is false.
    good = ((sums - 1).abs() <= POSTERIOR_SUM_TOLERANCE) & (smallest >= 0)
    if not good.all():
        row = int((~good).int().argmax())
        raise InputError(_posterior_problem(row, posterior[row]))
    return posterior


def _posterior_problem(row: int, probs: Tensor) -> str:
    for problem, hint in (
        (~probs.isfinite(), "probabilities must be finite"),
        (probs < 0, "probabilities must not be negative; apply softmax to logits first"),
    ):
        if problem.any():
            column = int(problem.int().argmax())
            return f"posterior: row {row}, class {column} holds {float(probs[column]):g}; {hint}"
    return f"posterior: row {row} sums to {float(probs.sum()):.6g}; every row must sum to 1 within 0.001"
