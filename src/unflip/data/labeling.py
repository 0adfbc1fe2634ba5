"""Labeling: chooses and checks the labels, numbers the classes, and makes inputs ready for networks."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unicodedata import category, normalize

import numpy as np
import torch
from torch import Tensor

from unflip.data.annotations import annotate, read_annotations, with_consensus
from unflip.data.arrays import Array, refuse_rows
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Inputs, Split
from unflip.data.files import ImageFiles
from unflip.data.images import FileSource, ImageSource, open_sets
from unflip.data.labels import (
    are_misleading,
    are_names,
    as_names,
    before_apply,
    find_classes,
    missing_labels,
    number_names,
    read_labels,
    read_reviewed,
    to_class_numbers,
)
from unflip.data.matching import Keys
from unflip.data.options import DataOptions
from unflip.data.sources import ArraySource, JoinedSource, Source, Standardization, check_finite, check_varied
from unflip.data.split import identities, rank_in_class, same_examples
from unflip.errors import ConfigError, InputError, UnflipWarning, one_line, unknown
from unflip.progress import Track, untracked
from unflip.stats.discriminant import evenly_spaced, fit_discriminant, leave_group_out_log_posterior, tempered_nll

_ALL_DISTINCT = 100  # up to this many labels may all differ
_LISTED = 5  # classes that an error lists
_SIGNS = 3  # -1, 0 and 1 are classes
SCALE_SAMPLE = 4000  # examples used to choose a scale


def label_data(
    raw: Dataset, options: DataOptions, track: Track = untracked, standardization: Standardization | None = None
) -> Dataset:
    """Check the labels, number the classes, and turn inputs into sources.

    Args:
        raw: the data from a loader or an encoder.
        options: which labels, how many examples, what is done to inputs.
        track: shows the progress of reading images.
        standardization: of rows; by default fitted to the training examples.
    """
    raw, what = choose_labels(raw, options)
    _warn_of_one_class(raw.class_names or (), what)
    sets, frame, skipped = open_sets(raw.parts(), options, track)
    train = sets["train"]
    for key, part in sets.items():
        if key != "train":
            _check_evaluation(part, key, train.inputs, options.path)
        if isinstance(part.inputs, np.ndarray):
            check_finite(part.inputs, f"{options.path}, '{key}'")
    if options.classes is None:
        _warn_of_untrained(sets, raw.class_names, options.path)
    if isinstance(train.inputs, np.ndarray):
        check_varied(train.inputs, f"{options.path}, 'train'")
    standardization = raw.normalization or standardization
    if isinstance(train.inputs, np.ndarray) and standardization is None and options.standardize != "off":
        standardization = Standardization.fit(train.inputs, one_scale=options.standardize == "global")
    kind = content_kind(raw, train)
    ready = {
        key: replace(
            part,
            inputs=np.empty((0, 0)),  # free the memory
            contents=contents_of(part),
            opened=make_source(raw, part.inputs, standardization, options),
        )
        for key, part in sets.items()
    }
    count = len(ready["train"].class_numbers)
    every = count + (len(ready["val"].class_numbers) if "val" in ready else 0)
    reviewed, removed, weights = None, torch.zeros(every, dtype=torch.bool), None
    if options.changes is not None or options.reviewed is not None:
        whole = replace(raw.with_parts(ready), content_kind=kind, tests={}).joined()
        classes = raw.class_names or [str(i) for i in range(raw.num_classes)]
        keys = Keys(whole.ids, whole.content_digests(), whole.given.numpy(), classes)
        if options.changes is not None:  # the labels of the review replace those of the list
            given, reviewed = before_apply(Path(options.changes), keys)
            keys = keys._replace(given=given.numpy())
        if options.reviewed is not None:
            chosen, removed, weights, given = read_reviewed(Path(options.reviewed), keys)
            reviewed = chosen if reviewed is None else torch.where((chosen >= 0) | removed, chosen, reviewed)
        parts = zip(("train", "val"), np.split(given.numpy(), [count]), strict=True)
        ready |= {key: replace(ready[key], labels=labels) for key, labels in parts if key in ready}
    return replace(
        raw.with_parts(ready),
        clean_val=raw.val is not None and (raw.clean_val or train.truth is not None),
        images_path=raw.images_path or (options.path if raw.holds_images or raw.as_pixels else None),
        skipped=(*raw.skipped, *skipped),
        content_kind=kind,
        own_labels=options.labels is None,
        standardization=standardization,
        frame=frame,
        same=same_examples(train),
        reviewed=reviewed,
        removed=removed,
        review_weights=weights,
        is_val=torch.zeros(count, dtype=torch.bool),
    )


def content_kind(raw: Dataset, train: Split) -> str:
    """Return what the contents of examples are hashes of: cells, images in some size, or rows of so many numbers."""
    if train.contents is not None or isinstance(train.inputs, ImageFiles):
        return raw.content_kind
    if train.digests is not None:
        settings = raw.encoding.settings if raw.encoding is not None else {}
        return "-".join(["image", *(str(settings.get(key)) for key in ("image_size", "image_resize", "resample"))])
    return f"row{int(np.prod(train.inputs.shape[1:]))}"


def contents_of(part: Split) -> Array | None:
    """Return the contents of examples (n,): see :class:`Split`."""
    if part.contents is not None or (part.digests is None and not isinstance(part.inputs, np.ndarray)):
        return part.contents
    return identities(part)


def choose_labels(raw: Dataset, options: DataOptions) -> tuple[Dataset, str]:
    """Return the data with class numbers and the examples to train with, and the name of these labels in errors.

    The labels are checked here, before images are read or encoded, which may take long.
    """
    raw.check_trainable(options.path)
    column = "train_labels" if raw.label_column is None else f"column '{raw.label_column}'"
    what, total = f"{options.path}, {column}", len(raw.train.inputs)
    if options.annotations is not None:
        what = f"annotations {options.annotations}"
        raw = annotate(raw, read_annotations(Path(options.annotations)), options.class_names, what)
    train = raw.train
    if options.limit is not None:
        if options.limit > total:
            raise ConfigError(f"limit = {options.limit}: there are only {total} training examples")
        train = train[: options.limit]
    if options.labels is not None:
        what = f"labels {options.labels}"
        train = replace(train, labels=_other_labels(raw, train, options, what), truth=train.labels)
    if options.groups is not None:
        train = replace(train, groups=_find_groups(options, train))
    if train.annotations is not None:
        raw, _ = with_consensus(replace(raw, train=train), what)
        train = raw.train
    if train.labels is None:
        joined = ", or" if ";" in raw.unlabeled else ";"
        raise InputError(f"{options.path}: {raw.unlabeled}{joined} give a file with --labels")
    labels, truth = train.labels, train.truth
    if truth is not None and missing_labels(truth, options.unlabeled).any():
        truth = None  # labels of some examples are no truth to evaluate by
    missing = _find_missing(labels, options.unlabeled, what)
    filled = replace(train, labels=np.where(missing, labels[~missing][0], labels), truth=truth)
    raw = _number_classes(_name_numbers(replace(raw, train=filled), options, what), options, what)
    labeled = int((~missing).sum())
    if labeled > _ALL_DISTINCT and len(raw.given.unique()) == labeled:
        raise InputError(f"{what}: all {labeled:,} labels differ, so they are not classes; use other labels")
    raw = replace(raw, train=replace(raw.train, labels=np.where(missing, -1, raw.given.numpy())))
    if options.per_class is not None:
        raw = replace(raw, train=raw.train[rank_in_class(raw.given + 1).numpy() < options.per_class])
    return raw, what


def _find_missing(labels: Array, marker: str | None, what: str) -> Array:
    """Return a mask (n,) of examples without a label; raise InputError if there are no others."""
    missing = missing_labels(labels, marker)
    if missing.all():
        raise InputError(f"{what}: no example has a label")
    if marker is not None and (missing == missing_labels(labels)).all():
        warnings.warn(f"{what}: no label is '{marker}', as --unlabeled says", UnflipWarning, stacklevel=4)
    return missing


def _name_numbers(raw: Dataset, options: DataOptions, what: str) -> Dataset:
    """Return data whose labels are other numbers than 0 to k - 1, such as years, with these numbers as class names.

    Classes are those that the data declares, else those that occur among the training labels.
    """
    train = raw.train
    if options.classes or raw.class_names or train.labels is None:
        return raw
    names = number_names([labels for labels in (train.labels, train.truth) if labels is not None], what)
    if names is None:
        return raw
    if names == tuple(map(str, range(-1, len(names) - 1))) and len(names) > _SIGNS:
        text = f"{what}: -1 is a class like the others; if it means that there is no label, drop these examples"
        warnings.warn(text, UnflipWarning, stacklevel=3)
    parts = {
        key: replace(part, labels=as_names(part.labels), truth=as_names(part.truth))
        for key, part in raw.parts().items()
    }
    return replace(raw.with_parts(parts), class_names=names)


def _other_labels(raw: Dataset, train: Split, options: DataOptions, what: str) -> Array:
    """Read the labels that replace those of the data; numbers are ambiguous where class names are other numbers."""
    names, chosen = options.class_names or raw.class_names or _names_in(train.labels), options.labels or ""
    if any(chosen.startswith(name.partition(":")[0] + ":") for name in raw.label_sets):
        if chosen not in raw.label_sets:
            raise ConfigError(unknown("labels", chosen, raw.label_sets))
        labels = raw.label_sets[chosen]()
    else:
        labels = read_labels(Path(chosen), raw.ids, names, len(raw.train.inputs))
    labels = _one_per_example(labels, train, options, what, "labels")
    if are_misleading(names) and len(labels) and not are_names(labels):
        called = ", ".join(names[:_LISTED])
        told = f"numbers such as {labels[0]} are ambiguous, since the classes are called {called}"
        raise InputError(f"{what}: {told}; give class names")
    return labels


def _find_groups(options: DataOptions, train: Split) -> Array:
    """Return the group of each example: from the column or array of that name, else from a file."""
    what, path = f"data.groups {options.groups}", Path(options.groups or "")
    if train.groups is None and not path.is_file():
        raise InputError(f"{what}: no such column, array or file")
    groups = read_labels(path) if train.groups is None else train.groups
    groups = _one_per_example(groups, train, options, what, "groups")
    refuse_rows(missing_labels(groups), what, lambda row: "no group; every example needs one")
    return groups


def _one_per_example(values: Array, train: Split, options: DataOptions, what: str, noun: str) -> Array:
    """Return labels or groups (n,), one for each training example; more are allowed with ``limit``."""
    count = len(train.inputs)
    if values.ndim != 1 or len(values) < count or (len(values) > count and options.limit is None):
        few = values.ndim == 1 and 0 < len(values) < count
        hint = f"; if they belong to the first examples: --limit {len(values)}" if few else ""
        hint = f"; is the first of them, '{values[0]}', a header?" if values.shape == (count + 1,) else hint
        raise InputError(f"{what}: {' x '.join(map(str, values.shape))} {noun} for {count} examples{hint}")
    return values[:count]


def _number_classes(raw: Dataset, options: DataOptions, what: str) -> Dataset:
    """Return the data with class numbers as labels; raise InputError for labels of no class.

    If classes are not declared and the data's own labels are names, these are the class names, in alphabetical order,
    also for other labels that replace them. Those of validation and test sets are matched by name.
    """
    train = raw.train
    assert train.labels is not None
    declared = options.classes or raw.class_names or None
    if declared is None:
        _check_kinds(raw, what)
        own = [train.truth, *(part.labels for part in raw.parts().values())]
        declared = tuple(sorted({name for labels in own for name in _names_in(labels)} - {""})) or None
    num_classes, names = find_classes(train.labels, declared, what)

    def numbered(labels: Array | None, where: str) -> Array | None:
        return None if labels is None else to_class_numbers(labels, num_classes, names, where).numpy()

    given, truth = numbered(train.labels, what), numbered(train.truth, "train_labels")
    if (present := len(np.unique(train.labels))) < 2:
        raise InputError(f"{what}: {present} class among {len(train.labels)} labels; at least two are needed")
    parts = {"train": replace(train, labels=given, truth=truth)}
    try:
        for key, part in raw.parts().items():
            if key != "train":
                parts[key] = replace(part, labels=numbered(part.labels, f"{options.path}, '{key}_labels'"))
    except InputError as error:
        raise InputError(f"{error} (declare a class without training examples: data.classes)") from error
    return replace(raw.with_parts(parts), num_classes=num_classes, class_names=names)


def _names_in(labels: Array | None) -> tuple[str, ...]:
    """Return the distinct names among labels, sorted; none if they are numbers."""
    return tuple(sorted(set(labels.tolist()))) if labels is not None and are_names(labels) else ()


def _check_kinds(raw: Dataset, what: str) -> None:
    """Raise InputError if some labels are names and others numbers, without names for the numbers.

    Numbers may replace names: `unflip corrupt` numbers the names in alphabetical order.
    """
    train = raw.train
    own = train.labels if train.truth is None else train.truth
    assert own is not None
    others = {f"'{key}_labels'": part.labels for key, part in raw.parts().items() if key != "train"}
    if not are_names(own):
        others = {what: train.labels, **others}
    for name, labels in others.items():
        if labels is not None and len(labels) and len(own) and are_names(labels) != are_names(own):
            told = f"labels such as {labels[0]}, but the data's own are such as {own[0]}"
            how = """--set 'data.classes=["NAME OF 0", "NAME OF 1", ...]'"""
            raise InputError(f"{name}: {told}; name the numbers: {how}")


def _warn_of_one_class(names: Sequence[str], what: str) -> None:
    """Warn of class names that look the same."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(_folded(name), []).append(f"'{one_line(name)}'")
    if same := [" and ".join(group) for group in spellings.values() if len(group) > 1]:
        kinds = "case, Unicode form, invisible characters or leading zeros"
        text = f"{what}: class names that differ in {kinds} only: {', '.join(same[:_LISTED])}"
        warnings.warn(text, UnflipWarning, stacklevel=3)


def _folded(name: str) -> str:
    """Return a name without what people overlook.

    >>> _folded("ZERO\\u200b  width"), _folded("007")
    ('zero width', '7')
    """
    visible = "".join(char for char in normalize("NFKC", name).casefold() if category(char) != "Cf")
    return re.sub(r"^0+(?=\d)", "", " ".join(visible.split()))


def _warn_of_untrained(sets: Mapping[str, Split], names: Sequence[str] | None, path: str) -> None:
    """Warn of classes that occur in validation or test sets only."""
    train = sets["train"]
    trained = np.union1d(train.class_numbers, train.class_numbers if train.truth is None else train.truth)
    for key, part in sets.items():
        if len(others := np.setdiff1d(part.class_numbers, trained).tolist()):
            listed = ", ".join(f"'{names[number]}'" if names else str(number) for number in others[:_LISTED])
            more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
            text = f"{path}, '{key}': no training examples of {listed}{more}; they cannot be predicted"
            warnings.warn(text, UnflipWarning, stacklevel=3)


def _check_evaluation(part: Split, key: str, train_inputs: Inputs, path: str) -> None:
    """Raise InputError for a validation or test set without examples or labels, or with examples of another shape."""
    if not len(part.inputs):
        raise InputError(f"{path}: '{key}' has no examples; remove it")
    shape, train_shape = part.inputs.shape[1:], train_inputs.shape[1:]
    if shape != train_shape:
        hint = f"; to resize images: --set data.image_size={min(train_shape[1:])}" if len(train_shape) > 1 else ""
        raise InputError(f"{path}, '{key}': examples of shape {shape}, but {train_shape} in training{hint}")
    if part.labels is None:
        raise InputError(f"{path}: '{key}' has no labels; add '{key}_labels' or remove it")


def make_source(raw: Dataset, inputs: Inputs, standardize: Standardization | None, options: DataOptions) -> Source:
    """Return a source for images or rows of numbers."""
    assert not isinstance(inputs, Table)
    if isinstance(inputs, ImageFiles):
        assert standardize is not None
        return FileSource(inputs, standardize, augment=options.augment, crop=options.crop, workers=options.workers)
    if raw.holds_images and standardize is not None:
        assert isinstance(inputs, np.ndarray)
        if options.augment and options.shift >= (side := min(inputs.shape[2:])):
            raise ConfigError(f"data.shift = {options.shift}: must be below the images' side, {side}")
        return ImageSource(inputs, standardize, augment=options.augment, shift=options.shift)
    return ArraySource(inputs, standardize, options.jitter)


def settle_scale(data: Dataset) -> Dataset:
    """Return data standardized by one scale for all columns, if the given labels are more likely under it.

    Columns in units of their own need a scale each; in features of a network, which share a unit, small ones are often
    noise and should stay small. Both are compared by the leave-one-out likelihood of spherical class Gaussians on up to
    4,000 training examples; a tie goes to the single scale. It is called after noise is added, so that no clean label
    is used.
    """
    per_feature = data.standardization
    if per_feature is None or len(per_feature.std.shape) != 1:
        return data
    rows = evenly_spaced(len(data.given), SCALE_SAMPLE, data.given.device)
    rows = rows[(~(data.removed[: len(data.given)] | data.is_val) & (data.given >= 0))[rows]]
    features, labels = data.source.fetch(rows), data.given[rows]
    scale = (per_feature.std.square() * features.square().mean(0)).mean().sqrt()
    several = labels.bincount()[labels] > 1
    if not float(scale) > 0 or not bool(several.any()):
        return data
    common = Standardization(per_feature.mean, scale.to(per_feature.std.dtype).expand_as(per_feature.std).contiguous())
    features, labels = features[several], labels[several]
    loss = _held_out_loss(features * (per_feature.std / common.std).float(), labels, data.num_classes)
    if loss > _held_out_loss(features, labels, data.num_classes):
        return data
    for part in data.parts().values():
        assert isinstance(part.source, ArraySource | JoinedSource)
        part.source.rescale(common)
    return replace(data, standardization=common)


def _held_out_loss(features: Tensor, labels: Tensor, num_classes: int) -> float:
    fitted = fit_discriminant(features.__getitem__, labels, num_classes, shrink=1.0)
    log_probs = leave_group_out_log_posterior(fitted, features.__getitem__, labels)
    present = torch.zeros(num_classes, dtype=torch.bool).index_fill_(0, labels, True)
    return tempered_nll(log_probs[:, present], (present.cumsum(0) - 1)[labels])
