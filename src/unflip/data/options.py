"""Options of data: which examples and labels, how images are read, which noise is added. Nothing heavy is imported."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, StringConstraints

from unflip.options import CommaSeparated, Options

Resample = Literal["bilinear", "bicubic"]
Crop = Literal["resized", "random"]
Augment = bool | Literal["randaugment"]
CROSS_FIT, IN_SAMPLE = "cross-fit", "in-sample"


class ImageOptions(Options):
    """How image files are read."""

    image_size: int | None = Field(None, ge=8, le=4096)
    """Input size of the network in pixels; by default 224, or the images' own size up to 64 x 64 (112 if they are
    embedded). Images of up to 64 pixels are kept in memory, and larger ones are read batch by batch."""
    image_resize: int | None = Field(None, ge=8, le=8192)
    """Length of the shorter side after scaling, before the center is cropped; by default 8/7 of `image_size`, or
    `image_size` itself for images of up to 64 pixels."""
    resample: Resample = "bilinear"
    """Interpolation used for scaling."""
    crop: Crop = "resized"
    """Training crops of large images: `resized` takes a random 8 to 100% of the area, `random` takes a square of
    `image_size` at a random position after scaling to `image_resize`. Small images are shifted instead."""
    shift: NonNegativeInt = 4
    """Maximum shift in pixels of training images of at most 64 x 64; 0 turns shifting off."""
    workers: PositiveInt | None = None
    """Number of threads that read images; by default one per core. It does not affect the results."""
    skip_broken: bool = False
    """Leave out images that cannot be read; runs and checks list them in `skipped.csv`."""
    max_broken: float = Field(0.2, ge=0.0, le=1.0)
    """With `skip_broken`, stop with an error if this share of the images or more cannot be read."""


class DataOptions(ImageOptions):
    """The data, its labels, and the split into training and validation."""

    path: str
    """A file, a folder, or the name of a built-in data set."""
    label_column: str | None = None
    """Tables and manifests: the column that holds the labels; by default `label`."""
    ignore: tuple[str, ...] = ()
    """Tables: columns that are not features."""
    columns: tuple[str, ...] | None = None
    """Tables: the columns to use as features; by default all columns that have no other role."""
    numeric: tuple[str, ...] = ()
    """Tables: columns to read as numbers."""
    categorical: tuple[str, ...] = ()
    """Tables: columns to read as categories, even if they contain numbers."""
    text_column: tuple[str, ...] = ()
    """Tables: columns to read as texts."""
    text_encoder: str | None = None
    """Text encoder: see `unflip list text-encoders`; by default wordllama if it is installed, otherwise tfidf."""
    labels: str | None = None
    """A file of labels that replace the training labels; the data's own labels are then used only for evaluation.
    For CIFAR, also a name such as `cifar-10n:worse`, which stands for published human labels."""
    annotations: str | None = None
    """Labels from several annotators: a table (index, path or id; annotator; label) or an export from Label Studio or
    Argilla. The data's own labels are then used only for evaluation."""
    annotator_columns: CommaSeparated = ()
    """Tables and manifests: the label columns of the annotators, such as a,b,c; a missing label is an empty cell."""
    unlabeled: str | None = None
    """Value that means no label, such as -1, in addition to empty cells. Examples without a label get a
    suggested label."""
    reviewed: str | None = None
    """A table (index, path or id; label) of reviewed labels, which are never changed."""
    changes: str | None = None
    """The list of changes that `apply` wrote with the data; it contains the original and the reviewed labels. `clean`
    finds it by itself."""
    limit: PositiveInt | None = None
    """Number of training examples to use, from the start of the training set; by default all."""
    per_class: PositiveInt | None = None
    """Number of training examples to use per given class, from the start of the training set; by default all."""
    classes: PositiveInt | tuple[Annotated[str, StringConstraints(strip_whitespace=True)], ...] | None = None
    """The number of classes, or their names in order; by default, the classes in the training labels."""
    ordinal: bool = False
    """Treat classes as ordered, by number or as listed in `classes`. Confusing neighboring classes then counts as a
    smaller error."""
    val_fraction: float = Field(0.1, ge=0.0, lt=1.0)
    """Share of the training examples held out for validation, stratified by given label; ignored if the data
    has a `val` split."""
    groups: str | None = None
    """Column, array or file with the group of each example; a group is never split between training and validation."""
    standardize: Literal["per-feature", "global", "auto", "off"] = "per-feature"
    """Center each column and divide it by its own standard deviation (`per-feature`) or by a common one (`global`);
    `auto` chooses the one that explains the labels better. Images use a fixed mean and standard deviation per channel
    instead."""
    augment: Augment = True
    """Mirror and crop training images at random; `randaugment` also distorts them and changes their colors."""
    jitter: float = Field(0.0, ge=0.0)
    """Standard deviation of the random noise added to rows in training, in units of the standardized features."""
    mmap_threshold_mb: float = Field(1024.0, ge=0.0)
    """Array files larger than this many megabytes stay on disk and are read batch by batch."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, if they are declared."""
        return self.classes if isinstance(self.classes, tuple) else ()


class NoiseOptions(Options):
    """Label noise to add, and the inputs that its recipe needs."""

    recipe: str | None = None
    """Noise to add to the labels, in steps such as `pmd1:0.35 + sym:0.30` (see `unflip corrupt --help`)."""
    posterior: str = CROSS_FIT
    """pmd steps: an .npy or .npz file of class probabilities, or how to estimate them: cross-fit or in-sample."""
    class_map: str | None = None
    """asym steps: cifar10, cifar100, mnist, or a JSON file {"class": "mistaken for", ...}."""
    matrix: str | None = None
    """matrix step: an .npy file with a row-stochastic matrix."""
