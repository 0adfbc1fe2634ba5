"""Class-dependent noise: a row-stochastic matrix T with T_ij = P(noisy = j | label = i).

Matrices by formula, sampling, and the checks of labels and matrices; below, the class maps of asymmetric
noise: those of common data sets, and within superclasses.
"""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files

import torch
from torch import Tensor

from unflip.errors import InputError

_TOLERANCE = 1e-6  # of row sums, enough for float32


def symmetric(num_classes: int, level: float) -> Tensor:
    """Return T_ij = eps / (k - 1) for i != j and T_ii = 1 - eps (the paper's section 4.2)."""
    matrix = torch.full((num_classes, num_classes), level / (num_classes - 1), dtype=torch.float64)
    return matrix.fill_diagonal_(1 - level)


def asymmetric(num_classes: int, level: float, mapping: Mapping[int, int]) -> Tensor:
    """Return T_ij = eps for every i -> j of ``mapping`` and T_ii = 1 - eps (the paper's section 4.2).

    Classes that are not in the map keep their labels.
    """
    if not mapping:
        raise InputError("the class map is empty")
    matrix = torch.eye(num_classes, dtype=torch.float64)
    for wrong in {*mapping, *mapping.values()} - {*range(num_classes)}:
        raise InputError(f"the class map names class {wrong}; there are {num_classes} classes, 0 to {num_classes - 1}")
    for source, target in mapping.items():
        if source == target:
            raise InputError(f"the class map sends class {source} to itself")
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


def check_labels(labels: Tensor, num_classes: int, *, what: str = "labels", clean: Tensor | None = None) -> Tensor:
    """Return ``labels`` as int64 on the CPU if they are (n,) integers from 0 to k - 1, as many as ``clean``."""
    if num_classes < 2:
        raise InputError(f"num_classes is {num_classes}; label noise needs at least 2 classes")
    if labels.ndim != 1 or len(labels) == 0:
        raise InputError(f"{what} have shape {tuple(labels.shape)}; expected one label per example, (n,)")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{what} are {labels.dtype}; expected integer class ids 0 to {num_classes - 1}")
    if clean is not None and len(labels) != len(clean):
        raise InputError(f"{what}: {len(labels)} labels for {len(clean)} examples")
    labels = labels.detach().cpu().long()
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        row = int(outside.int().argmax())
        known = f"there are {num_classes} classes, 0 to {num_classes - 1}"
        raise InputError(f"{what}: row {row} holds class {int(labels[row])}; {known}")
    return labels


def check_matrix(matrix: Tensor, num_classes: int | None = None) -> Tensor:
    """Return ``matrix`` as float64 with rows that sum to one, if it is square and row-stochastic (to 1e-6)."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"transition matrix has shape {tuple(matrix.shape)}; it must be square")
    if num_classes is not None and len(matrix) != num_classes:
        raise InputError(f"transition matrix is for {len(matrix)} classes; the data have {num_classes}")
    matrix = matrix.detach().cpu().double()
    check_distributions(matrix, "transition matrix", _TOLERANCE)
    return matrix / matrix.sum(dim=1)[:, None]


def check_distributions(rows: Tensor, what: str, tolerance: float) -> None:
    """Raise InputError if one of the rows (n, k) is not a probability distribution."""
    sums, smallest = rows.sum(dim=1), rows.amin(dim=1)
    good = ((sums - 1).abs() <= tolerance) & (smallest >= 0)  # False for NaN
    if not good.all():
        row = int((~good).int().argmax())
        told = f"{what}: row {row} sums to {float(sums[row]):.7g}, its smallest value is {float(smallest[row]):g}"
        raise InputError(f"{told}; rows must sum to 1 within {tolerance:g} and not be negative")


NAMED_MAPS: dict[str, dict[int, int]] = {
    # truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog (the paper's section 4.2)
    "cifar10": {9: 1, 2: 0, 4: 7, 3: 5, 5: 3},
    # 7 -> 1, 2 -> 7, 5 <-> 6, 3 -> 8 (Patrini et al. 2017)
    "mnist": {7: 1, 2: 7, 5: 6, 6: 5, 3: 8},
}
"""Class maps of asymmetric noise, by data set."""

CIFAR100_CLASSES: dict[str, list[str]] = tomllib.loads(files(__package__).joinpath("cifar100.toml").read_text("utf-8"))
"""The 100 classes of CIFAR-100 by superclass; ids of classes and superclasses are in alphabetical order."""

_SUPERCLASS_OF = {name: number for number, names in enumerate(CIFAR100_CLASSES.values()) for name in names}
CIFAR100_SUPERCLASSES: tuple[int, ...] = tuple(_SUPERCLASS_OF[name] for name in sorted(_SUPERCLASS_OF))
"""The superclass (0 to 19) of each of the 100 classes of CIFAR-100."""


def pairs_map(superclasses: Sequence[int], generator: torch.Generator) -> dict[int, int]:
    """Draw two classes in every superclass, which are swapped (the paper's section 4.2)."""
    mapping: dict[int, int] = {}
    for classes in _groups(superclasses):
        first, second = (classes[i] for i in torch.randperm(len(classes), generator=generator)[:2].tolist())
        mapping |= {first: second, second: first}
    return mapping


def cycle_map(superclasses: Sequence[int]) -> dict[int, int]:
    """Send every class to the next in its superclass, the last to the first."""
    return {
        source: target
        for classes in _groups(superclasses)
        for source, target in zip(classes, classes[1:] + classes[:1], strict=True)
    }


def _groups(superclasses: Sequence[int]) -> list[list[int]]:
    """Return the classes of each superclass, by id, without superclasses of a single class."""
    groups: dict[int, list[int]] = {}
    for class_id, superclass in enumerate(superclasses):
        groups.setdefault(superclass, []).append(class_id)
    return [groups[superclass] for superclass in sorted(groups) if len(groups[superclass]) > 1]
