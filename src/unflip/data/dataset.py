"""Dataset: each step (load, encode, label, corrupt, split) takes one and returns a changed copy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import Array, stripped
from unflip.data.columns import Table
from unflip.data.files import ImageFiles, ResizeCrop, Skipped
from unflip.data.sources import JoinedSource, Source, Standardization
from unflip.errors import InputError

IMAGE_STATS = 5
"""The number of statistics of each image."""
Inputs = Array | ImageFiles | Table
"""Inputs from a loader: rows of numbers or images in arrays, image files, or rows of a table."""
_WHERE = "_file"  # suffix of settings that are paths, and do not affect the encoding


@dataclass(frozen=True)
class Split:
    """Training, validation or test examples.

    Attributes:
        inputs: from the loader; an empty array once the data is labeled, and ``source`` replaces them.
        labels: (n,), numbers or names; class numbers once the data is labeled.
        truth: the labels before other labels or noise replaced them (n,). For evaluation only.
        ids: names of the examples (n,).
        digests: hashes of the images or texts that features were computed from (n,); equal for equal ones.
        contents: hashes of the examples before they were encoded (n,), the same whatever data they are part of; None
            if they are image files.
        image_stats: of features of images (n, 5): mean and standard deviation of the brightness, from 0 to 1,
            sharpness, width and height of the image.
        states: of features of images (n,): hashes of the files' paths, sizes and modification times.
        groups: the column or array that `data.groups` names (n,), if the data has it.
        rows: of tables only: the row of each example in its file (n,).
        duplicates: group numbers of near-duplicates (n,), if they were searched.
        annotations: class numbers by annotator (n, a), -1 for none, if several people labeled the examples.
        leaked: mask of the test examples that duplicate a training or validation example (n,), if these were searched.
        opened: see :attr:`source`.
    """

    inputs: Inputs
    labels: Array | None
    truth: Array | None = None
    ids: Array | None = None
    digests: Array | None = None
    contents: Array | None = None
    image_stats: Array | None = None
    states: Array | None = None
    groups: Array | None = None
    rows: Array | None = None
    duplicates: Array | None = None
    leaked: Array | None = None
    annotations: Array | None = None
    opened: Source | None = None

    def __getitem__(self, rows: slice | Array) -> "Split":
        arrays = {name: array[rows] for name, array in vars(self).items() if array is not None and name != "opened"}
        return Split(**({"labels": None} | arrays))

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the examples, if they have any."""
        return None if self.ids is None else tuple(map(str, self.ids.tolist()))

    @property
    def source(self) -> Source:
        """The inputs as a source of batches; of labeled data only."""
        assert self.opened is not None
        return self.opened

    @property
    def class_numbers(self) -> Tensor:
        """The labels (n,) as class numbers; of labeled data only."""
        assert self.labels is not None
        return torch.from_numpy(self.labels)


@dataclass(frozen=True)
class Encoding:
    """A fitted encoder as plain data; :func:`unflip.encoders.restore` turns it into the encoder again.

    Attributes:
        encoder: its name in the registry.
        settings: values for JSON.
        arrays: everything else.
    """

    encoder: str
    settings: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def differences(self, other: "Encoding") -> list[str]:
        """Describe what is different in ``other``: ``image_size 224, not 112``."""
        if self.encoder != other.encoder:
            return [f"made from {other.encoder}, not from {self.encoder}"]
        mine, theirs = self.settings, other.settings
        keys = [key for key in {**mine, **theirs} if not key.endswith(_WHERE) and mine.get(key) != theirs.get(key)]
        differences = [f"{key} {theirs.get(key)!s:.60}, not {mine.get(key)!s:.60}" for key in keys]
        if not differences and self.arrays.keys() == other.arrays.keys():
            pairs = {name: (array, other.arrays[name]) for name, array in self.arrays.items()}
            differences = [f"another {name}" for name, pair in pairs.items() if not np.array_equal(*pair)]
        return differences


def _none() -> Tensor:
    return torch.zeros(0, dtype=torch.bool)


@dataclass(frozen=True)
class Dataset:
    """The splits of a data set, and their common properties.

    A loader sets the first half of the fields. :func:`unflip.data.labeling.label_data` numbers the classes, turns
    inputs into sources and sets the second half. :meth:`joined`, :func:`unflip.data.corrupt.corrupt_labels` and
    :func:`unflip.data.split.split` follow. True labels (``train.truth``, :attr:`clean`) are for evaluation only:
    methods cannot import this module, and get the source and the given labels instead of a data set.

    Attributes:
        val: validation examples of the data itself; None once they are :meth:`joined`.
        name: of the data in results; set by :func:`unflip.data.loaders.load_raw`.
        class_map: the default class map of `asym` noise for this data.
        normalization: of images only, which are (n, c, h, w) of bytes, or files: ``(x - mean) / std``.
        clean_val: whether the validation labels are known to be clean.
        unlabeled: the error message if labels are needed and there are none.
        label_column: of tables only: the column of labels.
        label_sets: other published labels of the training examples, by the name that ``data.labels`` takes.
        untrainable: the error message if training examples are needed and there are none.
        images_path: the path of the pictures: of the data itself, or of the images that features were computed from.
        skipped: broken images.
        encoding: the encoder that made the features, if known.
        content_kind: what the contents are hashes of; only those of one kind can be compared.
        annotators: names of those who gave the annotations of the training examples.
        as_pixels: converts a row to a picture, (h, w) of bytes.
        num_classes: set, as all fields below, once the data is labeled.
        own_labels: whether the given labels are those of the data itself, not of another file.
        standardization: of the inputs; stored with the model.
        frame: how images are resized and cropped; None if they keep their own size.
        same: group numbers (n,), the same for examples that are equal, near-duplicates or of one group; None if all
            differ.
        reviewed: the reviewed labels of all examples (n,), -1 without one; None without any.
        review_weights: how many labels each reviewed label of a random sample stands for (n,), 0 for all others; None
            without any.
        removed: mask of the examples that reviewers removed (n,): they keep their rows, but are not used.
        is_val: mask of the validation examples (n,).
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
    label_sets: Mapping[str, Callable[[], Array]] = field(default_factory=dict)
    untrainable: str = "no row to train on"
    images_path: str | None = None
    skipped: tuple[Skipped, ...] = ()
    encoding: Encoding | None = None
    content_kind: str = ""
    annotators: tuple[str, ...] = ()
    as_pixels: Callable[[Array], Array] | None = None

    num_classes: int = 0
    own_labels: bool = True
    standardization: Standardization | None = None
    frame: ResizeCrop | None = None
    same: Tensor | None = None
    reviewed: Tensor | None = None
    review_weights: Tensor | None = None
    removed: Tensor = field(default_factory=_none)
    is_val: Tensor = field(default_factory=_none)
    noise_record: dict[str, Any] | None = None

    @property
    def holds_images(self) -> bool:
        """Whether the inputs are images rather than rows of numbers."""
        return self.normalization is not None

    @property
    def source(self) -> Source:
        """The inputs of the training and, once :meth:`joined`, the validation examples."""
        return self.train.source

    @property
    def given(self) -> Tensor:
        """Their given labels (n,), -1 for none."""
        return self.train.class_numbers

    @property
    def clean(self) -> Tensor | None:
        """Their true labels (n,), if known. For evaluation only."""
        return None if self.train.truth is None else torch.from_numpy(self.train.truth)

    @property
    def truth(self) -> Tensor:
        """The labels to which noise is added (n,): the true ones or, if unknown, the given ones."""
        return self.given if self.clean is None else self.clean

    @property
    def ids(self) -> tuple[str, ...] | None:
        """Their names, if they have any."""
        return self.train.names

    def content_digests(self) -> list[str] | None:
        """Return the digests of their contents, if these are known; see :class:`unflip.data.matching.Keys`."""
        contents = self.train.contents
        return None if contents is None else [f"{self.content_kind}-{value:016x}" for value in contents.tolist()]

    @property
    def trains(self) -> Tensor:
        """Mask of the training examples (n,)."""
        return ~(self.is_val | self.removed | self.is_unlabeled)

    @property
    def is_unlabeled(self) -> Tensor:
        """Mask of the examples without a label, given or reviewed (n,)."""
        return (self.given if self.reviewed is None else self.given.maximum(self.reviewed)) < 0

    def splits(self) -> list[str]:
        """Return ``train``, ``val``, ``removed`` or ``unlabeled`` for every example."""
        masks = [mask.cpu().numpy() for mask in (self.removed, self.is_val, self.is_unlabeled)]
        return np.select(masks, ["removed", "val", "unlabeled"], "train").tolist()  # type: ignore[no-any-return]

    def parts(self) -> dict[str, Split]:
        """Return every split by name."""
        return {"train": self.train, **self.tests} | ({"val": self.val} if self.val else {})

    def with_parts(self, parts: Mapping[str, Split]) -> "Dataset":
        """Return the data with other splits, named as in :meth:`parts`."""
        others = dict(parts)
        return replace(self, train=others.pop("train"), val=others.pop("val", None), tests=others)

    def joined(self) -> "Dataset":
        """Return labeled data with its own validation examples, if any, appended to the training examples."""
        if self.val is None:
            return self
        count, more = len(self.given), len(self.val.class_numbers)
        val_labels, truth, same = self.val.class_numbers.numpy(), self.train.truth, self.same
        names = joined_names(self.train, self.val)
        contents = [part.contents for part in (self.train, self.val) if part.contents is not None]
        train = replace(
            self.train,
            opened=JoinedSource([self.train.source, self.val.source]),
            labels=np.concatenate([self.given.numpy(), val_labels]),
            truth=None if truth is None else np.concatenate([truth, val_labels]),
            ids=None if names is None else np.array(names, object),
            contents=np.concatenate(contents) if len(contents) == 2 else None,
            groups=None,  # there is nothing left to split
        )
        if same is not None:
            same = torch.cat([same, int(same.max()) + 1 + torch.arange(more)])
        return replace(self, train=train, val=None, is_val=torch.arange(count + more) >= count, same=same)

    def check_trainable(self, what: str) -> None:
        """Raise InputError for data without training examples, which errors call ``what``."""
        if not len(self.train.inputs):
            raise InputError(f"{what}: {self.untrainable}")

    def checked(self, what: str) -> "Dataset":
        """Return the data with class names stripped; raise InputError if labels, ids, ... are not one per example."""
        parts = self.parts()
        for name, part in parts.items():
            arrays = {"labels": part.labels, "ids": part.ids, "digests": part.digests, "image_stats": part.image_stats}
            for kind, array in arrays.items():
                count = len(part.inputs)
                shape = (count, IMAGE_STATS) if kind == "image_stats" else (count,)
                if array is not None and array.shape != shape:
                    raise InputError(f"{what}, {name}_{kind}: shape {array.shape} for {count} examples, not {shape}")
            if part.labels is not None:
                parts[name] = replace(part, labels=stripped(part.labels))
        names = self.class_names and tuple(name.strip() for name in self.class_names)
        return replace(self.with_parts(parts), class_names=names)


def joined_names(train: Split, val: Split | None) -> tuple[str, ...] | None:
    """Return the names of training and validation examples; None if they have none."""
    if train.names is None or val is None:
        return train.names
    count = 0 if val.labels is None else len(val.labels)
    return train.names + (val.names or tuple(f"val-{i}" for i in range(count)))
