"""Apply a noise recipe to labels, with a record of how the noisy labels were made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

import unflip.noise.transition as transition
from unflip.compute import generator
from unflip.errors import ConfigError, InputError
from unflip.noise.pmd import check_posterior, pmd
from unflip.noise.recipe import Recipe, Step, parse

T = TypeVar("T")

_FORMULAS = {"sym": transition.symmetric, "pair": transition.pair}
_DIGITS = 6  # decimals of rates in the record


@dataclass(frozen=True)
class NoisyLabels:
    """Noisy labels.

    Attributes:
        labels: (n,) int64.
        provenance: JSON-serializable record of recipe, seed, steps and resulting noise.
    """

    labels: Tensor
    provenance: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClassRelations:
    """Relations between classes, for the steps ``asym``, ``asym-pairs``, ``asym-cycle`` and ``matrix``.

    Attributes:
        class_map: the noisy class of each class, by id.
        superclasses: the superclass of each class.
        matrix: (k, k), row-stochastic.
    """

    class_map: Mapping[int, int] | None = None
    superclasses: Sequence[int] | None = None
    matrix: Tensor | None = None


def corrupt_labels(
    labels: Tensor,
    recipe: str,
    *,
    posterior: Tensor | None = None,
    num_classes: int | None = None,
    seed: int = 0,
    relations: ClassRelations | None = None,
) -> Tensor:
    """Return noisy labels (n,), on the device of ``labels``.

    Args:
        labels: the true labels (n,), 0 to k - 1.
        recipe: steps such as ``"pmd1:0.35 + sym:0.30"``; docs/noise.md lists all steps.
        posterior: class probabilities (n, k) from a model trained on the true labels, needed for pmd steps.
        num_classes: k; by default the number of columns of ``posterior``, or else the largest label + 1.
        seed: random seed.
        relations: class map, superclasses or matrix, needed for ``asym`` and ``matrix`` steps.

    >>> corrupt_labels(torch.arange(8) % 2, "sym:0.25", seed=1)
    tensor([0, 1, 0, 1, 0, 1, 0, 0])
    """
    labels, posterior = torch.as_tensor(labels), None if posterior is None else torch.as_tensor(posterior)
    if num_classes is None:
        num_classes = posterior.shape[1] if posterior is not None else int(labels.max()) + 1 if len(labels) else 0
    noisy = corrupt(parse(recipe), labels, num_classes=num_classes, seed=seed, posterior=posterior, relations=relations)
    return noisy.labels.to(labels.device)


def corrupt(
    recipe: Recipe,
    clean_labels: Tensor,
    *,
    num_classes: int,
    seed: int,
    posterior: Tensor | None = None,
    base_labels: Tensor | None = None,
    relations: ClassRelations | None = None,
) -> NoisyLabels:
    """Apply the steps of a recipe to labels, in order.

    Every step draws from its own generator, derived from the seed, its position and its name. A PMD step redraws every
    label, so it cannot be applied to noisy labels.

    Args:
        recipe: the steps, from :func:`unflip.noise.recipe.parse`.
        clean_labels: the true labels (n,).
        num_classes: k.
        seed: random seed.
        posterior: class probabilities (n, k), for PMD steps.
        base_labels: labels (n,) to which the first step is applied; by default the clean ones.
        relations: class map, superclasses or matrix, for ``asym`` and ``matrix`` steps.
    """
    clean = transition.check_labels(clean_labels, num_classes, what="clean labels")
    labels = clean
    if base_labels is not None:
        labels = transition.check_labels(base_labels, num_classes, what="base labels", clean=clean)
    steps: list[dict[str, Any]] = []
    for position, step in enumerate(recipe.steps):
        draws = generator(seed, "noise", position, step.name)
        if step.pmd_kind is not None:
            labels, details = _pmd_step(step, clean, labels, posterior, num_classes, draws)
        else:
            labels, details = _class_step(step, labels, relations or ClassRelations(), num_classes, draws)
        steps.append({"step": str(step), "asked": step.level} | details | {"noise_rate": _share(labels != clean)})

    provenance = {
        "recipe": str(recipe),
        "seed": seed,
        "num_examples": len(clean),
        "num_classes": num_classes,
        "steps": steps,
        "noise_rate": _share(labels != clean),
    }
    return NoisyLabels(labels, provenance)


def _pmd_step(
    step: Step, clean: Tensor, labels: Tensor, posterior: Tensor | None, num_classes: int, draws: torch.Generator
) -> tuple[Tensor, dict[str, Any]]:
    assert step.pmd_kind is not None
    assert step.level is not None
    if not torch.equal(labels, clean):
        raise ConfigError(f"the noise step {step} redraws every label; use sym, asym, pair or matrix on noisy labels")
    posterior = _needed(posterior, step, "posteriors")
    posterior = check_posterior(posterior, len(clean), num_classes)
    drawn, factor, expected = pmd(clean, posterior, kind=step.pmd_kind, level=step.level, generator=draws)
    return drawn, {"realized": _share(drawn != clean), "expected": round(expected, _DIGITS), "factor": factor}


def _class_step(
    step: Step, labels: Tensor, relations: ClassRelations, num_classes: int, draws: torch.Generator
) -> tuple[Tensor, dict[str, Any]]:
    details: dict[str, Any] = {}
    if step.level is None:
        matrix = _needed(relations.matrix, step, "a transition matrix", "--matrix FILE.npy", "matrix=FILE.npy")
        matrix = transition.check_matrix(matrix, num_classes)
    elif step.name in _FORMULAS:
        matrix = _FORMULAS[step.name](num_classes, step.level)
    else:
        class_map = _class_map(step, relations, num_classes, draws)
        matrix = transition.asymmetric(num_classes, step.level, class_map)
        details["class_map"] = {str(source): target for source, target in sorted(class_map.items())}
    noisy = transition.apply_matrix(labels, matrix, draws)
    # The realized level: the share of changed labels among the classes that the step can change.
    may_change = (matrix.diagonal() < 1)[labels]
    return noisy, {"realized": _share((noisy != labels)[may_change])} | details


def _class_map(step: Step, relations: ClassRelations, num_classes: int, draws: torch.Generator) -> Mapping[int, int]:
    by_map = step.name == "asym"
    if by_map and relations.class_map is not None:
        return relations.class_map
    what, value = ("a class map or superclasses", "FILE.json") if by_map else ("superclasses", "cifar100")
    superclasses = _needed(relations.superclasses, step, what, f"--class-map {value}", f"class_map={value}")
    if len(superclasses) != num_classes:
        raise InputError(f"superclasses of {len(superclasses)} classes; the data have {num_classes}")
    if step.name == "asym-cycle":
        return transition.cycle_map(superclasses)
    return transition.pairs_map(superclasses, draws)


def _needed(value: T | None, step: Step, what: str, flag: str | None = None, key: str | None = None) -> T:
    """Return ``value``, or raise ConfigError with the flag of `corrupt` and the key of `train` that set it."""
    if value is None:
        hint = f"; corrupt takes {flag}, train takes --set noise.{key}" if flag else ""
        raise ConfigError(f"the noise step {step} needs {what}; none given{hint}")
    return value


def _share(flags: Tensor) -> float:
    return round(float(flags.double().mean()), _DIGITS) if len(flags) else 0.0
