"""A run's configuration: preset < config file < --set < flag, checked before anything is written."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import tomli_w
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError
from pydantic.fields import FieldInfo

from unflip.calibration import calibrators
from unflip.data.dataset import DataOptions
from unflip.data.noisy import NoiseOptions
from unflip.errors import ConfigError, unknown
from unflip.methods import methods
from unflip.methods.recipes import find_recipe
from unflip.networks import networks
from unflip.options import Options
from unflip.presets import preset_names, preset_text

Tree = dict[str, Any]
_Model = TypeVar("_Model", bound=Options)
SelectionRule = Literal["noisy-val", "last", "clean-val", "best-test"]
PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]


class OptimizerOptions(Options):
    """Stochastic gradient descent and its schedule."""

    batch_size: int = Field(128, ge=2)
    """Examples a step, over all processes together."""
    lr: float = Field(0.01, gt=0.0)
    """Learning rate at the start."""
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    nesterov: bool = False
    weight_decay: float = Field(5e-4, ge=0.0)
    milestones: tuple[PositiveInt, ...] = (40, 80)
    """After each of these epochs the learning rate is multiplied by `factor`."""
    factor: float = Field(0.5, gt=0.0, le=1.0)
    lr_warmup: NonNegativeInt = 0
    """Epochs over which the learning rate climbs in equal steps to its first value."""

    def lr_factor(self, epoch: int) -> float:
        """Return what epoch ``epoch`` (from 1) multiplies the learning rate by."""
        climb = min(1.0, epoch / (self.lr_warmup + 1))
        return climb * self.factor ** sum(epoch > milestone for milestone in self.milestones)


class Safety(Options):
    """How a run is kept from loss: no part of its configuration, so that a resumed one may do it otherwise."""

    checkpoint_minutes: float = Field(10.0, ge=0.0)
    """Minutes from one checkpoint to the next within an epoch; 0 saves after every step."""
    keep: PositiveInt = 2
    """Checkpoints that stay; the older are there for when the newest is damaged."""
    on_nan: Literal["stop", "restore"] = "stop"
    """What to do when the loss becomes NaN or infinite: restore goes back an epoch with half the learning rate."""


class Common(Options):
    """What every run has, whatever its method and network."""

    method: str = "unflip"
    """See `unflip list methods`."""
    network: str = "mlp"
    """See `unflip list networks`."""
    epochs: PositiveInt = 30
    seed: NonNegativeInt = 0
    """Everything random in a run follows from it."""
    select: SelectionRule = "noisy-val"
    """Which epoch's model is kept; clean-val and best-test use the truth, and the result says so."""
    precision: PrecisionName = "auto"
    """What training passes compute in; auto is bfloat16 on a GPU that has it, else float32. All else is float32."""
    data: DataOptions
    noise: NoiseOptions = NoiseOptions()
    optimizer: OptimizerOptions = OptimizerOptions()


@dataclass(frozen=True)
class RunConfig:
    """A whole configuration: what every run has, and a section for each part in use."""

    common: Common
    parts: Mapping[str, Options]

    @classmethod
    def resolve(cls, layers: Sequence[Tree], explicit: Iterable[str] = ()) -> Self:
        """Merge ``layers``, the last wins, and check the outcome.

        ``explicit`` names sections that a person typed: those must be in use. Sections of a preset or a file need
        not be, so that one file serves several methods.
        """
        tree: Tree = {}
        for layer in layers:
            tree = _merge(tree, layer)
        method, network = (_part_name(tree, key) for key in ("method", "network"))
        sections = dict(find_recipe(method).sections)
        sections[_network_section(network)] = networks.load(network).Options
        known = {*Common.model_fields, *sections}
        for key, value in tree.items():
            other_part = key in methods or key in networks or key in calibrators or key == "calibration"
            if key not in known and not (other_part and isinstance(value, dict)):
                raise ConfigError(unknown("configuration key", key, _all_keys(sections)))
        unused = next((key for key in explicit if key not in known), None)
        if unused is not None:
            raise ConfigError(
                f"section '{unused}' is not used by method '{method}' with network '{network}'; "
                f"in use: {', '.join(sections)}"
            )
        common = _check(Common, {key: tree[key] for key in tree if key in Common.model_fields}, "", sections)
        parts = {name: _check(model, tree.get(name, {}), f"{name}.", sections) for name, model in sections.items()}
        return cls(common, parts)

    @property
    def network_options(self) -> Options:
        """The section of the network in use."""
        return self.parts[_network_section(self.common.network)]

    def tree(self) -> Tree:
        """Return the configuration as plain values, without those that are not set."""
        tree = self.common.model_dump(mode="json", exclude_none=True)
        return tree | {name: part.model_dump(mode="json", exclude_none=True) for name, part in self.parts.items()}

    def to_toml(self) -> str:
        """Return the configuration as a file that ``--config`` takes."""
        return tomli_w.dumps(self.tree())


def read_toml(path: Path, what: str = "config") -> Tree:
    """Read a TOML file; errors call it ``what``."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path}: not a text file in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{what} {path}: not TOML: {error}") from error


def read_preset(name: str) -> Tree:
    """Read a preset that ships in the package."""
    names = preset_names()
    if name not in names:
        raise ConfigError(unknown("preset", name, names))
    return tomllib.loads(preset_text(name))


def parse_setting(text: str) -> Tree:
    """Turn ``key=value`` into a tree; the value is TOML, or a bare word.

    >>> parse_setting("mlp.hidden=[64, 32]"), parse_setting("method=gce")
    ({'mlp': {'hidden': [64, 32]}}, {'method': 'gce'})
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {text}: write key=value, for example --set optimizer.lr=0.02")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return nest(key, parsed)


def check_safety(**values: Any) -> Safety:
    """Check how a run is to be kept from loss."""
    return _check(Safety, values, "", {})


def check_data(**values: Any) -> DataOptions:
    """Check which data is to be read, and how; what is None stays at its default."""
    return _check(DataOptions, {key: value for key, value in values.items() if value is not None}, "data.", {})


def nest(key: str, value: Any) -> Tree:
    """Return the tree in which the dotted ``key`` has ``value``."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def _part_name(tree: Tree, key: str) -> str:
    name = tree.get(key, Common.model_fields[key].default)
    if not isinstance(name, str):
        raise ConfigError(f"{key} = {name!r}: must be a name; see `unflip list {key}s`")
    return name


def _network_section(network: str) -> str:
    """Return the section of a network: its name, or for `timm:NAME` its family's."""
    return network.partition(":")[0]


def _merge(below: Tree, above: Tree) -> Tree:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _check(model: type[_Model], values: Any, prefix: str, sections: Mapping[str, type[Options]]) -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = (prefix + ".".join(_location(model, first["loc"]))).rstrip(".")
        if first["type"] == "extra_forbidden":
            raise ConfigError(unknown("configuration key", key, _all_keys(sections))) from error
        if first["type"] == "missing":
            raise ConfigError(f"'{key}' is missing") from error
        if first["type"] == "literal_error":
            choices = re.findall("'([^']*)'", first["ctx"]["expected"])
            raise ConfigError(unknown(key, str(first["input"]), choices)) from error
        message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        raise ConfigError(f"{key} = {first['input']!r}: must be {message}{_range(model, first['loc'])}") from error


def _location(model: type[Options], location: Sequence[str | int]) -> list[str]:
    """Return where a wrong value is, without what pydantic adds for the members of a union."""
    parts: list[str] = []
    leaf = False
    for part in location:
        if not leaf or isinstance(part, int):
            parts.append(str(part))
        field = model.model_fields.get(str(part))
        if field and isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            model = field.annotation
        else:
            leaf = True
    return parts


def _range(model: type[Options], location: Sequence[str | int]) -> str:
    """Say both ends of a field's range, where it has any."""
    field: FieldInfo | None = None
    for name in location:
        if not isinstance(name, str) or name not in model.model_fields:
            break
        field = model.model_fields[name]
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            model = field.annotation
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [
        f"{signs[name]} {getattr(entry, name)}"
        for entry in (field.metadata if field else ())
        for name in signs
        if getattr(entry, name, None) is not None
    ]
    return f" (allowed: {' and '.join(bounds)})" if len(bounds) > 1 else ""


def _all_keys(sections: Mapping[str, type[Options]]) -> list[str]:
    nested: dict[str, type[Options]] = {
        "data": DataOptions,
        "noise": NoiseOptions,
        "optimizer": OptimizerOptions,
        **sections,
    }
    keys = [key for key in Common.model_fields if key not in nested]
    return keys + [f"{section}.{key}" for section, model in nested.items() for key in model.model_fields]
