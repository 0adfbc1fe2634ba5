"""RawData: what a loader finds, before its parts are checked against each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from unflip.data.cells import Cells
from unflip.data.encoding import Encoding
from unflip.data.files.arrays import Array, stripped
from unflip.data.files.shards import Shards
from unflip.data.images.files import ImageFiles, Skipped
from unflip.data.sources import Standardisation
from unflip.errors import InputError

IMAGE_STATS = 4
"""How many figures are noted of each image."""
Inputs = Array | Shards | ImageFiles | Cells
"""Examples as they came: rows of numbers or images in arrays, files of images, or cells of a table."""


@dataclass(frozen=True)
class LabelledSet:
    """Inputs and labels as they are in a file."""

    inputs: Inputs
    labels: Array | None
    truth: Array | None = None
    """The labels that came with the inputs, if others replaced them."""
    ids: Array | None = None
    digests: Array | None = None
    """Digests of what the inputs were computed from, pictures or texts; equal ones belong to the same."""
    image_stats: Array | None = None
    """Features of images only, (n, 4): mean and standard deviation of each image's brightness, from 0 to 1, and the
    width and height that it came with."""
    groups: Array | None = None
    """The column or array that `data.groups` names, if the data has it."""
    alike: Array | None = None
    """Numbers, the same for examples that were found to be nearly the same, if anybody looked."""
    leaked: Array | None = None
    """Of test examples: which are the same as one that trains or validates, or nearly so, if anybody looked."""

    def __getitem__(self, rows: slice | Array) -> "LabelledSet":
        others = (
            self.labels, self.truth, self.ids, self.digests, self.image_stats, self.groups, self.alike, self.leaked,
        )  # fmt: skip
        return LabelledSet(self.inputs[rows], *(None if array is None else array[rows] for array in others))


@dataclass(frozen=True)
class RawData:
    """The parts of a data set, and what its loader knows about all of them."""

    train: LabelledSet
    val: LabelledSet | None = None
    tests: Mapping[str, LabelledSet] = field(default_factory=dict)
    name: str = ""
    """What results call the data; set by :func:`unflip.data.loader.load_raw`."""
    class_names: tuple[str, ...] | None = None
    class_map: str | None = None
    """The named map that `asym` noise uses on this data by default."""
    normalisation: Standardisation | None = None
    """Images only: they are (n, c, h, w) of bytes, or files, and are fed as ``(x - mean) / std``."""
    clean_val: bool = False
    """Whether the labels of ``val`` are known to be right, unlike those of ``train``."""
    unlabelled: str = "no train_labels in it"
    """What an error says where labels are needed and there are none."""
    label_column: str | None = None
    """Tables only: the column of labels."""
    incomplete: str | None = None
    """What an error says of the first row without a label, where others have one; None if all have one."""
    untrainable: str | None = None
    """What an error says where training examples are needed; None if there are any."""
    images_path: str | None = None
    """The images that the inputs were computed from, where they are features of images."""
    skipped: tuple[Skipped, ...] = ()
    """Images of theirs that could not be read and were left out."""
    encoding: Encoding | None = None
    """How the inputs became rows of features, where it is known."""
    as_pixels: Callable[[Array], Array] | None = None
    """Turns a row into a picture for people to look at, (h, w) of bytes."""

    @property
    def holds_images(self) -> bool:
        """Whether the inputs are images rather than rows of numbers."""
        return self.normalisation is not None

    def parts(self) -> dict[str, LabelledSet]:
        """Return every part by name."""
        return {"train": self.train, **self.tests} | ({"val": self.val} if self.val else {})

    def stripped(self) -> "RawData":
        """Return the data with names of classes without space around them."""

        def strip(part: LabelledSet) -> LabelledSet:
            return part if part.labels is None else replace(part, labels=stripped(part.labels))

        return replace(
            self,
            train=strip(self.train),
            val=self.val and strip(self.val),
            tests={name: strip(part) for name, part in self.tests.items()},
            class_names=self.class_names and tuple(name.strip() for name in self.class_names),
        )

    def check_trainable(self, what: str) -> None:
        """Refuse data without training examples; errors call it ``what``."""
        if self.untrainable is not None:
            raise InputError(f"{what}: {self.untrainable}")

    def check_lengths(self, what: str) -> None:
        """Refuse labels, ids and digests that are not one for each example; errors call the data ``what``."""
        for name, part in self.parts().items():
            for kind, array in (("labels", part.labels), ("ids", part.ids), ("digests", part.digests)):
                if array is not None and array.ndim != 1:
                    raise InputError(f"{what}, {name}_{kind}: shape {array.shape}; {kind} must be (n,)")
                if array is not None and len(array) != len(part.inputs):
                    raise InputError(f"{what}, {name}_{kind}: {len(array)} {kind} for {len(part.inputs)} examples")
            stats = part.image_stats
            if stats is not None and stats.shape != (len(part.inputs), IMAGE_STATS):
                raise InputError(
                    f"{what}, {name}_image_stats: shape {stats.shape}; it must be ({len(part.inputs)}, {IMAGE_STATS})"
                )
