"""LabelledData: examples that were read and checked, with class numbers as labels; noise and split come later."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unflip.data.files.arrays import Array
from unflip.data.files.labels import find_classes, read_labels, to_class_numbers
from unflip.data.files.reviewed import read_reviewed
from unflip.data.images.files import Frame, ImageFiles, Skipped
from unflip.data.images.opening import open_files
from unflip.data.images.sources import FileSource, ImageSource
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.data.sources import ArraySource, Source, Standardisation, check_finite, fit_standardisation
from unflip.errors import ConfigError, InputError
from unflip.progress import Track, untracked


@dataclass(frozen=True)
class EvaluationSet:
    """Validation or test examples, with their labels."""

    source: Source
    labels: Tensor


@dataclass(frozen=True)
class LabelledData:
    """A data set whose labels were checked against its examples."""

    name: str
    train: Source
    given: Tensor
    """Labels of the training examples as they came (n,)."""
    clean: Tensor | None
    """The true labels (n,), where they are known. For evaluation only."""
    own_labels: bool
    """Whether ``given`` are the labels of the data itself, not those of another file."""
    val: EvaluationSet | None
    """Validation examples that came with the data."""
    clean_val: bool
    """Whether their labels are known to be right."""
    tests: dict[str, EvaluationSet]
    num_classes: int
    class_names: list[str] | None
    class_map: str | None
    """The named map that `asym` noise uses on this data by default."""
    columns: tuple[str, ...] | None
    """Names of the features, where they have any."""
    ids: tuple[str, ...] | None
    """Of the training examples, followed by those of ``val``."""
    groups: Array | None
    """The group of each training example (n,); a split keeps groups together."""
    reviewed: Tensor | None
    """The labels that people decided, -1 for all others, in the order of ``ids``; None if they decided none."""
    pictures_path: str | None
    """Where people find pictures of the examples: the data itself, or the images that features were computed from."""
    standardisation: Standardisation | None
    frame: Frame | None
    """What the network sees of an image file; None where images are used in their own size."""
    skipped: tuple[Skipped, ...]
    """Broken images, which were left out."""
    noise_record: dict[str, Any] | None = None
    """How noise was added, if it was."""

    @property
    def truth(self) -> Tensor:
        """The labels that noise starts from (n,): the true ones or, where they are unknown, the given ones."""
        return self.given if self.clean is None else self.clean


def label_data(raw: RawData, options: DataOptions, track: Track = untracked) -> LabelledData:
    """Check what a loader found, number its classes, and turn its inputs into sources."""
    train, what = choose_labels(raw, options)
    assert train.labels is not None
    num_classes, names = find_classes(train.labels, options.classes or raw.class_names, what)
    to_class_numbers(train.labels, num_classes, names, what)  # before reading images, which may take long
    sets, frame, skipped = open_sets(replace(raw, train=train).parts(), options, track)
    train = sets.pop("train")
    assert train.labels is not None
    given = to_class_numbers(train.labels, num_classes, names, what)
    clean = None if train.truth is None else to_class_numbers(train.truth, num_classes, names, "train_labels")
    if (found := len(given.unique())) < 2:
        raise InputError(f"{what}: {found} class among {len(given)} labels; at least two are needed")
    if options.classes is None and raw.class_names is None:
        _check_seen(train.labels, raw.tests)
    labels = {key: _evaluation_labels(part, key, num_classes, names, train.inputs) for key, part in sets.items()}
    for key, part in {"train": train, **sets}.items():
        if not isinstance(part.inputs, ImageFiles):
            check_finite(part.inputs, f"{options.path}, '{key}'")

    standardise = raw.normalisation
    if standardise is None and options.standardize != "off" and not isinstance(train.inputs, ImageFiles):
        standardise = fit_standardisation(train.inputs, one_scale=options.standardize == "whole")
    others = {
        key: EvaluationSet(make_source(raw, part.inputs, standardise, options), labels[key])
        for key, part in sets.items()
    }
    val = others.pop("val", None)
    ids, reviewed = _ids(train, sets.get("val")), None
    if options.reviewed is not None:
        count = len(given) + (len(val.labels) if val else 0)
        class_names = names or [str(i) for i in range(num_classes)]
        reviewed = read_reviewed(Path(options.reviewed), count, ids, class_names)
    return LabelledData(
        name=raw.name,
        train=make_source(raw, train.inputs, standardise, options),
        given=given,
        clean=clean,
        own_labels=options.labels is None,
        val=val,
        clean_val=raw.clean_val,
        tests=others,
        num_classes=num_classes,
        class_names=names,
        class_map=raw.class_map,
        columns=raw.columns,
        ids=ids,
        groups=train.groups,
        reviewed=reviewed,
        pictures_path=raw.images_path or (options.path if raw.holds_images or raw.as_pixels else None),
        standardisation=standardise,
        frame=frame,
        skipped=skipped,
    )


def choose_labels(raw: RawData, options: DataOptions) -> tuple[LabelledSet, str]:
    """Return the training examples with the labels to train with, and what to call these labels in errors."""
    train, what = raw.train, f"{options.path}, train_labels"
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
        raise InputError(f"{options.path}: {raw.unlabelled}; give a file with --labels")
    if options.per_class is not None:
        train = train[_first_of_each(train.labels, options.per_class)]
    return train, what


def open_sets(
    sets: Mapping[str, LabelledSet], options: DataOptions, track: Track = untracked
) -> tuple[dict[str, LabelledSet], Frame | None, tuple[Skipped, ...]]:
    """Open sets of image files with :func:`unflip.data.images.opening.open_files`; others stay as they are."""
    files = {key: part.inputs for key, part in sets.items() if isinstance(part.inputs, ImageFiles) and len(part.inputs)}
    if not files:
        return dict(sets), None, ()
    opened = open_files(files, options, track)
    ready = {key: replace(sets[key][opened.kept[key]], inputs=inputs) for key, inputs in opened.inputs.items()}
    return {**sets, **ready}, opened.frame, opened.skipped


def make_source(
    raw: RawData, inputs: Array | ImageFiles, standardise: Standardisation | None, options: DataOptions
) -> Source:
    """Return a source for inputs that a loader found: images or rows."""
    if isinstance(inputs, ImageFiles):
        assert standardise is not None
        return FileSource(inputs, standardise, augment=options.augment, crop=options.crop, workers=options.workers)
    if raw.holds_images and standardise is not None:
        return ImageSource(inputs, standardise, augment=options.augment)
    return ArraySource(inputs, standardise, options.jitter)


def _ids(train: LabelledSet, val: LabelledSet | None) -> tuple[str, ...] | None:
    if train.ids is None:
        return None
    ids = [*train.ids.tolist()]
    if val is not None:
        if val.ids is not None and len(val.ids) != len(val.inputs):
            raise InputError(f"val_ids: {len(val.ids)} ids for {len(val.inputs)} examples")
        ids += [f"val-{i}" for i in range(len(val.inputs))] if val.ids is None else val.ids.tolist()
    return tuple(map(str, ids))


def _first_of_each(labels: Array, count: int) -> Array:
    """Return a mask of the examples that are among the first ``count`` of their label."""
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
    """Return the group of each example: the column or array of that name, else the lines of a file."""
    what = f"data.groups {options.groups}"
    groups = train.groups
    if groups is None:
        if not Path(options.groups or "").is_file():
            raise InputError(f"{what}: the data has no such column or array, and there is no such file")
        groups = _read_labels(options, options.groups or "", count, what)
    if groups.ndim != 1 or len(groups) != count:
        raise InputError(f"{what}: shape {groups.shape} for {count} examples; give one group per example")
    return groups


def _evaluation_labels(
    part: LabelledSet, key: str, num_classes: int, names: list[str] | None, trained: Array | ImageFiles
) -> Tensor:
    """Return the class numbers of a validation or test set, if its examples have the shape of the training examples."""
    if not len(part.inputs):
        raise InputError(f"'{key}' has no examples; leave it out")
    shape, wanted = part.inputs.shape[1:], trained.shape[1:]
    if shape != wanted:
        raise InputError(f"'{key}': examples of shape {shape}, the training examples have {wanted}")
    if part.labels is None:
        raise InputError(f"'{key}' has no labels; add '{key}_labels' or leave it out")
    if len(part.labels) != len(part.inputs):
        raise InputError(f"'{key}_labels': {len(part.labels)} labels for {len(part.inputs)} examples")
    return to_class_numbers(part.labels, num_classes, names, f"'{key}_labels'")


def _check_seen(given: Array, tests: Mapping[str, LabelledSet]) -> None:
    """Refuse a class that occurs only in a test set."""
    for key, part in tests.items():
        if part.labels is None or part.labels.dtype.kind != given.dtype.kind:
            continue
        unseen = np.setdiff1d(part.labels, given)
        if len(unseen) and (unseen.dtype.kind == "U" or (np.isfinite(unseen) & (unseen >= 0)).all()):
            raise InputError(
                f"'{key}_labels': class {unseen[0]} has no training example; declare the classes "
                "(--set data.classes=K) if that is intended"
            )
