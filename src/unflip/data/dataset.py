"""Dataset: everything a run needs of its data, checked; the truth apart from the labels that train."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from unflip.data import datasets
from unflip.data.array_files import Array
from unflip.data.images import ImageSource
from unflip.data.label_files import find_classes, read_labels, to_class_numbers
from unflip.data.noisy import AddedNoise, NoiseOptions, PosteriorEstimator, add_noise
from unflip.data.source import (
    ArraySource,
    JoinedSource,
    Source,
    Standardisation,
    check_finite,
    fit_standardisation,
)
from unflip.errors import ConfigError, InputError, unknown
from unflip.options import Options
from unflip.seeding import generator


class DataOptions(Options):
    """Which data, which labels, and how they are split."""

    path: str
    """A file, a folder, or the name of an embedded data set."""
    labels: str | None = None
    """A file whose labels replace the training labels; the data's own then serve evaluation only."""
    take: PositiveInt | None = None
    """Use the first so many training examples."""
    classes: PositiveInt | tuple[str, ...] | None = None
    """The number of classes, or their names in order; found in the training labels if not declared."""
    val_fraction: float = Field(0.1, ge=0.0, lt=1.0)
    """Share of the training examples that validate, stratified by given label; a `val` split replaces it."""
    standardize: Literal["columns", "whole", "off"] = "columns"
    """Centre each column, and divide it by its own standard deviation, or all columns by one for the whole; images
    have a fixed mean and deviation by channel instead."""
    augment: bool = True
    """Mirror and crop images at random while training."""
    jitter: float = Field(0.0, ge=0.0)
    """Standard deviation of the noise between two views of a row, in units of the standardised features."""
    map_above_mb: float = Field(1024.0, ge=0.0)
    """Array files of more megabytes than this stay on disk and are read by batch."""


@dataclass(frozen=True)
class LabelledSet:
    """Inputs and labels as a file held them."""

    inputs: Array
    labels: Array | None


@dataclass(frozen=True)
class Loaded:
    """What a loader found; nothing in it is checked against anything else yet."""

    train: LabelledSet
    val: LabelledSet | None = None
    tests: Mapping[str, LabelledSet] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    class_map: str | None = None
    """Which of the named maps `asym` noise uses on this data by default."""
    normalisation: Standardisation | None = None
    """Says that the inputs are images (n, c, h, w) of bytes, to be fed as ``(x - mean) / std``."""


@dataclass(frozen=True)
class TestSet:
    """Examples with true labels, for evaluation only."""

    __test__ = False  # not a test case, whatever pytest thinks of the name
    source: Source
    labels: Tensor


@dataclass(frozen=True)
class Dataset:
    """Training and validation examples in one source, in the data's order, and the test sets."""

    name: str
    source: Source
    given: Tensor
    """Labels as they came (n,), the validation examples' too."""
    is_val: Tensor
    """Which examples validate (n,)."""
    clean: Tensor | None
    """The truth about ``given``, where it is known. For evaluation only."""
    tests: dict[str, TestSet]
    num_classes: int
    class_names: list[str] | None
    ids: tuple[str, ...] | None
    standardisation: Standardisation | None
    noise: AddedNoise | None
    """The noise that was added, and how it came about."""

    def splits(self) -> list[str]:
        """``train`` or ``val`` for every example."""
        return np.where(self.is_val.cpu().numpy(), "val", "train").tolist()  # type: ignore[no-any-return]


def load_inputs(options: DataOptions) -> tuple[str, Loaded]:
    """Find the loader that fits a path or name, and let it read."""
    path = Path(options.path)
    name = _find_loader(path)
    loaded: Loaded = datasets.load(name)(path, options)
    return name if name != "arrays" else path.name, loaded


def _find_loader(path: Path) -> str:
    """Return the name of an embedded data set, of the loader that recognises what is at ``path``, or `arrays`.

    A loader of files beside `arrays` has ``recognises(path) -> bool``; one without is an embedded data set's.
    """
    others = [name for name in datasets.names() if name != "arrays"]
    if str(path) in others and not _reads_files(str(path)):
        return str(path)
    if not path.exists():
        embedded = [name for name in others if not _reads_files(name)]
        raise InputError(f"data {path}: no such file or folder, and {unknown('data set', str(path), embedded)}")
    if path.suffix in (".npz", ".npy") and not path.is_dir():
        return "arrays"
    for name in others:
        if _reads_files(name) and datasets.load(name).recognises(path):
            return name
    if not path.is_dir():
        raise InputError(f"data {path}: cannot read '{path.suffix}'; give .npz, .npy or a folder of .npy files")
    return "arrays"


def _reads_files(loader: str) -> bool:
    return hasattr(datasets.load(loader), "recognises")


def make_source(loaded: Loaded, inputs: Array, standardise: Standardisation | None, options: DataOptions) -> Source:
    """Return a source of some of the inputs that a loader found: images, or rows."""
    if loaded.normalisation is not None and standardise is not None:
        return ImageSource(inputs, standardise, augment=options.augment)
    return ArraySource(inputs, standardise, options.jitter)


def open_dataset(
    options: DataOptions,
    seed: int,
    noise: NoiseOptions | None = None,
    estimate_posterior: PosteriorEstimator | None = None,
) -> Dataset:
    """Read, check, standardise, add noise if told so, and split a data set."""
    name, loaded = load_inputs(options)
    inputs, given_raw, own_raw, what = _choose_labels(loaded, options)
    num_classes, names = find_classes(given_raw, options.classes or loaded.class_names, what)
    given = to_class_numbers(given_raw, num_classes, names, what)
    clean = None if own_raw is None else to_class_numbers(own_raw, num_classes, names, "train_labels")
    if (found := len(given.unique())) < 2:
        raise InputError(f"{what}: {found} class among {len(given)} labels; at least two are needed")

    others = dict(loaded.tests) | ({"val": loaded.val} if loaded.val else {})
    declared = options.classes is not None or loaded.class_names is not None
    if not declared:
        _check_seen(given_raw, loaded.tests)
    labels = {key: _labels_of(part, key, num_classes, names, inputs.shape[1:]) for key, part in others.items()}
    for key, array in {"train": inputs, **{key: part.inputs for key, part in others.items()}}.items():
        check_finite(array, f"{options.path}, '{key}'")

    standardise = loaded.normalisation
    if standardise is None and options.standardize != "off":
        standardise = fit_standardisation(inputs, one_scale=options.standardize == "whole")
    source = make_source(loaded, inputs, standardise, options)
    added = None
    if noise is not None and noise.recipe is not None:
        truth = given if clean is None and options.labels is None else clean
        added = add_noise(
            noise,
            source,
            given if truth is None else truth,
            base=given,
            num_classes=num_classes,
            class_names=names,
            default_map=loaded.class_map,
            seed=seed,
            estimate=estimate_posterior,
        )
        given, clean = added.labels, truth

    is_val = torch.zeros(len(given), dtype=torch.bool)
    if loaded.val is not None:
        source = JoinedSource([source, make_source(loaded, loaded.val.inputs, standardise, options)])
        is_val = torch.cat([is_val, torch.ones(len(labels["val"]), dtype=torch.bool)])
        given = torch.cat([given, labels["val"]])
        clean = None if clean is None else torch.cat([clean, labels["val"]])
    elif options.val_fraction:
        is_val = stratified_split(given, num_classes, options.val_fraction, seed)
    if len(given[~is_val].unique()) < 2:
        raise InputError(f"{what}: the {int((~is_val).sum())} examples left for training hold fewer than two classes")
    return Dataset(
        name=name,
        source=source,
        given=given,
        is_val=is_val,
        clean=clean,
        tests={
            key: TestSet(make_source(loaded, part.inputs, standardise, options), labels[key])
            for key, part in loaded.tests.items()
        },
        num_classes=num_classes,
        class_names=names,
        ids=_ids(loaded, len(inputs), len(given)),
        standardisation=standardise,
        noise=added,
    )


def _ids(loaded: Loaded, num_train: int, total: int) -> tuple[str, ...] | None:
    if loaded.ids is None:
        return None
    if len(loaded.ids) != len(loaded.train.inputs):
        raise InputError(f"train_ids: {len(loaded.ids)} ids for {len(loaded.train.inputs)} examples")
    return loaded.ids[:num_train] + tuple(f"val-{i}" for i in range(total - num_train))


def _choose_labels(loaded: Loaded, options: DataOptions) -> tuple[Array, Array, Array | None, str]:
    """Return the training inputs, the labels to train with, the truth where it is known, a name for the labels."""
    inputs, own, what = loaded.train.inputs, loaded.train.labels, f"{options.path}, train_labels"
    if own is not None and len(own) != len(inputs):
        raise InputError(f"{what}: {len(own)} labels for {len(inputs)} examples")
    count = len(inputs)
    if options.take is not None:
        if options.take > count:
            raise ConfigError(f"take = {options.take}: there are only {count} training examples")
        count = options.take
        inputs, own = inputs[:count], None if own is None else own[:count]
    if options.labels is None:
        if own is None:
            raise InputError(f"{options.path}: no train_labels in it; give a file with --labels")
        return inputs, own, None, what
    what = f"labels {options.labels}"
    labels = read_labels(Path(options.labels))
    if len(labels) != count and not (options.take is not None and len(labels) > count):
        hint = f"; to use the first ones: --take {len(labels)}" if len(labels) < count else ""
        raise InputError(f"{what}: {len(labels)} labels for {count} examples{hint}")
    return inputs, labels[:count], own, what


def _labels_of(
    part: LabelledSet, key: str, num_classes: int, names: list[str] | None, shape: tuple[int, ...]
) -> Tensor:
    if part.inputs.shape[1:] != shape:
        raise InputError(f"'{key}': examples of shape {part.inputs.shape[1:]}, the training examples have {shape}")
    if not len(part.inputs):
        raise InputError(f"'{key}' has no examples; leave it out")
    if part.labels is None:
        raise InputError(f"'{key}' has no labels; add '{key}_labels' or leave it out")
    if len(part.labels) != len(part.inputs):
        raise InputError(f"'{key}_labels': {len(part.labels)} labels for {len(part.inputs)} examples")
    return to_class_numbers(part.labels, num_classes, names, f"'{key}_labels'")


def _check_seen(given: Array, tests: Mapping[str, LabelledSet]) -> None:
    """Refuse a class that only a test set knows."""
    for key, part in tests.items():
        if part.labels is None or part.labels.dtype.kind != given.dtype.kind:
            continue
        unseen = np.setdiff1d(part.labels, given)
        if len(unseen) and (unseen.dtype.kind == "U" or (np.isfinite(unseen) & (unseen >= 0)).all()):
            raise InputError(
                f"'{key}_labels': class {unseen[0]} has no training example; declare the classes "
                "(--set data.classes=K) if that is meant"
            )


def stratified_split(labels: Tensor, num_classes: int, fraction: float, seed: int) -> Tensor:
    """Return which examples validate: of each class the rounded ``fraction``, drawn by ``seed``."""
    order = torch.randperm(len(labels), generator=generator(seed, "split"))
    order = order[labels[order].argsort(stable=True)]  # by class, random within
    counts = torch.bincount(labels, minlength=num_classes)
    position = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    chosen = position < (counts * fraction + 0.5).long().repeat_interleave(counts)
    is_val = torch.zeros(len(labels), dtype=torch.bool)
    is_val[order[chosen]] = True
    return is_val
