"""Noise laid over a data set's labels: the files and maps that a recipe needs, found and checked."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unflip.data.array_files import read_array, read_npz
from unflip.data.source import Source
from unflip.errors import ConfigError, InputError, unknown
from unflip.noise.checks import check_posterior
from unflip.noise.corrupt import ClassRelations, corrupt
from unflip.noise.maps import CIFAR100_SUPERCLASSES, NAMED_MAPS, resolve_map
from unflip.noise.recipe import parse
from unflip.options import Options

CROSS_FIT, IN_SAMPLE = "cross-fit", "in-sample"

PosteriorEstimator = Callable[[Source, Tensor, int, str], Tensor]
"""(inputs, clean labels, number of classes, CROSS_FIT or IN_SAMPLE) -> class probabilities (n, k)."""


@dataclass(frozen=True)
class AddedNoise:
    """What a recipe did to a data set."""

    labels: Tensor
    provenance: dict[str, Any]
    posterior: Tensor | None
    """What the pmd step drew from (n, k)."""


class NoiseOptions(Options):
    """Noise to add, and what its recipe needs beside the labels."""

    recipe: str | None = None
    """Steps such as `pmd1:0.35 + sym:0.30`; none by default."""
    posterior: str = CROSS_FIT
    """For the pmd steps: an .npy or .npz file of class probabilities, or how to estimate them: cross-fit, in-sample."""
    class_map: str | None = None
    """For the asym steps: cifar10, cifar100, mnist, or a JSON file {"class": "taken for", ...}."""
    matrix: str | None = None
    """For the matrix step: an .npy file with a row-stochastic matrix."""


def add_noise(
    options: NoiseOptions,
    source: Source,
    clean: Tensor,
    *,
    base: Tensor | None,
    num_classes: int,
    class_names: list[str] | None,
    default_map: str | None,
    seed: int,
    estimate: PosteriorEstimator | None,
) -> AddedNoise:
    """Carry out a recipe on the labels ``base`` (by default the clean ones) of the examples in ``source``."""
    recipe = parse(options.recipe or "")
    relations = _relations(options, num_classes, class_names, default_map)
    posterior = None
    if recipe.needs_posterior:
        posterior = _posterior(options.posterior, source, clean, num_classes, estimate)
    made = corrupt(
        recipe, clean, num_classes=num_classes, seed=seed, posterior=posterior, base_labels=base, relations=relations
    )
    return AddedNoise(made.labels, made.provenance, posterior)


def _posterior(
    kind: str, source: Source, clean: Tensor, num_classes: int, estimate: PosteriorEstimator | None
) -> Tensor:
    if kind in (CROSS_FIT, IN_SAMPLE):
        if estimate is None:
            raise ConfigError("pmd noise needs posteriors; give a file with --posterior")
        return estimate(source, clean, num_classes, kind)
    return check_posterior(read_posterior(Path(kind)), len(clean), num_classes)


def read_posterior(path: Path) -> Tensor:
    """Read class probabilities from an .npy file, or from the one array (or ``posterior``) of an .npz file."""
    if path.suffix not in (".npy", ".npz"):
        raise InputError(
            f"posterior {path}: cannot read '{path.suffix}'; give .npy or .npz, or one of {CROSS_FIT}, {IN_SAMPLE}"
        )
    if path.suffix == ".npy":
        array = read_array(path)
    else:
        arrays = read_npz(path)
        if "posterior" not in arrays and len(arrays) != 1:
            raise InputError(f"posterior {path}: no array 'posterior'; it holds {', '.join(sorted(arrays))}")
        array = arrays.get("posterior", next(iter(arrays.values())))
    if array.dtype.kind != "f":
        raise InputError(f"posterior {path}: type {array.dtype}; probabilities are float16, float32 or float64")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _relations(
    options: NoiseOptions, num_classes: int, class_names: list[str] | None, default_map: str | None
) -> ClassRelations:
    name = options.class_map or default_map
    class_map = superclasses = matrix = None
    if name == "cifar100":
        superclasses = CIFAR100_SUPERCLASSES
    elif name in NAMED_MAPS:
        class_map = NAMED_MAPS[name]
    elif name is not None:
        class_map = resolve_map(_read_map(Path(name)), class_names or [str(i) for i in range(num_classes)])
    if options.matrix is not None:
        array = read_array(Path(options.matrix))
        if array.dtype.kind not in "fiu":
            raise InputError(f"matrix {options.matrix}: type {array.dtype}; a transition matrix holds numbers")
        matrix = torch.from_numpy(array.astype(np.float64))
    return ClassRelations(class_map=class_map, superclasses=superclasses, matrix=matrix)


def _read_map(path: Path) -> dict[str | int, str | int]:
    if path.suffix != ".json":
        raise ConfigError(unknown("class map", str(path), [*NAMED_MAPS, "cifar100", "FILE.json"]))
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"class map {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"class map {path}: not JSON ({error})") from error
    if not isinstance(content, dict) or not all(isinstance(value, str | int) for value in content.values()):
        raise InputError(f'class map {path}: must be one object such as {{"cat": "dog", "dog": "cat"}}')
    return content
