"""Dataset: the one type of data set; each step (load, encode, label, corrupt, split) returns a changed copy of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import Array, Shards, stripped
from unflip.data.columns import Table
from unflip.data.files import ImageFiles, ResizeCrop, Skipped
from unflip.data.sources import JoinedSource, Source, Standardization
from unflip.errors import InputError

IMAGE_STATS = 4
"""How many figures are noted of each image."""
Inputs = Array | Shards | ImageFiles | Table
"""Examples as they were read: rows of numbers or images in arrays, files of images, or cells of a table."""
_LONGEST = 60  # characters of a setting that a message shows
_WHERE = "_file"  # ends the names of settings that say where something lay, not what it is


@dataclass(frozen=True)
class Split:
    """Training, validation or test examples: inputs and labels, and what else is known of each of them.

    Attributes:
        inputs: as they were read; an empty array once the data is labeled, and ``source`` has taken their place.
        labels: as in the file, (n,), numbers or names; class numbers once the data is labeled.
        truth: the labels before others or noise replaced them (n,). For evaluation only.
        ids: names of the examples (n,).
        digests: digests of what the inputs were computed from, pictures or texts; equal ones belong to the same.
        image_stats: features of images only, (n, 4): mean and standard deviation of each image's brightness, from 0 to
            1, and the width and height that it came with.
        groups: the column or array that `data.groups` names, if the data has it.
        alike: numbers, the same for examples that were found to be nearly the same, if anybody looked.
        leaked: of test examples: which are the same as one that trains or validates, or nearly so, if anybody looked.
        opened: see :attr:`source`.
    """

    inputs: Inputs
    labels: Array | None
    truth: Array | None = None
    ids: Array | None = None
    digests: Array | None = None
    image_stats: Array | None = None
    groups: Array | None = None
    duplicates: Array | None = None
    leaked: Array | None = None
    opened: Source | None = None

    def __getitem__(self, rows: slice | Array) -> "Split":
        def pick(array: Array | None) -> Array | None:
            return None if array is None else array[rows]

        return Split(
            self.inputs[rows],
            pick(self.labels),
            truth=pick(self.truth),
            ids=pick(self.ids),
            digests=pick(self.digests),
            image_stats=pick(self.image_stats),
            groups=pick(self.groups),
            duplicates=pick(self.duplicates),
            leaked=pick(self.leaked),
        )

    @property
    def source(self) -> Source:
        """The inputs, ready for a network; only of labeled data."""
        assert self.opened is not None
        return self.opened

    @property
    def class_numbers(self) -> Tensor:
        """The labels (n,) as class numbers; only of labeled data."""
        assert self.labels is not None
        return torch.from_numpy(self.labels)


@dataclass(frozen=True)
class Encoding:
    """A fitted encoder as plain data; :func:`unflip.encoders.restore` turns it into the encoder again.

    Attributes:
        encoder: its name in the registry.
        settings: what JSON can hold.
        arrays: what JSON would hold badly.
    """

    encoder: str
    settings: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def differences(self, other: "Encoding") -> list[str]:
        """Say what is different in ``other``: ``image_size 224, not 112``."""
        if self.encoder != other.encoder:
            return [f"made from {other.encoder}, not from {self.encoder}"]
        mine, theirs = self.settings, other.settings
        keys = [key for key in {**mine, **theirs} if not key.endswith(_WHERE) and mine.get(key) != theirs.get(key)]
        found = [f"{key} {_short(theirs.get(key))}, not {_short(mine.get(key))}" for key in keys]
        if not found and self.arrays.keys() == other.arrays.keys():
            found = [
                f"another {name}" for name in self.arrays if not np.array_equal(self.arrays[name], other.arrays[name])
            ]
        return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _none() -> Tensor:
    return torch.zeros(0, dtype=torch.bool)


@dataclass(frozen=True)
class Dataset:
    """The splits of a data set, and what is known about all of them.

    A loader fills the first half. :func:`unflip.data.labeling.label_data` numbers the classes, turns inputs into
    sources and fills the second. :meth:`joined`, :func:`unflip.data.corrupt.corrupt_labels` and
    :func:`unflip.data.split.split` follow. True labels (``train.truth``, :attr:`clean`) are for evaluation only:
    methods cannot import this module, and are handed the source and the given labels instead of a data set.

    Attributes:
        val: validation examples that came with the data; None once they are :meth:`joined`.
        name: what results call the data; set by :func:`unflip.data.loaders.load_raw`.
        class_map: the named map that `asym` noise uses on this data by default.
        normalization: images only: they are (n, c, h, w) of bytes, or files, and are fed as ``(x - mean) / std``.
        clean_val: whether the labels of the validation examples are known to be right.
        unlabeled: what an error says where labels are needed and there are none.
        label_column: tables only: the column of labels.
        untrainable: what an error says where training examples are needed and there are none.
        images_path: where people find pictures of the examples: the data itself, or the images that features were
            computed from.
        skipped: broken images, which were left out.
        encoding: how the inputs became rows of features, where it is known.
        as_pixels: turns a row into a picture for people to look at, (h, w) of bytes.
        num_classes: known, as all below, once the data is labeled.
        unseen: classes that nobody declared and no example has: gaps in the numbering of the labels.
        own_labels: whether the given labels are those of the data itself, not those of another file.
        standardization: what inputs are standardized with; stored with the model.
        frame: what the network sees of an image file; None where images are used in their own size.
        same: A number per training example (n,), the same where they are equal, alike or of one group; None if all
            differ.
        reviewed: the labels that people decided, -1 for all others, of all examples; None if there are none.
        removed: which of the same examples people removed: they keep their rows, and nothing learns from them.
        is_val: which examples validate (n,).
        noise_record: how noise was added, if it was.
    """

    train: Split
    val: Split | None = None
    tests: Mapping[str, Split] = field(default_factory=dict)
    name: str = ""
    class_names: tuple[str, ...] | None = None
    class_map: str | None = None
    normalization: Standardization | None = None
    clean_val: bool = False
    unlabeled: str = "no train_labels in it"
    label_column: str | None = None
    untrainable: str = "no row to train on"
    images_path: str | None = None
    skipped: tuple[Skipped, ...] = ()
    encoding: Encoding | None = None
    as_pixels: Callable[[Array], Array] | None = None

    num_classes: int = 0
    unseen: tuple[int, ...] = ()
    own_labels: bool = True
    standardization: Standardization | None = None
    frame: ResizeCrop | None = None
    same: Tensor | None = None
    reviewed: Tensor | None = None
    removed: Tensor = field(default_factory=_none)
    is_val: Tensor = field(default_factory=_none)
    noise_record: dict[str, Any] | None = None

    @property
    def holds_images(self) -> bool:
        """Whether the inputs are images rather than rows of numbers."""
        return self.normalization is not None

    @property
    def source(self) -> Source:
        """The inputs of the training examples, and once they are :meth:`joined` of those that validate."""
        return self.train.source

    @property
    def given(self) -> Tensor:
        """Their given labels (n,)."""
        return self.train.class_numbers

    @property
    def clean(self) -> Tensor | None:
        """Their true labels (n,), where they are known. For evaluation only."""
        return None if self.train.truth is None else torch.from_numpy(self.train.truth)

    @property
    def truth(self) -> Tensor:
        """The labels that noise starts from (n,): the true ones or, where they are unknown, the given ones."""
        return self.given if self.clean is None else self.clean

    @property
    def ids(self) -> tuple[str, ...] | None:
        """Their names, if they have any."""
        return None if self.train.ids is None else tuple(map(str, self.train.ids.tolist()))

    @property
    def trains(self) -> Tensor:
        """Which examples train (n,)."""
        return ~(self.is_val | self.removed)

    def splits(self) -> list[str]:
        """Return ``train``, ``val`` or ``removed`` for every example."""
        kinds = np.where(self.is_val.cpu().numpy(), "val", "train")
        return np.where(self.removed.cpu().numpy(), "removed", kinds).tolist()  # type: ignore[no-any-return]

    def parts(self) -> dict[str, Split]:
        """Return every split by name."""
        return {"train": self.train, **self.tests} | ({"val": self.val} if self.val else {})

    def with_parts(self, parts: Mapping[str, Split]) -> "Dataset":
        """Return the data with other splits, named as :meth:`parts` names them."""
        others = dict(parts)
        return replace(self, train=others.pop("train"), val=others.pop("val", None), tests=others)

    def joined(self) -> "Dataset":
        """Return labeled data with the validation examples that it came with, if any, after its training examples."""
        if self.val is None:
            return self
        count, more = len(self.given), len(self.val.class_numbers)
        assert self.train.labels is not None
        labels = np.concatenate([self.train.labels, self.val.class_numbers.numpy()])
        truth = self.train.truth
        train = replace(
            self.train,
            opened=JoinedSource([self.train.source, self.val.source]),
            labels=labels,
            truth=None if truth is None else np.concatenate([truth, self.val.class_numbers.numpy()]),
            ids=joined_ids(self.train, self.val),
            groups=None,  # there is nothing left to split
        )
        alone = None if self.same is None else int(self.same.max()) + 1 + torch.arange(more)
        same = None if self.same is None or alone is None else torch.cat([self.same, alone])
        return replace(self, train=train, val=None, is_val=torch.arange(count + more) >= count, same=same)

    def check_trainable(self, what: str) -> None:
        """Refuse data without training examples; errors call it ``what``."""
        if not len(self.train.inputs):
            raise InputError(f"{what}: {self.untrainable}")

    def checked(self, what: str) -> "Dataset":
        """Return the data with names of classes without space around them; errors call the data ``what``.

        Labels, ids, digests and figures of images that are not one for each example are refused.
        """
        parts = self.parts()
        for name, part in parts.items():
            count, flat = len(part.inputs), {"labels": part.labels, "ids": part.ids, "digests": part.digests}
            wanted = {kind: (array, (count,)) for kind, array in flat.items()}
            for kind, (array, shape) in {**wanted, "image_stats": (part.image_stats, (count, IMAGE_STATS))}.items():
                if array is not None and array.shape != shape:
                    raise InputError(f"{what}, {name}_{kind}: shape {array.shape} for {count} examples, not {shape}")
        clean = {
            name: part if part.labels is None else replace(part, labels=stripped(part.labels))
            for name, part in parts.items()
        }
        names = self.class_names and tuple(name.strip() for name in self.class_names)
        return replace(self.with_parts(clean), class_names=names)


def joined_ids(train: Split, val: Split | None) -> Array | None:
    """Return the names of training examples, followed by those that validate; None if they have none."""
    if train.ids is None or val is None:
        return train.ids
    count = 0 if val.labels is None else len(val.labels)
    others = [f"val-{i}" for i in range(count)] if val.ids is None else val.ids.tolist()
    ids = np.empty(len(train.ids) + len(others), object)
    ids[:] = [*train.ids.tolist(), *others]
    return ids
