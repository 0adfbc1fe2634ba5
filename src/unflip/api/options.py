"""Options of commands: which fields of which models are keyword arguments in Python and flags on the command line.

An option is declared once, as a field of the pydantic model of its section, with its default and its description. A
command lists the dotted keys of those that it takes; a key more in such a list is all that a new flag needs. Nothing
heavy is imported.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import PositiveInt

from unflip.data.options import DataOptions, NoiseOptions
from unflip.errors import ConfigError, unknown
from unflip.options import Options
from unflip.runs.options import Common, Execution

BACKBONE = "efficientnet-lite0"


class SourceOptions(Options):
    """Where values of a configuration come from, besides single options."""

    preset: str | None = None
    """A set of values by name: see `unflip list presets`."""
    config: str | None = None
    """A TOML file of values; overrides the preset."""
    settings: tuple[str, ...] | dict[str, Any] = ()
    """A single value, overrides the file: --set optimizer.lr=0.02."""
    from_scratch: bool = False
    """Do not start from the weights that a pretrained --network comes with."""


class EmbeddingOptions(Options):
    """How images become features."""

    backbone: str = BACKBONE
    """The pretrained network: see `unflip list backbones`."""
    weights: str | None = None
    """Its weights, if they are to come from a file: .safetensors, or what torch.save wrote."""
    batch_size: PositiveInt | None = None
    """Images per batch."""
    feature_precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of features on a processor: bfloat16 is twice as fast where the processor has it."""
    backend: Literal["local", "ray"] = "local"
    """Where features are computed: on this machine (local), or on all of a Ray cluster (ray)."""
    address: str | None = None
    """The Ray cluster to use; by default one is started on this machine."""


class AuditOptions(Options):
    """What to look for besides wrong labels."""

    skip_check: tuple[str, ...] = ()
    """A check to leave out: see `unflip list checks`."""


SECTIONS: dict[str, type[Options]] = {
    "": Common,
    "data": DataOptions,
    "noise": NoiseOptions,
    "execution": Execution,
    "sources": SourceOptions,
    "embedding": EmbeddingOptions,
    "audit": AuditOptions,
}
"""The models that options are fields of: those of a run's configuration, and those of commands alone."""

_LEARNING = ("method", "epochs", "seed")
_COMPUTE = ("execution.device", "execution.threads", "execution.quiet")
_BACKBONE = ("embedding.backbone", "embedding.weights", "embedding.feature_precision", "data.image_size")
_CLUSTER = ("embedding.backend", "embedding.address")
COLUMNS = (
    "data.label_column", "data.ignore", "data.text_column", "data.categorical", "data.numeric", "data.text_encoder",
)  # fmt: skip
"""Options that say what the columns of a table hold."""
_EXAMPLES = (*COLUMNS, "data.skip_broken")
_LABELS = ("data.labels", "data.reviewed")

TRAIN = (
    *_LEARNING, *_LABELS, *_EXAMPLES, *_BACKBONE, "data.limit", "noise.recipe", "network", "sources.from_scratch",
    "select", "sources.preset", "sources.config", "sources.settings",
    "execution.checkpoint_minutes", "execution.keep_checkpoints", *_COMPUTE,
)  # fmt: skip
"""What `train` takes besides the data and the folder of the run."""
CLEAN = (*_LEARNING, *_LABELS, *_EXAMPLES, *_BACKBONE, "audit.skip_check", *_CLUSTER, *_COMPUTE)
"""What `clean` takes besides the data and the folder of the run."""
EMBED = (
    *_BACKBONE, "data.image_resize", "data.resample", *_EXAMPLES, "embedding.batch_size", *_CLUSTER, *_COMPUTE,
)  # fmt: skip
"""What `embed` takes besides the data and the file."""
CORRUPT = (
    "seed", "data.labels", "data.limit", "noise.posterior", "noise.class_map", "noise.matrix", *_COMPUTE,
)  # fmt: skip
"""What `corrupt` takes besides the data, the recipe and the file."""
PREDICT = ("data.skip_broken", "embedding.weights", "execution.device")
"""What `predict` takes besides the run and the data."""

_NAMES = {"noise.recipe": "noise"}


def option_name(key: str) -> str:
    """Return the keyword argument that sets the option with this dotted key: its last part, with one exception.

    >>> option_name("data.label_column"), option_name("noise.recipe")
    ('label_column', 'noise')
    """
    return _NAMES.get(key, key.rpartition(".")[2])


def option_tree(keys: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments by section and key, as a configuration file would hold them; None is left out.

    Args:
        keys: the dotted keys of the options that the command takes; another one is refused.
        options: what was given, by name.
    """
    known = {option_name(key): key for key in keys}
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
    """How long to train, and what."""

    epochs: int
    batch_size: int
    hidden: tuple[int, ...]
    lr: float


_MANY, _VERY_MANY = 2000, 10_000  # examples from which on networks are larger


def choose_size(method: str, count: int, batch_size: int | None = None) -> Size:
    """Return what suits a method and ``count`` examples, with a ``batch_size`` if one is given.

    How these were chosen: docs/own-data-results.md.

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
