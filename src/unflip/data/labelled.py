"""LabelledData: examples that were read and checked, with class numbers as labels; noise and split come later."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from unflip.data.cells import Cells
from unflip.data.duplicates import same_examples
from unflip.data.encoding import Encoding
from unflip.data.files.arrays import Array
from unflip.data.files.labels import are_misleading, are_names, find_classes, read_labels, to_class_numbers
from unflip.data.files.reviewed import read_reviewed
from unflip.data.files.shards import Shards
from unflip.data.images.files import Frame, ImageFiles, Skipped
from unflip.data.images.opening import open_files
from unflip.data.images.sources import FileSource, ImageSource
from unflip.data.options import DataOptions
from unflip.data.raw import Inputs, LabelledSet, RawData
from unflip.data.sources import (
    ArraySource,
    JoinedSource,
    Source,
    Standardisation,
    check_finite,
    check_varied,
    fit_standardisation,
)
from unflip.errors import ConfigError, InputError, UnflipWarning
from unflip.progress import Track, untracked

_ALL_DISTINCT = 100  # labels that may all differ, as those of a small trial do
_LISTED = 5  # most classes that an error lists
_GAP = 10  # see _check_gap; few labels of many classes may well leave some out


@dataclass(frozen=True)
class EvaluationSet:
    """Validation or test examples, with their labels."""

    source: Source
    labels: Tensor
    leaked: Array | None = None
    """As in :class:`unflip.data.raw.LabelledSet` (n,)."""


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
    """Validation examples that came with the data; None once they are :meth:`joined`."""
    clean_val: bool
    """Whether their labels are known to be right."""
    tests: dict[str, EvaluationSet]
    num_classes: int
    class_names: list[str] | None
    unseen: tuple[int, ...]
    """Classes that nobody declared and no example has: gaps in the numbering of the labels."""
    class_map: str | None
    """The named map that `asym` noise uses on this data by default."""
    ids: tuple[str, ...] | None
    """Of the training examples, followed by those of ``val``."""
    groups: Array | None
    """The group of each training example (n,); a split keeps groups together."""
    same: Tensor | None
    """A number per training example (n,), the same where they are equal, alike or of one group; None if all differ."""
    reviewed: Tensor | None
    """The labels that people decided, -1 for all others, in the order of ``ids``; None if they decided none."""
    removed: Tensor
    """Which examples people removed, in the order of ``ids``: they keep their rows, and nothing learns from them."""
    pictures_path: str | None
    """Where people find pictures of the examples: the data itself, or the images that features were computed from."""
    encoding: Encoding | None
    """How the examples became rows of features, where that is known."""
    standardisation: Standardisation | None
    frame: Frame | None
    """What the network sees of an image file; None where images are used in their own size."""
    skipped: tuple[Skipped, ...]
    """Broken images, which were left out."""
    is_val: Tensor | None = None
    """Which examples validate (n,), once those that came with the data are :meth:`joined`."""
    noise_record: dict[str, Any] | None = None
    """How noise was added, if it was."""

    @property
    def truth(self) -> Tensor:
        """The labels that noise starts from (n,): the true ones or, where they are unknown, the given ones."""
        return self.given if self.clean is None else self.clean

    def joined(self) -> "LabelledData":
        """Return the data with the validation examples that it came with, if any, after its training examples."""
        if self.val is None:
            return self
        given = torch.cat([self.given, self.val.labels])
        return replace(
            self,
            train=JoinedSource([self.train, self.val.source]),
            given=given,
            clean=None if self.clean is None else torch.cat([self.clean, self.val.labels]),
            val=None,
            is_val=torch.arange(len(given)) >= len(self.given),
            groups=None,  # there is nothing left to split
            same=None if self.same is None else _followed(self.same, len(self.val.labels)),
        )


def _followed(numbers: Tensor, count: int) -> Tensor:
    """Return ``numbers`` and ``count`` more, all of them new."""
    return torch.cat([numbers, int(numbers.max()) + 1 + torch.arange(count)])


def label_data(
    raw: RawData, options: DataOptions, track: Track = untracked, wanted: Standardisation | None = None
) -> LabelledData:
    """Check what a loader found, number its classes, and turn its inputs into sources.

    ``wanted`` standardises rows, in place of what suits them.
    """
    train, what = choose_labels(raw, options)
    assert train.labels is not None
    num_classes, names = _find_classes(raw, train, options, what)
    _warn_of_alike(names or [], what)
    sets, frame, skipped = open_sets(replace(raw, train=train).parts(), options, track)
    train = sets.pop("train")
    assert train.labels is not None
    given = to_class_numbers(train.labels, num_classes, names, what)
    clean = None if train.truth is None else to_class_numbers(train.truth, num_classes, names, "train_labels")
    if (found := len(given.unique())) < 2:
        raise InputError(f"{what}: {found} class among {len(given)} labels; at least two are needed")
    declared = options.classes or raw.class_names
    if declared is None:
        _check_seen(train.labels, raw.tests)
    of_files = isinstance(raw.train.inputs, ImageFiles)
    labels = {
        key: _evaluation_labels(part, key, num_classes, names, train.inputs, of_files=of_files)
        for key, part in sets.items()
    }
    for key, part in {"train": train, **sets}.items():
        if isinstance(part.inputs, np.ndarray | Shards):
            check_finite(part.inputs, f"{options.path}, '{key}'")
    if isinstance(train.inputs, np.ndarray | Shards):
        check_varied(train.inputs, f"{options.path}, 'train'")

    standardise = raw.normalisation or wanted
    if standardise is None and options.standardize != "off" and isinstance(train.inputs, np.ndarray | Shards):
        standardise = fit_standardisation(train.inputs, one_scale=options.standardize == "whole")
    others = {
        key: EvaluationSet(make_source(raw, part.inputs, standardise, options), labels[key], part.leaked)
        for key, part in sets.items()
    }
    val = others.pop("val", None)
    ids, reviewed = _ids(train, sets.get("val")), None
    count = len(given) + (len(val.labels) if val else 0)
    removed = torch.zeros(count, dtype=torch.bool)
    if options.reviewed is not None:
        class_names = names or [str(i) for i in range(num_classes)]
        reviewed, removed = read_reviewed(Path(options.reviewed), count, ids, class_names)
    return LabelledData(
        name=raw.name,
        train=make_source(raw, train.inputs, standardise, options),
        given=given,
        clean=clean,
        own_labels=options.labels is None,
        val=val,
        clean_val=val is not None and (raw.clean_val or clean is not None),
        tests=others,
        num_classes=num_classes,
        class_names=names,
        unseen=_unseen(num_classes, [given, clean, *labels.values()]) if declared is None and names is None else (),
        class_map=raw.class_map,
        ids=ids,
        groups=train.groups,
        same=same_examples(train),
        reviewed=reviewed,
        removed=removed,
        pictures_path=raw.images_path or (options.path if raw.holds_images or raw.as_pixels else None),
        encoding=raw.encoding,
        standardisation=standardise,
        frame=frame,
        skipped=(*raw.skipped, *skipped),
    )


def choose_labels(raw: RawData, options: DataOptions) -> tuple[LabelledSet, str]:
    """Return the training examples with the labels to train with, and what to call these labels in errors.

    The labels are checked here, before images are read or become features, which may take long.
    """
    raw.check_trainable(options.path)
    _check_labelled(raw, options.path)
    called = "train_labels" if raw.label_column is None else f"column '{raw.label_column}'"
    train, what = raw.train, f"{options.path}, {called}"
    count, ids = len(train.inputs), None if train.ids is None else [str(name) for name in train.ids.tolist()]
    if options.take is not None:
        if options.take > count:
            raise ConfigError(f"take = {options.take}: there are only {count} training examples")
        count = options.take
        train = train[:count]
    if options.labels is not None:
        what = f"labels {options.labels}"
        named = options.class_names or raw.class_names or _names_in(train.labels)
        labels = _read_labels(options, options.labels, count, what, ids, named, len(raw.train.inputs))
        if named and are_misleading(named) and len(labels) and not are_names(labels):
            raise InputError(
                f"{what}: numbers such as {labels[0]}, but the classes are called {', '.join(named[:_LISTED])}: it is "
                "not clear which are meant; give all labels by these names"
            )
        train = replace(train, labels=labels, truth=train.labels)
    if options.groups is not None:
        train = replace(train, groups=_find_groups(options, train, count))
    if train.labels is None:
        raise InputError(f"{options.path}: {raw.unlabelled}; give a file with --labels")
    _find_classes(raw, train, options, what)
    if len(train.labels) > _ALL_DISTINCT and len(np.unique(train.labels)) == len(train.labels):
        raise InputError(f"{what}: all {len(train.labels):,} labels differ, so they name no classes; take other labels")
    if options.per_class is not None:
        train = train[_first_of_each(train.labels, options.per_class)]
    return train, what


def _check_labelled(raw: RawData, path: str) -> None:
    """Refuse an empty label among others, naming its row and, where it has one, its example."""
    if raw.incomplete is not None:
        raise InputError(f"{path}, {raw.incomplete}")
    for key, part in raw.parts().items():
        if part.labels is not None and are_names(part.labels) and (empty := part.labels == "").any():
            row = int(empty.argmax())
            named = f" (of '{part.ids[row]}')" if part.ids is not None else ""
            raise InputError(f"{path}, {key}_labels, row {row}: the label is empty{named}; every example needs one")


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


def make_source(raw: RawData, inputs: Inputs, standardise: Standardisation | None, options: DataOptions) -> Source:
    """Return a source for inputs that a loader found, images or rows, or that an encoder made."""
    assert not isinstance(inputs, Cells)
    if isinstance(inputs, ImageFiles):
        assert standardise is not None
        return FileSource(inputs, standardise, augment=options.augment, crop=options.crop, workers=options.workers)
    if raw.holds_images and standardise is not None:
        assert isinstance(inputs, np.ndarray)
        if options.augment and options.shift >= (side := min(inputs.shape[2:])):
            raise ConfigError(f"data.shift = {options.shift}: must be below the images' side, {side}; 0 leaves them be")
        return ImageSource(inputs, standardise, augment=options.augment, shift=options.shift)
    return ArraySource(inputs, standardise, options.jitter)


def _ids(train: LabelledSet, val: LabelledSet | None) -> tuple[str, ...] | None:
    if train.ids is None:
        return None
    ids = [*train.ids.tolist()]
    if val is not None:
        ids += [f"val-{i}" for i in range(len(val.inputs))] if val.ids is None else val.ids.tolist()
    return tuple(map(str, ids))


def _first_of_each(labels: Array, count: int) -> Array:
    """Return a mask of the examples that are among the first ``count`` of their label."""
    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = numbers.argsort(kind="stable")
    rank: Array = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)
    return rank < count


def _read_labels(
    options: DataOptions,
    path: str,
    count: int,
    what: str,
    ids: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    total: int | None = None,
) -> Array:
    labels = read_labels(Path(path), ids, names or (), total)
    if labels.ndim != 1:
        raise InputError(f"{what}: shape {labels.shape}; labels must be (n,)")
    if len(labels) != count and not (options.take is not None and len(labels) > count):
        few = 0 < len(labels) < count
        hint = f"; if they are those of the first examples: --take {len(labels)}" if few else ""
        raise InputError(f"{what}: {len(labels)} labels for {count} examples{hint}")
    return labels[:count]


def _find_classes(raw: RawData, train: LabelledSet, options: DataOptions, what: str) -> tuple[int, list[str] | None]:
    """Return the number of classes and, if they have any, their names; refuse training labels that are no class.

    Where nobody declares the classes and the data's own labels are names, they are the names of the classes, in
    alphabetical order, also for other labels that replace them.
    """
    assert train.labels is not None
    declared = options.classes or raw.class_names
    if declared is None:
        _check_kinds(raw, train, what)
        named = sorted({*(_names_in(train.truth) or ()), *(_names_in(train.labels) or ())} - {""})
        num_classes, names = find_classes(train.labels, tuple(named) or None, what)
    else:
        num_classes, names = find_classes(train.labels, declared, what)
    numbers = to_class_numbers(train.labels, num_classes, names, what)
    if declared is None and names is None:
        _check_gap(numbers, what)
    return num_classes, names


def _names_in(labels: Array | None) -> tuple[str, ...] | None:
    """Return the names among labels, in alphabetical order; None if they are numbers."""
    return tuple(sorted(set(labels.tolist()))) if labels is not None and are_names(labels) else None


def _warn_of_alike(names: Sequence[str], what: str) -> None:
    """Say which classes most likely are one, written in several ways."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(normalize("NFKC", name).casefold(), []).append(f"'{name}'")
    found = [" and ".join(group) for group in alike.values() if len(group) > 1]
    if found:
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        named = f"{', '.join(found[:_LISTED])}{more}"
        warnings.warn(
            f"{what}: classes that differ only in case or in how letters are encoded: {named}; give them one name if "
            "they are one class",
            UnflipWarning,
            stacklevel=3,
        )


def _check_kinds(raw: RawData, train: LabelledSet, what: str) -> None:
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


def _check_gap(labels: Tensor, what: str) -> None:
    """Refuse a class number far beyond the number of classes that have examples: most likely a mistake."""
    found = len(labels.unique())
    if len(labels) and int(labels.max()) >= 2 * found + _GAP:
        row, most = int(labels.argmax()), int(labels.max())
        raise InputError(
            f"{what}, row {row}: label {most}, but there are only {found} different labels; correct it, number the "
            f"classes from 0, or declare them if that is meant: --set data.classes={most + 1}"
        )


def _unseen(num_classes: int, labels: Sequence[Tensor | None]) -> tuple[int, ...]:
    seen = torch.cat([part for part in labels if part is not None]).bincount(minlength=num_classes)
    return tuple((seen == 0).nonzero()[:, 0].tolist())


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
    missing = groups == "" if are_names(groups) else groups != groups  # only NaN differs from itself
    if missing.any():
        raise InputError(
            f"{what}, row {int(missing.argmax())}: no group; give an example without one a group of its own"
        )
    return groups


def _evaluation_labels(
    part: LabelledSet, key: str, num_classes: int, names: list[str] | None, trained: Inputs, *, of_files: bool
) -> Tensor:
    """Return the class numbers of a validation or test set, if its examples have the shape of the training examples.

    ``of_files`` says whether these were read from files of images.
    """
    if not len(part.inputs):
        raise InputError(f"'{key}' has no examples; leave it out")
    shape, wanted = part.inputs.shape[1:], trained.shape[1:]
    if shape != wanted:
        hint = f"; to bring all to one size: --set data.image_size={min(wanted[1:])}" if of_files else ""
        raise InputError(f"'{key}': examples of shape {shape}, the training examples have {wanted}{hint}")
    if part.labels is None:
        raise InputError(f"'{key}' has no labels; add '{key}_labels' or leave it out")
    return to_class_numbers(part.labels, num_classes, names, f"'{key}_labels'")


def _check_seen(given: Array, tests: Mapping[str, LabelledSet]) -> None:
    """Refuse a class that occurs only in a test set."""
    for key, part in tests.items():
        if part.labels is None or are_names(part.labels) != are_names(given):
            continue
        unseen = np.setdiff1d(part.labels, given)
        if not are_names(unseen):  # what is no class number is refused later
            unseen = unseen[np.isfinite(unseen) & (unseen >= 0) & (unseen == np.floor(unseen))]
        if len(unseen):
            row = int((part.labels == unseen[0]).argmax())
            name = unseen[0] if are_names(unseen) else int(unseen[0])
            raise InputError(
                f"'{key}_labels', row {row}: label {name}, but class {name} has no training example; declare the "
                "classes (--set data.classes=K) if that is intended"
            )
