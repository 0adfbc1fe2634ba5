"""Labeling: labels are chosen and checked against the examples, classes numbered, inputs made ready for networks."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import Array, Shards
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Inputs, Split, joined_ids
from unflip.data.files import ImageFiles, ResizeCrop, Skipped
from unflip.data.images import FileSource, ImageSource, open_files
from unflip.data.labels import are_misleading, are_names, find_classes, read_labels, read_reviewed, to_class_numbers
from unflip.data.options import DataOptions
from unflip.data.sources import (
    ArraySource,
    JoinedSource,
    Source,
    Standardization,
    check_finite,
    check_varied,
    fit_standardization,
)
from unflip.data.split import same_examples
from unflip.errors import ConfigError, InputError, UnflipWarning
from unflip.progress import Track, untracked
from unflip.stats.discriminant import fit_discriminant, held_out_log_posterior, least_surprise
from unflip.stats.rows import evenly_spaced

_ALL_DISTINCT = 100  # labels that may all differ, as those of a small trial do
_LISTED = 5  # most classes that an error lists
_GAP = 10  # see _number_classes; few labels of many classes may well leave some out
_TRIED = 4000  # examples that the choice of a scale is made by


def label_data(
    raw: Dataset, options: DataOptions, track: Track = untracked, wanted: Standardization | None = None
) -> Dataset:
    """Check what a loader found, number its classes, and turn its inputs into sources.

    Args:
        raw: the data as a loader read it, or an encoder made it.
        options: which labels, how many examples, what is done to inputs.
        track: is told how many images are read.
        wanted: standardizes rows, in place of what suits them.
    """
    train, what = choose_labels(raw, options)
    num_classes, names = _number_classes(raw, train, options, what)
    _warn_of_one_class(names or (), what)
    sets, frame, skipped = open_sets(replace(raw, train=train).parts(), options, track)
    train = sets["train"]
    assert train.labels is not None
    given = to_class_numbers(train.labels, num_classes, names, what)
    clean = None if train.truth is None else to_class_numbers(train.truth, num_classes, names, "train_labels")
    if (found := len(given.unique())) < 2:
        raise InputError(f"{what}: {found} class among {len(given)} labels; at least two are needed")
    labels = {
        key: given if key == "train" else _evaluation_labels(part, key, num_classes, names, train.inputs)
        for key, part in sets.items()
    }
    for key, part in sets.items():
        if isinstance(part.inputs, np.ndarray | Shards):
            check_finite(part.inputs, f"{options.path}, '{key}'")
    standardize = raw.normalization or wanted
    if isinstance(train.inputs, np.ndarray | Shards):
        check_varied(train.inputs, f"{options.path}, 'train'")
        if standardize is None and options.standardize != "off":
            standardize = fit_standardization(train.inputs, one_scale=options.standardize == "global")
    ready = {
        key: replace(
            part,
            inputs=np.empty((0, 0)),  # what was read need not stay in memory
            opened=make_source(raw, part.inputs, standardize, options),
            labels=labels[key].numpy(),
            truth=None if key != "train" or clean is None else clean.numpy(),
        )
        for key, part in sets.items()
    }
    count = len(given) + len(labels.get("val", ()))
    reviewed, removed = None, torch.zeros(count, dtype=torch.bool)
    if options.reviewed is not None:
        ids, classes = joined_ids(ready["train"], ready.get("val")), names or [str(i) for i in range(num_classes)]
        named = None if ids is None else [str(name) for name in ids.tolist()]
        reviewed, removed = read_reviewed(Path(options.reviewed), count, named, classes)
    declared = options.classes or raw.class_names or names
    for key in {} if declared else raw.tests:
        if alone := {*labels[key].tolist()} - {*given.tolist()}:
            raise InputError(
                f"'{key}_labels': class {min(alone)} has no training example; declare the classes if that is meant: "
                f"--set data.classes={num_classes}"
            )
    return replace(
        raw.with_parts(ready),
        clean_val=raw.val is not None and (raw.clean_val or clean is not None),
        images_path=raw.images_path or (options.path if raw.holds_images or raw.as_pixels else None),
        skipped=(*raw.skipped, *skipped),
        num_classes=num_classes,
        class_names=names,
        unseen=_unseen(num_classes, [*labels.values(), *([] if clean is None else [clean])]) if not declared else (),
        own_labels=options.labels is None,
        standardization=standardize,
        frame=frame,
        same=same_examples(train),
        reviewed=reviewed,
        removed=removed,
        is_val=torch.zeros(len(given), dtype=torch.bool),
    )


def choose_labels(raw: Dataset, options: DataOptions) -> tuple[Split, str]:
    """Return the training examples with the labels to train with, and what to call these labels in errors.

    The labels are checked here, before images are read or become features, which may take long.
    """
    raw.check_trainable(options.path)
    _check_labeled(raw, options.path)
    called = "train_labels" if raw.label_column is None else f"column '{raw.label_column}'"
    train, what, total = raw.train, f"{options.path}, {called}", len(raw.train.inputs)
    if options.limit is not None:
        if options.limit > total:
            raise ConfigError(f"limit = {options.limit}: there are only {total} training examples")
        train = train[: options.limit]
    if options.labels is not None:
        what = f"labels {options.labels}"
        train = replace(train, labels=_other_labels(raw, options, what), truth=train.labels)
    if options.groups is not None:
        train = replace(train, groups=_find_groups(options, train))
    if train.labels is None:
        raise InputError(f"{options.path}: {raw.unlabeled}; give a file with --labels")
    _number_classes(raw, train, options, what)
    if len(train.labels) > _ALL_DISTINCT and len(np.unique(train.labels)) == len(train.labels):
        raise InputError(f"{what}: all {len(train.labels):,} labels differ, so they name no classes; take other labels")
    if options.per_class is not None:
        train = train[_first_of_each(train.labels, options.per_class)]
    return train, what


def _check_labeled(raw: Dataset, path: str) -> None:
    """Refuse an empty label among others, naming its row and, where it has one, its example."""
    for key, part in raw.parts().items():
        if part.labels is not None and are_names(part.labels) and (empty := part.labels == "").any():
            row = int(empty.argmax())
            named = f" (of '{part.ids[row]}')" if part.ids is not None else ""
            called = f"{key}_labels" if raw.label_column is None else f"column '{raw.label_column}'"
            raise InputError(f"{path}, {called}, row {row}: the label is empty{named}; every example needs one")


def _other_labels(raw: Dataset, options: DataOptions, what: str) -> Array:
    """Read the labels that replace those of the data; numbers are refused where classes are called by others."""
    train = raw.train
    ids = None if train.ids is None else [str(name) for name in train.ids.tolist()]
    count = options.limit or len(train.inputs)
    own = None if train.labels is None else train.labels[:count]
    names = options.class_names or raw.class_names or _names_in(own)
    labels = _read_for_all(options, options.labels or "", count, what, ids, names, len(train.inputs))
    if are_misleading(names) and len(labels) and not are_names(labels):
        raise InputError(
            f"{what}: numbers such as {labels[0]}, but the classes are called {', '.join(names[:_LISTED])}: it is "
            "not clear which are meant; give all labels by these names"
        )
    return labels


def _read_for_all(
    options: DataOptions,
    path: str,
    count: int,
    what: str,
    ids: Sequence[str] | None = None,
    names: Sequence[str] = (),
    total: int | None = None,
) -> Array:
    """Read labels or groups, one for each of ``count`` examples, or more of them if only some are taken."""
    labels = read_labels(Path(path), ids, names, total)
    if labels.ndim != 1 or len(labels) < count or (len(labels) > count and options.limit is None):
        few = labels.ndim == 1 and 0 < len(labels) < count
        hint = f"; if they are those of the first examples: --limit {len(labels)}" if few else ""
        raise InputError(f"{what}: {' x '.join(map(str, labels.shape))} labels for {count} examples{hint}")
    return labels[:count]


def _find_groups(options: DataOptions, train: Split) -> Array:
    """Return the group of each example: the column or array of that name, else the lines of a file."""
    what, count = f"data.groups {options.groups}", len(train.inputs)
    groups = train.groups
    if groups is None:
        if not Path(options.groups or "").is_file():
            raise InputError(f"{what}: the data has no such column or array, and there is no such file")
        groups = _read_for_all(options, options.groups or "", count, what)
    if groups.shape != (count,):
        raise InputError(f"{what}: shape {groups.shape} for {count} examples; give one group per example")
    missing = groups == "" if are_names(groups) else groups != groups  # only NaN differs from itself
    if missing.any():
        raise InputError(
            f"{what}, row {int(missing.argmax())}: no group; give an example without one a group of its own"
        )
    return groups


def _first_of_each(labels: Array, count: int) -> Array:
    """Return a mask of the examples that are among the first ``count`` of their label."""
    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = numbers.argsort(kind="stable")
    rank: Array = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)
    return rank < count


def _number_classes(raw: Dataset, train: Split, options: DataOptions, what: str) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of classes and, if they have any, their names; refuse training labels that are no class.

    Where nobody declares the classes and the data's own labels are names, they are the names of the classes, in
    alphabetical order, also for other labels that replace them. A class number far beyond the number of different
    labels is most likely a mistake.
    """
    assert train.labels is not None
    declared = options.classes or raw.class_names
    if declared is not None:
        num_classes, names = find_classes(train.labels, declared, what)
        to_class_numbers(train.labels, num_classes, names, what)
        return num_classes, names
    _check_kinds(raw, train, what)
    named = tuple(sorted({*_names_in(train.truth), *_names_in(train.labels)} - {""}))
    num_classes, names = find_classes(train.labels, named or None, what)
    numbers = to_class_numbers(train.labels, num_classes, names, what)
    found = len(numbers.unique())
    if names is None and len(numbers) and num_classes > 2 * found + _GAP:
        raise InputError(
            f"{what}, row {int(numbers.argmax())}: label {num_classes - 1}, but there are only {found} different "
            "labels; correct it, number the classes from 0, or declare them if that is meant: "
            f"--set data.classes={num_classes}"
        )
    return num_classes, names


def _names_in(labels: Array | None) -> tuple[str, ...]:
    """Return the names among labels, in alphabetical order; none if they are numbers."""
    return tuple(sorted(set(labels.tolist()))) if labels is not None and are_names(labels) else ()


def _check_kinds(raw: Dataset, train: Split, what: str) -> None:
    """Refuse names next to numbers, where nothing says which name is which number.

    Only numbers that replace names are clear: `unflip corrupt` writes them so, in the alphabetical order of the names.
    """
    own = train.labels if train.truth is None else train.truth
    assert own is not None
    others = {f"'{key}_labels'": part.labels for key, part in raw.parts().items() if key != "train"}
    if not are_names(own):
        others = {what: train.labels, **others}
    for name, labels in others.items():
        if labels is not None and len(labels) and len(own) and are_names(labels) != are_names(own):
            kinds = ["names" if are_names(array) else "numbers" for array in (labels, own)]
            raise InputError(
                f"{name}: {kinds[0]} such as {labels[0]}, but the data's own training labels are {kinds[1]} such as "
                f'{own[0]}; say which name is which number: --set \'data.classes=["NAME OF 0", "NAME OF 1", ...]\''
            )


def _warn_of_one_class(names: Sequence[str], what: str) -> None:
    """Say which classes most likely are one, written in several ways."""
    written: dict[str, list[str]] = {}
    for name in names:
        written.setdefault(normalize("NFKC", name).casefold(), []).append(f"'{name}'")
    if found := [" and ".join(group) for group in written.values() if len(group) > 1]:
        warnings.warn(
            f"{what}: classes that differ only in case or in how letters are encoded: {', '.join(found[:_LISTED])}; "
            "give them one name if they are one class",
            UnflipWarning,
            stacklevel=3,
        )


def _unseen(num_classes: int, labels: Sequence[Tensor]) -> tuple[int, ...]:
    seen = torch.cat([*labels]).bincount(minlength=num_classes)
    return tuple((seen == 0).nonzero()[:, 0].tolist())


def _evaluation_labels(
    part: Split, key: str, num_classes: int, names: tuple[str, ...] | None, trained: Inputs
) -> Tensor:
    """Return the class numbers of a validation or test set, if its examples have the shape of the training examples."""
    if not len(part.inputs):
        raise InputError(f"'{key}' has no examples; leave it out")
    shape, wanted = part.inputs.shape[1:], trained.shape[1:]
    if shape != wanted:
        hint = f"; to bring images to one size: --set data.image_size={min(wanted[1:])}" if len(wanted) > 1 else ""
        raise InputError(f"'{key}': examples of shape {shape}, the training examples have {wanted}{hint}")
    if part.labels is None:
        raise InputError(f"'{key}' has no labels; add '{key}_labels' or leave it out")
    return to_class_numbers(part.labels, num_classes, names, f"'{key}_labels'")


def open_sets(
    sets: Mapping[str, Split], options: DataOptions, track: Track = untracked
) -> tuple[dict[str, Split], ResizeCrop | None, tuple[Skipped, ...]]:
    """Open sets of image files with :func:`unflip.data.images.open_files`; others stay as they are."""
    files = {key: part.inputs for key, part in sets.items() if isinstance(part.inputs, ImageFiles) and len(part.inputs)}
    if not files:
        return dict(sets), None, ()
    opened = open_files(files, options, track)
    ready = {key: replace(sets[key][opened.kept[key]], inputs=inputs) for key, inputs in opened.inputs.items()}
    return {**sets, **ready}, opened.frame, opened.skipped


def make_source(raw: Dataset, inputs: Inputs, standardize: Standardization | None, options: DataOptions) -> Source:
    """Return a source for inputs that a loader found, images or rows, or that an encoder made."""
    assert not isinstance(inputs, Table)
    if isinstance(inputs, ImageFiles):
        assert standardize is not None
        return FileSource(inputs, standardize, augment=options.augment, crop=options.crop, workers=options.workers)
    if raw.holds_images and standardize is not None:
        assert isinstance(inputs, np.ndarray)
        if options.augment and options.shift >= (side := min(inputs.shape[2:])):
            raise ConfigError(f"data.shift = {options.shift}: must be below the images' side, {side}; 0 leaves them be")
        return ImageSource(inputs, standardize, augment=options.augment, shift=options.shift)
    return ArraySource(inputs, standardize, options.jitter)


def settle_scale(data: Dataset) -> Dataset:
    """Return data whose columns have a scale each with one scale for all, if given labels are likelier under that.

    Columns in units of their own want a scale each; where they have one unit, as features of a network, small ones are
    often noise and should stay small. The choice is made by spherical class Gaussians of up to 4,000 training examples,
    each left out of its class, so that no label speaks for itself; those that are alone in their class say nothing.
    In a tie all columns share a scale. It is made once noise has been added: no clean label may have a say.
    """
    by_column = data.standardization
    if by_column is None or len(by_column.std.shape) != 1:
        return data
    rows = evenly_spaced(len(data.given), _TRIED, data.given.device)
    rows = rows[~(data.removed[: len(data.given)] | data.is_val)[rows]]
    features, labels = data.source.fetch(rows), data.given[rows]
    scale = (by_column.std.square() * features.square().mean(0)).mean().sqrt()
    if not float(scale) > 0:
        return data
    in_one = Standardization(by_column.mean, scale.to(by_column.std.dtype).expand_as(by_column.std).contiguous())
    alone = labels.bincount()[labels] == 1
    if bool(alone.all()):
        return data
    features, labels = features[~alone], labels[~alone]
    together = _surprise(features * (by_column.std / in_one.std).float(), labels, data.num_classes)
    if together > _surprise(features, labels, data.num_classes):
        return data
    for part in data.parts().values():
        assert isinstance(part.source, ArraySource | JoinedSource)
        part.source.rescale(in_one)
    return replace(data, standardization=in_one)


def _surprise(features: Tensor, labels: Tensor, num_classes: int) -> float:
    fitted = fit_discriminant(features.__getitem__, labels, num_classes, shrink=1.0)
    log_probs = held_out_log_posterior(fitted, features.__getitem__, labels)
    present = torch.zeros(num_classes, dtype=torch.bool).index_fill_(0, labels, True)
    return least_surprise(log_probs[:, present], (present.cumsum(0) - 1)[labels])
