"""Options of tasks. A line here is all that a new flag takes: it names the option that it sets, and so its help.

Each class is the type of a task's keyword arguments in Python, and the command line makes its flags from it. Nothing
heavy is imported.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_type_hints

from pydantic import PositiveInt

from unflip.data.options import DataOptions, NoiseOptions
from unflip.errors import ConfigError, unknown
from unflip.options import Options
from unflip.runs.options import Common, Execution

AnyPath = str | Path
BACKBONE = "efficientnet-lite0"


class Flag(NamedTuple):
    """Which option a flag sets, by its dotted key, and how the command line shows it."""

    option: str
    help: str | None = None
    """What the flag does; by default the description of the option."""
    metavar: str | None = None
    names: tuple[str, ...] = ()
    """Its spellings, if not that of the keyword argument."""
    least: int | None = None
    """The smallest number allowed."""


class EmbeddingOptions(Options):
    """How images become features."""

    backbone: str = BACKBONE
    """The pretrained network: see `unflip list backbones`."""
    weights: str | None = None
    """Its weights, if they are to come from a file: .safetensors, or what torch.save wrote."""
    batch_size: PositiveInt | None = None
    """Images per batch."""
    feature_precision: Literal["float32", "bfloat16"] = "float32"
    """In which a processor computes features: bfloat16 is twice as fast where the processor has it."""
    on: Literal["local", "ray"] = "local"
    """Where features are computed: on this machine (local), or on all of a Ray cluster (ray)."""
    address: str | None = None
    """The Ray cluster to use; by default one is started on this machine."""


class AuditOptions(Options):
    """What to look for besides wrong labels."""

    skip_check: tuple[str, ...] = ()
    """A check to leave out: see `unflip list checks`; repeatable."""


SECTIONS: dict[str, type[Options]] = {
    "": Common,
    "data": DataOptions,
    "noise": NoiseOptions,
    "execution": Execution,
    "embedding": EmbeddingOptions,
    "audit": AuditOptions,
}
"""Where flags find their options: those of a run, and sections of tasks that are no part of its configuration."""


class PlaceOptions(TypedDict, total=False):
    """Where to compute."""

    device: Annotated[str | None, Flag("execution.device", metavar="DEVICE")]
    threads: Annotated[int | None, Flag("execution.threads", least=1)]
    quiet: Annotated[bool | None, Flag("execution.quiet", names=("--quiet", "-q"))]


class ExampleOptions(TypedDict, total=False):
    """Which examples, and which label they have."""

    label_column: Annotated[
        str | None,
        Flag("data.label_column", "The column of a table that holds the labels; by default `label`.", "NAME"),
    ]
    skip_broken: Annotated[
        bool | None, Flag("data.skip_broken", "Leave out images that cannot be read, and list them.")
    ]


class TableOptions(TypedDict, total=False):
    """What the columns of a table hold."""

    ignore: Annotated[
        Sequence[str] | None, Flag("data.ignore", "A column of a table that is not a feature; repeatable.", "NAME")
    ]
    text_column: Annotated[
        Sequence[str] | None, Flag("data.text_column", "A column of a table that holds texts; repeatable.", "NAME")
    ]
    categorical: Annotated[
        Sequence[str] | None,
        Flag("data.categorical", "A column that holds categories, even if these are numbers; repeatable.", "NAME"),
    ]
    numeric: Annotated[
        Sequence[str] | None,
        Flag("data.numeric", "A column that holds numbers, whatever it looks like; repeatable.", "NAME"),
    ]
    text_encoder: Annotated[
        str | None,
        Flag(
            "data.text_encoder",
            "What texts are encoded with: see `unflip list text-encoders`; by default wordllama if it is installed, "
            "else tfidf.",
            "NAME",
        ),
    ]


class ReviewedOptions(TypedDict, total=False):
    """Labels that people decided."""

    reviewed: Annotated[
        AnyPath | None,
        Flag(
            "data.reviewed",
            "Labels that people decided (.csv, .parquet or .jsonl: index or path, label); they are kept.",
        ),
    ]


class BackboneOptions(TypedDict, total=False):
    """How images become features."""

    backbone: Annotated[str | None, Flag("embedding.backbone", metavar="NAME")]
    weights: Annotated[AnyPath | None, Flag("embedding.weights")]
    feature_precision: Annotated[str | None, Flag("embedding.feature_precision", metavar="PRECISION")]
    image_size: Annotated[
        int | None,
        Flag(
            "data.image_size", "Side in pixels that it sees; by default 112 for small images, else 224.", "N", least=8
        ),
    ]


class ClusterOptions(TypedDict, total=False):
    """Where images become features."""

    on: Annotated[str | None, Flag("embedding.on", metavar="PLACE")]
    address: Annotated[str | None, Flag("embedding.address", metavar="ADDRESS")]


class CheckOptions(TypedDict, total=False):
    """What to look for besides wrong labels."""

    skip_check: Annotated[Sequence[str] | None, Flag("audit.skip_check", metavar="CHECK")]


class LearningOptions(TypedDict, total=False):
    """How to learn."""

    method: Annotated[str | None, Flag("method")]
    epochs: Annotated[int | None, Flag("epochs")]
    seed: Annotated[int | None, Flag("seed")]


class SetupOptions(TypedDict, total=False):
    """All else that a run is made of."""

    take: Annotated[int | None, Flag("data.take", "Use the first N training examples.", "N", least=1)]
    noise: Annotated[
        str | None,
        Flag(
            "noise.recipe",
            "Make labels wrong on purpose, in steps: pmd1:0.35 + sym:0.30 (see `unflip corrupt --help`).",
            "RECIPE",
        ),
    ]
    network: Annotated[str | None, Flag("network")]
    from_scratch: Annotated[
        bool | None, Flag("from_scratch", "Do not start from the weights that a pretrained --network comes with.")
    ]
    select: Annotated[str | None, Flag("select", metavar="RULE")]
    preset: Annotated[str | None, Flag("preset", "A set of values by name: see `unflip list presets`.")]
    config: Annotated[AnyPath | None, Flag("config", "A TOML file of values; overrides the preset.")]
    settings: Annotated[
        Sequence[str] | Mapping[str, Any] | None,
        Flag("settings", "One value, overrides the file: --set optimizer.lr=0.02", "KEY=VALUE", ("--set",)),
    ]


class SafetyOptions(TypedDict, total=False):
    """How a run is kept from loss."""

    on_nan: Annotated[str | None, Flag("execution.on_nan", metavar="WHAT")]
    checkpoint_minutes: Annotated[float | None, Flag("execution.checkpoint_minutes", metavar="MINUTES")]
    keep: Annotated[int | None, Flag("execution.keep", metavar="N")]


class LabelFileOptions(TypedDict, total=False):
    """Labels that are not the data's own."""

    labels: Annotated[
        AnyPath | None,
        Flag(
            "data.labels",
            "Labels (.npy, .csv, .txt) that replace the training labels; those are then used for evaluation only.",
        ),
    ]


class TrainOptions(
    LabelFileOptions,
    ReviewedOptions,
    ExampleOptions,
    TableOptions,
    BackboneOptions,
    LearningOptions,
    SetupOptions,
    SafetyOptions,
    PlaceOptions,
    total=False,
):
    """What `unflip train` takes besides the data and the folder of the run."""


class CleanOptions(
    LabelFileOptions,
    ExampleOptions,
    TableOptions,
    ReviewedOptions,
    BackboneOptions,
    ClusterOptions,
    CheckOptions,
    LearningOptions,
    PlaceOptions,
    total=False,
):
    """What `unflip clean` takes besides the data and the folder of the run."""


class ScalingOptions(TypedDict, total=False):
    """How images are scaled for a backbone, and how many at once."""

    image_resize: Annotated[
        int | None,
        Flag(
            "data.image_resize",
            "Scale files to this shorter side before the centre is cropped; by default small images are seen whole, "
            "and of larger ones the central 7/8.",
            "N",
            least=1,
        ),
    ]
    resample: Annotated[
        str | None, Flag("data.resample", "How images are scaled: bilinear (default) or bicubic.", "HOW")
    ]
    batch_size: Annotated[int | None, Flag("embedding.batch_size", metavar="N", least=1)]


class EmbedOptions(
    BackboneOptions, ScalingOptions, ClusterOptions, ExampleOptions, TableOptions, PlaceOptions, total=False
):
    """What `unflip embed` takes besides the data and the file."""


class NoisyOptions(TypedDict, total=False):
    """What a recipe is applied to, and what it needs."""

    labels: Annotated[AnyPath | None, Flag("data.labels", "Labels that the recipe is applied to.")]
    take: Annotated[int | None, Flag("data.take", "Use the first N examples.", "N", least=1)]
    posterior: Annotated[
        AnyPath | None,
        Flag(
            "noise.posterior",
            "Class probabilities for pmd steps: an .npy or .npz file, cross-fit (default) or in-sample.",
        ),
    ]
    class_map: Annotated[
        AnyPath | None,
        Flag("noise.class_map", "Which class is mistaken for which: cifar10, cifar100, mnist or a .json file."),
    ]
    matrix: Annotated[
        AnyPath | None, Flag("noise.matrix", "The .npy file with the transition matrix for the step matrix.")
    ]
    seed: Annotated[int | None, Flag("seed", "The same seed gives the same labels.", least=0)]


class CorruptOptions(NoisyOptions, PlaceOptions, total=False):
    """What `unflip corrupt` takes besides the data, the recipe and the file."""


def flags_of(kind: type) -> dict[str, tuple[Any, Flag]]:
    """Return the type and the flag of each of a task's options."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def option_tree(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's options by section and key, as a configuration file would hold them; None is left out."""
    flags = flags_of(kind)
    tree: dict[str, Any] = {}
    for name, value in options.items():
        if name not in flags:
            raise ConfigError(unknown("option", name, flags))
        if value is None or (isinstance(value, list | tuple) and not value):
            continue
        section, _, key = flags[name][1].option.rpartition(".")
        place = tree.setdefault(section, {}) if section else tree
        place[key] = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    return tree
