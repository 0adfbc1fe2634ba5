"""corrupt: adds noise to the labels of a data set; reads the files and class maps that a recipe needs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import read_array, read_npz, refuse_rows
from unflip.data.dataset import Dataset
from unflip.data.files import read_text
from unflip.data.options import CROSS_FIT, IN_SAMPLE, NoiseOptions
from unflip.errors import ConfigError, InputError, unknown
from unflip.noise.corrupt import ClassRelations, corrupt
from unflip.noise.recipe import parse
from unflip.noise.transition import CIFAR100_SUPERCLASSES, NAMED_MAPS


def needs_posterior(options: NoiseOptions) -> bool:
    """Whether the recipe has a step that draws from class probabilities."""
    return options.recipe is not None and parse(options.recipe).needs_posterior


def given_posterior(options: NoiseOptions) -> Tensor | None:
    """Read the class probabilities (n, k) that the options name; None if they are to be estimated."""
    return None if options.posterior in (CROSS_FIT, IN_SAMPLE) else read_posterior(Path(options.posterior))


def corrupt_labels(data: Dataset, options: NoiseOptions, posterior: Tensor | None, seed: int) -> Dataset:
    """Return the data with noisy labels by ``options.recipe``; the labels before it become the true ones.

    Noise is added to the given labels of the training examples and, if the data is :meth:`joined`, of its validation
    examples. If the given labels come from another file and the true ones are unknown, these stay unknown.

    Args:
        data: labeled data.
        options: the recipe, and the files that it needs.
        posterior: class probabilities (n, k) for pmd steps.
        seed: of the noise.
    """
    refuse_rows(data.given.numpy() < 0, data.name, lambda _: "no label; noise needs a label in every row")
    made = corrupt(
        parse(options.recipe or ""),
        data.truth,
        num_classes=data.num_classes,
        seed=seed,
        posterior=posterior,
        base_labels=data.given,
        relations=_relations(options, data),
    )
    clean = data.given if data.clean is None and data.own_labels else data.clean
    train = replace(data.train, labels=made.labels.numpy(), truth=None if clean is None else clean.numpy())
    clean_val = data.clean_val and not bool(data.is_val.any())  # joined ones are noisy now
    return replace(data, train=train, clean_val=clean_val, noise_record=made.provenance)


def read_posterior(path: Path) -> Tensor:
    """Read class probabilities from an .npy file, or from the one array (or ``posterior``) of an .npz file."""
    arrays = read_npz(path) if path.suffix == ".npz" else {"posterior": read_array(path)}
    if "posterior" not in arrays and len(arrays) != 1:
        raise InputError(f"posterior {path}: no array 'posterior'; it holds {', '.join(sorted(arrays))}")
    array = arrays.get("posterior", next(iter(arrays.values())))
    if array.dtype.kind != "f":
        raise InputError(f"posterior {path}: type {array.dtype}; probabilities are float16, float32 or float64")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _relations(options: NoiseOptions, data: Dataset) -> ClassRelations:
    name = options.class_map or data.class_map
    class_map = superclasses = matrix = None
    if name == "cifar100":
        superclasses = CIFAR100_SUPERCLASSES
    elif name in NAMED_MAPS:
        class_map = NAMED_MAPS[name]
    elif name is not None:
        class_map = _read_map(Path(name), data.class_names or [str(i) for i in range(data.num_classes)])
    if options.matrix is not None:
        array = read_array(Path(options.matrix))
        if array.dtype.kind not in "fiu":
            raise InputError(f"matrix {options.matrix}: type {array.dtype}; a transition matrix holds numbers")
        matrix = torch.from_numpy(array.astype(np.float64))
    return ClassRelations(class_map=class_map, superclasses=superclasses, matrix=matrix)


def _read_map(path: Path, classes: Sequence[str]) -> dict[int, int]:
    """Read a JSON object of class names, or of numbers where classes have no names."""
    if path.suffix != ".json":
        raise ConfigError(unknown("class map", str(path), [*NAMED_MAPS, "cifar100", "FILE.json"]))
    known = {name: number for number, name in enumerate(classes)}
    try:
        return {known[source]: known[str(target)] for source, target in json.loads(read_text(path)).items()}
    except (AttributeError, KeyError, ValueError) as error:
        raise InputError(f'class map {path}: must be classes in JSON, such as {{"cat": "dog"}} ({error})') from error
