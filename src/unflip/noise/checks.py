"""Validation of labels, noise levels, transition matrices and posteriors."""

import torch
from torch import Tensor

from unflip.errors import InputError

_MATRIX_TOLERANCE = 1e-6  # of row sums, enough for float32
_POSTERIOR_TOLERANCE = 1e-3  # of row sums, enough for float16


def check_level(level: float) -> float:
    """Return ``level`` if it is a fraction strictly between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"noise level {level:g} is outside (0, 1)")
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
    """Raise InputError if two label vectors differ in length."""
    if len(labels) != len(reference):
        raise InputError(f"{what}: {len(labels)} labels for {len(reference)} clean ones")


def check_matrix(matrix: Tensor, num_classes: int | None = None) -> Tensor:
    """Return ``matrix`` as float64 with rows that sum to one, if it is square and row-stochastic (to 1e-6)."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"transition matrix has shape {tuple(matrix.shape)}; it must be square")
    if num_classes is not None and len(matrix) != num_classes:
        raise InputError(f"transition matrix is for {len(matrix)} classes; the data have {num_classes}")
    matrix = matrix.detach().cpu().double()
    outside = ~((matrix >= 0) & matrix.isfinite())  # NaN, too
    if outside.any():
        row, column = outside.nonzero()[0].tolist()
        raise InputError(
            f"transition matrix: row {row}, column {column} is {float(matrix[row, column]):g}; it must be at least 0"
        )
    sums = matrix.sum(dim=1)
    wrong = (sums - 1).abs() > _MATRIX_TOLERANCE
    if wrong.any():
        row = int(wrong.int().argmax())
        raise InputError(f"transition matrix: row {row} sums to {float(sums[row]):.8g}; every row must sum to 1")
    return matrix / sums[:, None]


def check_posterior(posterior: Tensor, num_examples: int, num_classes: int) -> Tensor:
    """Return ``posterior`` (n, k) on the CPU if every row is a probability distribution."""
    if posterior.shape != (num_examples, num_classes):
        raise InputError(f"posterior has shape {tuple(posterior.shape)}; expected ({num_examples}, {num_classes})")
    if not posterior.is_floating_point():
        raise InputError(f"posterior is {posterior.dtype}; expected floating-point probabilities")
    posterior = posterior.detach().cpu()
    if posterior.dtype not in (torch.float32, torch.float64):
        posterior = posterior.float()
    sums, smallest = posterior.sum(dim=1), posterior.amin(dim=1)
    good = ((sums - 1).abs() <= _POSTERIOR_TOLERANCE) & (smallest >= 0)  # False for NaN
    if not good.all():
        row = int((~good).int().argmax())
        raise InputError(
            f"posterior: row {row} sums to {float(sums[row]):.6g}, its smallest value is {float(smallest[row]):g}; "
            "rows must sum to 1 within 0.001 and not be negative (apply softmax to logits)"
        )
    return posterior
