"""Dataset: everything a run needs of its data, checked; the truth apart from the labels that train."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from unflip.data import datasets
from unflip.data.array_files import Array
from unflip.data.decoding import Track, untracked
from unflip.data.file_source import FileSource
from unflip.data.image_files import Frame, ImageFiles, Skipped
from unflip.data.images import ImageSource
from unflip.data.label_files import find_classes, read_labels, to_class_numbers
from unflip.data.noisy import AddedNoise, NoiseOptions, PosteriorEstimator, add_noise
from unflip.data.opening import ImageOptions, open_files
from unflip.data.reviewed import read_reviewed
from unflip.data.source import (
    ArraySource,
    JoinedSource,
    Source,
    Standardisation,
    check_finite,
    fit_standardisation,
)
from unflip.data.split import group_numbers, stratified_split
from unflip.errors import ConfigError, InputError, unknown

_GENERAL = ("arrays", "images", "manifest", "table")  # whatever a person has, called by its own name


class DataOptions(ImageOptions):
    """Which data, which labels, and how they are split."""

    path: str
    """A file, a folder, or the name of an embedded data set."""
    label_column: str | None = None
    """For tables and manifests: which column holds the labels; by default `label`."""
    ignore: tuple[str, ...] = ()
    """For tables: columns that are no features."""
    columns: tuple[str, ...] | None = None
    """For tables: the columns that are features, in this order; by default all that are nothing else."""
    labels: str | None = None
    """A file whose labels replace the training labels; the data's own then serve evaluation only."""
    reviewed: str | None = None
    """A table (index or path, label) of labels that people decided: trusted, and never changed."""
    take: PositiveInt | None = None
    """Use the first so many training examples."""
    per_class: PositiveInt | None = None
    """Use at most so many training examples of each given class, the first ones."""
    classes: PositiveInt | tuple[str, ...] | None = None
    """The number of classes, or their names in order; found in the training labels if not declared."""
    val_fraction: float = Field(0.1, ge=0.0, lt=1.0)
    """Share of the training examples that validate, stratified by given label; a `val` split replaces it."""
    groups: str | None = None
    """Examples of one group, as near-duplicates, stay on one side of that split: a column, an array, or a file."""
    standardize: Literal["columns", "whole", "off"] = "columns"
    """Centre each column, and divide it by its own standard deviation, or all columns by one for the whole; images
    have a fixed mean and deviation by channel instead."""
    augment: bool = True
    """Mirror and crop images at random while training."""
    jitter: float = Field(0.0, ge=0.0)
    """Standard deviation of the noise between two views of a row, in units of the standardised features."""
    map_above_mb: float = Field(1024.0, ge=0.0)
    """Array files of more megabytes than this stay on disk and are read by batch."""
    imagenet: str | None = None
    """For WebVision: where ILSVRC12's validation images are, a folder a synset, if not in `imagenet/val` there."""
    clothing1m_train: Literal["noisy", "clean"] = "noisy"
    """For Clothing1M: which of its training lists."""
    clothing1m_val: Literal["clean", "noisy"] = "clean"
    """For Clothing1M: its clean validation list, or `val_fraction` of the training examples."""


@dataclass(frozen=True)
class LabelledSet:
    """Inputs and labels as a file held them."""

    inputs: Array | ImageFiles
    labels: Array | None
    truth: Array | None = None
    """What came with the inputs, where other labels were put in its place."""
    ids: Array | None = None
    digests: Array | None = None
    """Of the pictures that the inputs were made of; equal ones are the same picture."""
    groups: Array | None = None
    """What `data.groups` names, where it is in the data."""

    def __getitem__(self, rows: slice | Array) -> "LabelledSet":
        beside = (self.labels, self.truth, self.ids, self.digests, self.groups)
        return LabelledSet(self.inputs[rows], *(None if array is None else array[rows] for array in beside))


@dataclass(frozen=True)
class Loaded:
    """What a loader found; nothing in it is checked against anything else yet."""

    train: LabelledSet
    val: LabelledSet | None = None
    tests: Mapping[str, LabelledSet] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    class_map: str | None = None
    """Which of the named maps `asym` noise uses on this data by default."""
    normalisation: Standardisation | None = None
    """Says that the inputs are images, (n, c, h, w) of bytes or files, to be fed as ``(x - mean) / std``."""
    columns: tuple[str, ...] | None = None
    """What the columns of a table are called."""
    clean_val: bool = False
    """Whether the labels of ``val`` are known to be right, unlike those that train."""
    unlabelled: str = "no train_labels in it"
    """What to say where labels are needed and there are none."""
    as_pixels: Callable[[Array], Array] | None = None
    """Turns an input that is no image into one that people can look at, (h, w) of bytes."""


def all_sets(loaded: Loaded) -> dict[str, LabelledSet]:
    """Return what a loader found, by part."""
    return {"train": loaded.train, **loaded.tests} | ({"val": loaded.val} if loaded.val else {})


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
    reviewed: Tensor | None
    """The labels that people decided (n,), -1 where they did not; None where they decided nothing."""
    is_val: Tensor
    """Which examples validate (n,)."""
    clean: Tensor | None
    """The truth about ``given``, where it is known. For evaluation only."""
    tests: dict[str, TestSet]
    num_classes: int
    class_names: list[str] | None
    columns: tuple[str, ...] | None
    """What the features are called, where they have names."""
    ids: tuple[str, ...] | None
    standardisation: Standardisation | None
    frame: Frame | None
    """What the network sees of an image file; None where images are used in their own size."""
    skipped: tuple[Skipped, ...]
    """Broken images, which were left out."""
    clean_val: bool
    """Whether the labels of the validation examples came as clean ones."""
    noise: AddedNoise | None
    """The noise that was added, and how it came about."""

    def splits(self) -> list[str]:
        """``train`` or ``val`` for every example."""
        return np.where(self.is_val.cpu().numpy(), "val", "train").tolist()  # type: ignore[no-any-return]


def load_inputs(options: DataOptions) -> tuple[str, Loaded]:
    """Find the loader that fits a path or name, and let it read."""
    path = Path(options.path)
    name = find_loader(path)
    loaded: Loaded = datasets.load(name)(path, options)
    return path.name if name in _GENERAL else name, loaded


def find_loader(path: Path) -> str:
    """Return the name of an embedded data set, of the loader that recognises what is at ``path``, or `arrays`.

    A loader of files beside `arrays` has ``recognises(path) -> bool``; one without is an embedded data set's.
    """
    if is_embedded(str(path)):
        return str(path)
    if not path.exists():
        embedded = [name for name in datasets.names() if is_embedded(name)]
        raise InputError(f"data {path}: no such file or folder, and {unknown('data set', str(path), embedded)}")
    if path.suffix in (".npz", ".npy") and not path.is_dir():
        return "arrays"
    for name in [*(name for name in datasets.names() if name not in _GENERAL), "images", "manifest", "table"]:
        if _reads_files(name) and datasets.load(name).recognises(path):
            return name
    if not path.is_dir():
        raise InputError(f"data {path}: cannot read '{path.suffix}'; give .npz, .npy, .csv, .parquet or a folder")
    return "arrays"


def is_embedded(name: str) -> bool:
    """Whether ``name`` is a data set that needs no files."""
    return name in datasets and name not in _GENERAL and not _reads_files(name)


def _reads_files(loader: str) -> bool:
    return hasattr(datasets.load(loader), "recognises")


def make_source(
    loaded: Loaded, inputs: Array | ImageFiles, standardise: Standardisation | None, options: DataOptions
) -> Source:
    """Return a source of some of the inputs that a loader found: images, or rows."""
    if isinstance(inputs, ImageFiles):
        assert standardise is not None
        return FileSource(inputs, standardise, augment=options.augment, crop=options.crop, workers=options.workers)
    if loaded.normalisation is not None and standardise is not None:
        return ImageSource(inputs, standardise, augment=options.augment)
    return ArraySource(inputs, standardise, options.jitter)


def open_dataset(
    options: DataOptions,
    seed: int,
    noise: NoiseOptions | None = None,
    estimate_posterior: PosteriorEstimator | None = None,
    track: Track = untracked,
) -> Dataset:
    """Read a data set and make it ready."""
    name, loaded = load_inputs(options)
    return make_dataset(name, loaded, options, seed, noise, estimate_posterior, track)


def make_dataset(
    name: str,
    loaded: Loaded,
    options: DataOptions,
    seed: int,
    noise: NoiseOptions | None = None,
    estimate_posterior: PosteriorEstimator | None = None,
    track: Track = untracked,
) -> Dataset:
    """Check what was loaded, standardise it, add noise if told so, and split it."""
    train, given_raw, what = choose_labels(loaded, options)
    num_classes, names = find_classes(given_raw, options.classes or loaded.class_names, what)
    to_class_numbers(given_raw, num_classes, names, what)  # before images are read, which may take long
    sets, frame, skipped = open_sets(all_sets(replace(loaded, train=train)), options, track)
    train, inputs = sets["train"], sets["train"].inputs
    assert train.labels is not None
    given = to_class_numbers(train.labels, num_classes, names, what)
    clean = None if train.truth is None else to_class_numbers(train.truth, num_classes, names, "train_labels")
    if (found := len(given.unique())) < 2:
        raise InputError(f"{what}: {found} class among {len(given)} labels; at least two are needed")

    others = {key: part for key, part in sets.items() if key != "train"}
    declared = options.classes is not None or loaded.class_names is not None
    if not declared:
        _check_seen(given_raw, loaded.tests)
    labels = {key: _labels_of(part, key, num_classes, names, inputs.shape[1:]) for key, part in others.items()}
    for key, part in sets.items():
        if not isinstance(part.inputs, ImageFiles):
            check_finite(part.inputs, f"{options.path}, '{key}'")

    standardise = loaded.normalisation
    if standardise is None and options.standardize != "off" and not isinstance(inputs, ImageFiles):
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
    if "val" in sets:
        source = JoinedSource([source, make_source(loaded, sets["val"].inputs, standardise, options)])
        is_val = torch.cat([is_val, torch.ones(len(labels["val"]), dtype=torch.bool)])
        given = torch.cat([given, labels["val"]])
        clean = None if clean is None else torch.cat([clean, labels["val"]])
    elif options.val_fraction:
        groups = None if train.groups is None else group_numbers(train.groups)
        is_val = stratified_split(given, num_classes, options.val_fraction, seed, groups)
    ids, reviewed = _ids(train, sets.get("val")), None
    if options.reviewed is not None:
        class_names = names or [str(i) for i in range(num_classes)]
        reviewed = read_reviewed(Path(options.reviewed), len(given), ids, class_names)
    trained = given if reviewed is None else torch.where(reviewed < 0, given, reviewed)
    if len(trained[~is_val].unique()) < 2:
        raise InputError(f"{what}: the {int((~is_val).sum())} examples left for training hold fewer than two classes")
    return Dataset(
        name=name,
        source=source,
        given=given,
        reviewed=reviewed,
        is_val=is_val,
        clean=clean,
        tests={
            key: TestSet(make_source(loaded, sets[key].inputs, standardise, options), labels[key])
            for key in loaded.tests
        },
        num_classes=num_classes,
        class_names=names,
        columns=loaded.columns,
        ids=ids,
        standardisation=standardise,
        frame=frame,
        skipped=skipped,
        clean_val=loaded.clean_val,
        noise=added,
    )


def open_sets(
    sets: Mapping[str, LabelledSet], options: DataOptions, track: Track = untracked
) -> tuple[dict[str, LabelledSet], Frame | None, tuple[Skipped, ...]]:
    """Open sets of image files, see :func:`unflip.data.opening.open_files`; others stay as they are."""
    files = {key: part.inputs for key, part in sets.items() if isinstance(part.inputs, ImageFiles) and len(part.inputs)}
    if not files:
        return dict(sets), None, ()
    opened = open_files(files, options, track)
    ready = {key: replace(sets[key][opened.kept[key]], inputs=inputs) for key, inputs in opened.inputs.items()}
    return {**sets, **ready}, opened.frame, opened.skipped


def _ids(train: LabelledSet, val: LabelledSet | None) -> tuple[str, ...] | None:
    if train.ids is None:
        return None
    ids = tuple(map(str, train.ids.tolist()))
    if val is None:
        return ids
    return ids + (tuple(f"val-{i}" for i in range(len(val.inputs))) if val.ids is None else tuple(val.ids.tolist()))


def choose_labels(loaded: Loaded, options: DataOptions) -> tuple[LabelledSet, Array, str]:
    """Return the training examples with the labels to train with, these labels, and a name for them."""
    train, what = loaded.train, f"{options.path}, train_labels"
    count, own = len(train.inputs), train.labels
    if own is not None and len(own) != count:
        raise InputError(f"{what}: {len(own)} labels for {count} examples")
    if train.ids is not None and len(train.ids) != count:
        raise InputError(f"train_ids: {len(train.ids)} ids for {count} examples")
    if options.take is not None:
        if options.take > count:
            raise ConfigError(f"take = {options.take}: there are only {count} training examples")
        count = options.take
        train = train[:count]
    if options.labels is not None:
        what = f"labels {options.labels}"
        train = replace(train, labels=_read_labels(options, options.labels, count, what), truth=train.labels)
    if options.groups is not None:
        train = replace(train, groups=_find_groups(options, train, count))
    if train.labels is None:
        raise InputError(f"{options.path}: {loaded.unlabelled}; give a file with --labels")
    if options.per_class is not None:
        train = train[_first_of_each(train.labels, options.per_class)]
    assert train.labels is not None
    return train, train.labels, what


def _first_of_each(labels: Array, count: int) -> Array:
    """Return which examples are among the first ``count`` of their label."""
    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = numbers.argsort(kind="stable")
    rank: Array = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)
    return rank < count


def _read_labels(options: DataOptions, path: str, count: int, what: str) -> Array:
    labels = read_labels(Path(path))
    if len(labels) != count and not (options.take is not None and len(labels) > count):
        hint = f"; to use the first ones: --take {len(labels)}" if len(labels) < count else ""
        raise InputError(f"{what}: {len(labels)} labels for {count} examples{hint}")
    return labels[:count]


def _find_groups(options: DataOptions, train: LabelledSet, count: int) -> Array:
    """Return the group of each example: what the data holds under that name, else the lines of a file."""
    what = f"data.groups {options.groups}"
    groups = train.groups
    if groups is None:
        if not Path(options.groups or "").is_file():
            raise InputError(f"{what}: the data has no such column or array, and there is no such file")
        groups = _read_labels(options, options.groups or "", count, what)
    if groups.ndim != 1 or len(groups) != count:
        raise InputError(f"{what}: shape {groups.shape} for {count} examples; one group each")
    return groups


def _labels_of(
    part: LabelledSet, key: str, num_classes: int, names: list[str] | None, shape: tuple[int, ...]
) -> Tensor:
    if not len(part.inputs):
        raise InputError(f"'{key}' has no examples; leave it out")
    if part.inputs.shape[1:] != shape:
        raise InputError(f"'{key}': examples of shape {part.inputs.shape[1:]}, the training examples have {shape}")
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
