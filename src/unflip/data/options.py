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
    """Side in pixels of the square that the network sees; by default 224, or for images of at most 64 x 64 their own
    size (112 for a backbone). Images up to 64 pixels are read once and kept in memory, larger ones batch by batch."""
    image_resize: int | None = Field(None, ge=8, le=8192)
    """Shorter side to which an image is scaled before its center is cropped; by default 8/7 of `image_size`, or
    `image_size` itself up to 64 pixels."""
    resample: Resample = "bilinear"
    """Interpolation used for scaling."""
    crop: Crop = "resized"
    """Training crops of large images: `resized` takes a random 8 to 100 % of the area, `random` a square of
    `image_size` at a random place after scaling to `image_resize`. Small images are shifted instead."""
    shift: NonNegativeInt = 4
    """Most pixels by which training images of at most 64 x 64 are shifted, below their side; 0 leaves them in place."""
    workers: PositiveInt | None = None
    """Threads that read images; by default one per core. Results do not depend on it."""
    skip_broken: bool = False
    """Leave out images that cannot be read; `skipped.csv` in the run folder lists them."""
    max_broken: float = Field(0.2, ge=0.0, le=1.0)
    """`skip_broken` gives up if this share of a part's images cannot be read: then something else must be wrong."""


class DataOptions(ImageOptions):
    """Which data, which labels, and how they are split."""

    path: str
    """A file, a folder, or the name of a built-in data set."""
    label_column: str | None = None
    """Tables and manifests: the column that holds the labels; by default `label`."""
    ignore: tuple[str, ...] = ()
    """Tables: columns that are not features."""
    columns: tuple[str, ...] | None = None
    """Tables: the columns that describe an example; by default all that have no other role."""
    numeric: tuple[str, ...] = ()
    """Tables: columns that hold numbers, whatever they look like."""
    categorical: tuple[str, ...] = ()
    """Tables: columns that hold names of categories, even if these are numbers."""
    text_column: tuple[str, ...] = ()
    """Tables: columns that hold texts."""
    text_encoder: str | None = None
    """What texts are encoded with: see `unflip list text-encoders`; by default wordllama if it is installed, else
    tfidf."""
    labels: str | None = None
    """A file of labels that replace the training labels; the data's own labels are then used for evaluation only.
    CIFAR also takes `cifar-10n:worse` and the like: labels by people, from the published file in its folder."""
    annotations: str | None = None
    """Labels by several annotators: a table (index, path or id; annotator; label) or an export of Label Studio or
    Argilla. The data's own labels are then used for evaluation only."""
    annotator_columns: CommaSeparated = ()
    """Tables and manifests: the columns with the labels of each annotator, such as a,b,c; empty where one gave none."""
    unlabeled: str | None = None
    """What stands for no label, such as -1, besides empty cells. Examples without a label get a suggestion."""
    reviewed: str | None = None
    """A table (index or path, label) of reviewed labels, which are never changed."""
    limit: PositiveInt | None = None
    """Use only this many training examples, the first ones."""
    per_class: PositiveInt | None = None
    """Use at most this many training examples per given class, the first ones."""
    classes: PositiveInt | tuple[Annotated[str, StringConstraints(strip_whitespace=True)], ...] | None = None
    """The number of classes, or their names in order; found in the training labels if not declared."""
    ordinal: bool = False
    """Classes are ordered, such as ratings: by number, or as `classes` lists them. A near miss is a smaller error."""
    val_fraction: float = Field(0.1, ge=0.0, lt=1.0)
    """Share of the training examples held out for validation, stratified by given label; a `val` split replaces it."""
    groups: str | None = None
    """Examples of one group, such as near-duplicates, stay on one side of that split: a column, an array, or a file."""
    standardize: Literal["per-feature", "global", "auto", "off"] = "per-feature"
    """Center each column and divide it by its own standard deviation (`per-feature`) or all columns by a common one
    (`global`); `auto` takes what explains the labels better. Images have a fixed mean and standard deviation per
    channel instead."""
    augment: Augment = True
    """Mirror and crop training images at random; `randaugment` also distorts them and changes their colors."""
    jitter: float = Field(0.0, ge=0.0)
    """Standard deviation of the noise between two views of a row, in units of the standardized features."""
    mmap_threshold_mb: float = Field(1024.0, ge=0.0)
    """Array files larger than this many megabytes stay on disk and are read batch by batch."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, if they are declared."""
        return self.classes if isinstance(self.classes, tuple) else ()


class NoiseOptions(Options):
    """Noise to add, and what its recipe needs besides the labels."""

    recipe: str | None = None
    """Noise to add to the labels, in steps such as `pmd1:0.35 + sym:0.30` (see `unflip corrupt --help`)."""
    posterior: str = CROSS_FIT
    """pmd steps: an .npy or .npz file of class probabilities, or how to estimate them: cross-fit or in-sample."""
    class_map: str | None = None
    """asym steps: cifar10, cifar100, mnist, or a JSON file {"class": "mistaken for", ...}."""
    matrix: str | None = None
    """matrix step: an .npy file with a row-stochastic matrix."""
