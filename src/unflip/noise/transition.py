"""Class-dependent noise: a row-stochastic matrix T with T_ij = P(noisy = j | label = i)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unflip.errors import InputError
from unflip.noise.checks import check_labels, check_level, check_matrix, check_same_length


def symmetric(num_classes: int, level: float) -> Tensor:
    """Return T_ij = eps / (k - 1) for i != j and T_ii = 1 - eps (the paper's section 4.2)."""
    check_level(level)
    matrix = torch.full((num_classes, num_classes), level / (num_classes - 1), dtype=torch.float64)
    return matrix.fill_diagonal_(1 - level)


def asymmetric(num_classes: int, level: float, mapping: Mapping[int, int]) -> Tensor:
    """Return T_ij = eps for every i -> j of ``mapping`` and T_ii = 1 - eps (the paper's section 4.2).

    Classes that the map does not name keep their labels.
    """
    check_level(level)
    if not mapping:
        raise InputError("the class map is empty; name at least one class and where its labels go")
    matrix = torch.eye(num_classes, dtype=torch.float64)
    for source, target in mapping.items():
        for class_id in (source, target):
            if not 0 <= class_id < num_classes:
                raise InputError(
                    f"the class map names class {class_id}; there are {num_classes} classes, 0 to {num_classes - 1}"
                )
        if source == target:
            raise InputError(f"the class map sends class {source} to itself; leave it out or name another class")
        matrix[source, source] = 1 - level
        matrix[source, target] = level
    return matrix


def pair(num_classes: int, level: float) -> Tensor:
    """Return the pair flip: T_ij = eps for j = i + 1 mod k and T_ii = 1 - eps."""
    return asymmetric(num_classes, level, {i: (i + 1) % num_classes for i in range(num_classes)})


def apply_matrix(labels: Tensor, matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Redraw each label independently from its row of ``matrix``: the inverse CDF of one uniform number per label."""
    matrix = check_matrix(matrix)
    labels = check_labels(labels, len(matrix))
    # Row i of the cumulative matrix lies in [i, i + 1], so one sorted vector of k * k values serves all rows.
    cumulative = matrix.cumsum(dim=1)
    offsets = torch.arange(len(matrix), dtype=torch.float64)
    steps = (cumulative / cumulative[:, -1:] + offsets[:, None]).flatten()
    # A float32 uniform added to a class id is exact in float64: it cannot be rounded up into the next row.
    uniform = torch.rand(len(labels), generator=generator, dtype=torch.float32)
    return torch.searchsorted(steps, labels + uniform.double(), right=True) - labels * len(matrix)


@dataclass(frozen=True)
class NoiseProfile:
    """The noise in labels, measured against clean ones."""

    rate: float
    """Share of labels that are wrong."""
    class_rates: Tensor
    """(k,) the same, among the examples of each clean class; 0 for a class without examples."""
    class_counts: Tensor
    """(k,) examples of each clean class."""
    matrix: Tensor
    """(k, k) shares of noisy class j among clean class i; the identity's row for a class without examples."""


def measure_noise(clean_labels: Tensor, noisy_labels: Tensor, num_classes: int) -> NoiseProfile:
    """Measure the noise in ``noisy_labels``.

    A class without examples gets the identity's row, so that the matrix stays row-stochastic and free of NaN;
    ``class_counts`` shows which classes are empty.
    """
    clean = check_labels(clean_labels, num_classes, what="clean labels")
    noisy = check_labels(noisy_labels, num_classes, what="noisy labels")
    check_same_length(noisy, clean, what="noisy labels")
    counts = torch.bincount(clean * num_classes + noisy, minlength=num_classes**2)
    counts = counts.reshape(num_classes, num_classes)  # (clean, noisy)
    class_counts = counts.sum(dim=1)
    matrix = counts.double() / class_counts.clamp(min=1)[:, None]
    empty = (class_counts == 0).nonzero()[:, 0]
    matrix[empty, empty] = 1.0
    return NoiseProfile(
        rate=1 - int(counts.trace()) / len(clean),
        class_rates=1 - matrix.diagonal(),
        class_counts=class_counts,
        matrix=matrix,
    )
