"""corrupt: adds noise to the labels of loaded data; finds and checks the files and maps that a recipe needs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import read_array, read_npz
from unflip.data.dataset import Dataset
from unflip.data.options import CROSS_FIT, IN_SAMPLE, NoiseOptions
from unflip.errors import ConfigError, InputError, unknown
from unflip.noise.checks import check_posterior
from unflip.noise.corrupt import ClassRelations, corrupt
from unflip.noise.recipe import parse
from unflip.noise.transition import CIFAR100_SUPERCLASSES, NAMED_MAPS, resolve_map

_LISTED = 5  # most missing classes that an error lists


def needs_posterior(options: NoiseOptions) -> bool:
    """Whether the recipe has a step that draws from class probabilities."""
    return options.recipe is not None and parse(options.recipe).needs_posterior


def given_posterior(options: NoiseOptions, data: Dataset) -> Tensor | None:
    """Read the class probabilities (n, k) that the options name; None where they are to be estimated."""
    _check_unseen(data, options)
    if options.posterior in (CROSS_FIT, IN_SAMPLE):
        return None
    return check_posterior(read_posterior(Path(options.posterior)), len(data.given), data.num_classes)


def corrupt_labels(data: Dataset, options: NoiseOptions, posterior: Tensor | None, seed: int) -> Dataset:
    """Return the data with noisy labels by ``options.recipe``; the labels before it are the truth from now on.

    ``posterior`` (n, k) is what pmd steps draw from. The recipe is applied to the given labels of the training examples
    and, where the data is :meth:`joined`, of the validation examples that it came with. Where given labels come from
    another file and the truth is not known, it stays unknown. Noise that would invent classes is refused.
    """
    _check_unseen(data, options)
    made = corrupt(
        parse(options.recipe or ""),
        data.truth,
        num_classes=data.num_classes,
        seed=seed,
        posterior=posterior,
        base_labels=data.given,
        relations=_relations(options, data.num_classes, data.class_names, data.class_map),
    )
    clean = data.given if data.clean is None and data.own_labels else data.clean
    train = replace(data.train, labels=made.labels.numpy(), truth=None if clean is None else clean.numpy())
    clean_val = data.clean_val and not bool(data.is_val.any())  # those that were joined are noisy now
    return replace(data, train=train, clean_val=clean_val, noise_record=made.provenance)


def _check_unseen(data: Dataset, options: NoiseOptions) -> None:
    if data.unseen:
        missing = ", ".join(map(str, data.unseen[:_LISTED])) + (", ..." if len(data.unseen) > _LISTED else "")
        raise InputError(
            f"noise {options.recipe}: no label is {missing}, although others go up to {data.num_classes - 1}: noise "
            "would invent such classes; number the classes from 0 without gaps, or declare the missing ones "
            f"(train --set data.classes={data.num_classes})"
        )


def read_posterior(path: Path) -> Tensor:
    """Read class probabilities from an .npy file, or from the one array (or ``posterior``) of an .npz file."""
    arrays = read_npz(path) if path.suffix == ".npz" else {"posterior": read_array(path)}
    if "posterior" not in arrays and len(arrays) != 1:
        raise InputError(f"posterior {path}: no array 'posterior'; it holds {', '.join(sorted(arrays))}")
    array = arrays.get("posterior", next(iter(arrays.values())))
    if array.dtype.kind != "f":
        raise InputError(f"posterior {path}: type {array.dtype}; probabilities are float16, float32 or float64")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _relations(
    options: NoiseOptions, num_classes: int, class_names: Sequence[str] | None, default_map: str | None
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
    except (OSError, ValueError) as error:
        raise InputError(f"class map {path}: not a readable JSON file ({error})") from error
    if not isinstance(content, dict) or not all(isinstance(value, str | int) for value in content.values()):
        raise InputError(f'class map {path}: must be one object such as {{"cat": "dog", "dog": "cat"}}')
    return content
