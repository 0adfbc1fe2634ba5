"""Options of the commands: keyword arguments in Python and flags on the command line.

An option is declared once, as a field of the pydantic model of its section, with its default and its description. Each
command lists the dotted keys of its options; to add a flag, add a key. Nothing heavy is imported.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, PositiveInt

from unflip.data.options import DataOptions, NoiseOptions
from unflip.errors import ConfigError, unknown
from unflip.options import Options
from unflip.runs.options import Common, Execution

BACKBONE = "efficientnet-lite0"


class SourceOptions(Options):
    """Where the configuration comes from, besides single options."""

    preset: str | None = None
    """Preset to start from: see `unflip list presets`."""
    config: str | None = None
    """TOML configuration file; overrides the preset."""
    settings: tuple[str, ...] | dict[str, Any] = ()
    """Any setting as key=value, such as optimizer.lr=0.02; overrides the file."""
    from_scratch: bool = False
    """Start a pretrained --network from random weights instead of its published ones."""


class EmbeddingOptions(Options):
    """How images become features."""

    backbone: str = BACKBONE
    """Pretrained network that embeds images: see `unflip list backbones`."""
    weights: str | None = None
    """File with the weights of the backbone, .safetensors or .pth."""
    batch_size: PositiveInt | None = None
    """Number of images per batch."""


class AuditOptions(Options):
    """Checks besides label issues."""

    skip_check: tuple[str, ...] = ()
    """Check to skip: see `unflip list checks`."""


class ApplyOptions(Options):
    """Which labels are corrected, and how."""

    labels: Any = None
    """Labels to apply instead of those of the run: a table (.csv, .parquet, .jsonl) with the column label and one of
    index, path or id."""
    only: Literal["reviewed"] | None = None
    """`reviewed`: apply only review decisions."""
    min_confidence: float | None = Field(None, ge=0.0, le=1.0)
    """Change unreviewed labels only if their probability of being wrong (1 - label_quality) is at least this."""
    fill_above: float | None = Field(None, ge=0.0, le=1.0)
    """Give examples without a label the suggested label if its probability is at least this."""
    drop: Literal["label-issues"] | None = None
    """`label-issues`: drop examples with label issues instead of changing their labels."""
    keep_given_as: str | None = None
    """Tables and arrays: name of a new column for the given labels."""
    copy_files: bool = False
    """Class folders: copy files instead of linking them."""


SECTIONS: dict[str, type[Options]] = {
    "": Common,
    "data": DataOptions,
    "noise": NoiseOptions,
    "execution": Execution,
    "sources": SourceOptions,
    "embedding": EmbeddingOptions,
    "audit": AuditOptions,
    "apply": ApplyOptions,
}
"""The options models: sections of a run's configuration, and options of commands alone."""

_LEARNING = ("method", "epochs", "seed")
_COMPUTE = ("execution.device", "execution.threads", "execution.quiet")
_BACKBONE = ("embedding.backbone", "embedding.weights", "data.image_size")
_EXAMPLES = (
    "data.label_column", "data.ignore", "data.text_column", "data.categorical", "data.numeric", "data.text_encoder",
    "data.skip_broken",
)  # fmt: skip
_LABELS = (
    "data.labels", "data.annotations", "data.annotator_columns", "data.unlabeled", "data.ordinal", "data.reviewed",
)  # fmt: skip

TRAIN = (
    *_LEARNING, *_LABELS, *_EXAMPLES, *_BACKBONE, "data.limit", "noise.recipe", "network", "sources.from_scratch",
    "select", "sources.preset", "sources.config", "sources.settings",
    "execution.checkpoint_minutes", "execution.keep_checkpoints", *_COMPUTE,
)  # fmt: skip
"""Options of `train`."""
CLEAN = (
    *_LEARNING, *_LABELS, *_EXAMPLES, *_BACKBONE, "data.limit", "audit.skip_check", "sources.config",
    "sources.settings", *_COMPUTE,
)  # fmt: skip
"""Options of `clean`."""
EMBED = (
    *_BACKBONE, "data.image_resize", "data.resample", "data.label_column", "data.skip_broken", "embedding.batch_size",
    *_COMPUTE,
)  # fmt: skip
"""Options of `embed`."""
CORRUPT = (
    "seed", "data.labels", "data.limit", "noise.posterior", "noise.class_map", "noise.matrix", *_COMPUTE,
)  # fmt: skip
"""Options of `corrupt`."""
APPLY = tuple(f"apply.{name}" for name in ApplyOptions.model_fields)
"""Options of `apply`."""
PREDICT = ("data.skip_broken", "embedding.weights", "execution.device")
"""Options of `predict`."""

NAMES = {f"{section}.{key}".lstrip("."): key for section, model in SECTIONS.items() for key in model.model_fields}
NAMES["noise.recipe"] = "noise"
"""The keyword argument of each dotted key: its last part, with one exception."""


def option_tree(keys: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as a tree of sections, as in a configuration file; values of None are dropped.

    Args:
        keys: the dotted keys of the command's options.
        options: values by name.

    Raises:
        ConfigError: for an unknown option.
    """
    known = {NAMES[key]: key for key in keys}
    tree: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise ConfigError(unknown("option", name, known))
        if value is None or (isinstance(value, list | tuple) and not value):
            continue
        section, _, key = known[name].rpartition(".")
        place = tree.setdefault(section, {}) if section else tree
        place[key] = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    return tree


class Size(NamedTuple):
    """Training length and network size."""

    epochs: int
    batch_size: int
    hidden: tuple[int, ...]
    lr: float


_MANY, _VERY_MANY = 2000, 10_000  # examples from which networks are larger


def choose_size(method: str, count: int, batch_size: int | None = None) -> Size:
    """Return defaults for a method and ``count`` examples, with a ``batch_size`` if one is given.

    docs/results/own-data.md shows how they were chosen.

    >>> choose_size("plc", 150)
    Size(epochs=21, batch_size=16, hidden=(64,), lr=0.03)
    >>> choose_size("plc", 50_000)
    Size(epochs=15, batch_size=128, hidden=(256,), lr=0.01)
    >>> choose_size("unflip", 150)
    Size(epochs=10, batch_size=18, hidden=(64,), lr=0.15)
    >>> choose_size("unflip", 50_000)
    Size(epochs=10, batch_size=320, hidden=(256,), lr=0.15)
    """
    if method == "unflip":  # few examples are visited several times per epoch: unflip.steps
        usual = 320 if count >= _VERY_MANY else min(146, max(18, count // 9))  # at least 9 batches per epoch
        hidden = 64 if count < _MANY else 128 if count < _VERY_MANY else 256
        return Size(10, usual if batch_size is None else batch_size, (hidden,), 0.15)
    if batch_size is None:  # about 16 batches per epoch
        batch_size = min(128, max(16, 2 ** round(math.log2(count / 16))))
    epochs = min(100, max(15, round(200 * batch_size / count)))  # about 200 steps
    return Size(epochs, batch_size, *(((64,), 0.03) if count < _MANY else ((256,), 0.01)))
