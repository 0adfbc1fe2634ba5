"""A run's configuration: defaults < preset < config file < settings < flags, checked before anything is written."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from unflip.data import datasets
from unflip.data.options import DataOptions, NoiseOptions
from unflip.errors import ConfigError, check_text, unknown
from unflip.methods import calibrators, find_method, methods
from unflip.methods.base import RunShape
from unflip.nn import networks
from unflip.nn.backbone import PretrainedOptions, usual_freeze_epochs
from unflip.options import Options
from unflip.presets import preset_names, preset_text
from unflip.runs.options import Common, OptimizerOptions

Tree = dict[str, Any]
FILE_KEYS = (
    ("data", "path"), ("data", "labels"), ("data", "reviewed"), ("data", "groups"), ("webvision", "imagenet"),
    ("noise", "posterior"), ("noise", "class_map"), ("noise", "matrix"),
)  # fmt: skip
"""Keys whose values may be files or folders."""
FOR = "for"
"""The section of a file in which each method may have values of its own."""
_Model = TypeVar("_Model", bound=Options)


@dataclass(frozen=True)
class RunConfig:
    """A whole configuration: what every run has, and a section for each part in use."""

    common: Common
    parts: Mapping[str, Options]

    @classmethod
    def resolve(cls, layers: Sequence[Tree], explicit: Iterable[str] = ()) -> Self:
        """Merge ``layers``, the last wins, and check the outcome. Below all of them is what the method itself advises.

        ``explicit`` names sections that a person typed: those must be in use. Sections of a preset or a file need
        not be, so that one file serves several methods.
        """
        named = _merged(layers)
        tree = _merged([_chosen(layer, _part_name(named, "method")) for layer in layers])
        method, network = (_part_name(tree, key) for key in ("method", "network"))
        recipe = find_method(method)
        sections = dict(recipe.sections)
        sections[network_section(network)] = networks.load(network).Options
        sections |= {key: datasets.load(key).Options for key in tree if key in datasets}
        known = {*Common.model_fields, *sections}
        for key, value in tree.items():
            other_part = key in methods or key in networks or key in calibrators or key == "calibration"
            if key not in known and not (other_part and isinstance(value, dict)):
                raise ConfigError(unknown("configuration key", key, _all_keys(sections)))
        for key in explicit:
            if key not in known:
                raise ConfigError(
                    f"section '{key}' is not used by method '{method}' with network '{network}'; "
                    f"in use: {', '.join(sections)}"
                )
        common = _check_common(tree, sections)
        check_text(common.data.path, "data")
        shape = RunShape(common.epochs, common.optimizer.lr, of_rows=network == "mlp")
        tree = _merge(recipe.options_for(shape), tree)
        if issubclass(sections[network_section(network)], PretrainedOptions):  # kept where a run is resumed for longer
            usual = {"freeze_epochs": usual_freeze_epochs(common.epochs)}
            tree = _merge({network_section(network): usual}, tree)
        common = _check_common(tree, sections)
        parts = {name: _check(model, tree.get(name, {}), f"{name}.", sections) for name, model in sections.items()}
        return cls(common, parts)

    def check(self) -> None:
        """Refuse what makes no sense in a run of this length; apart from `resolve`, since old runs are to be read."""
        find_method(self.common.method).check(self.parts, self.common.epochs)
        if isinstance(self.network_options, PretrainedOptions):
            self.network_options.check_length(network_section(self.common.network), self.common.epochs)

    @property
    def network_options(self) -> Options:
        """The section of the network in use."""
        return self.parts[network_section(self.common.network)]

    def tree(self) -> Tree:
        """Return the configuration as plain values, without those that are not set."""
        tree = self.common.model_dump(mode="json", exclude_none=True)
        return tree | {name: part.model_dump(mode="json", exclude_none=True) for name, part in self.parts.items()}

    def inputs(self) -> list[Path]:
        """Return every file or folder that the configuration names, if it is there."""
        tree = self.tree()
        named = [tree.get(section, {}).get(key) for section, key in FILE_KEYS]
        return [path for value in named if value is not None and (path := Path(value)).exists()]

    def to_toml(self) -> str:
        """Return the configuration as a file that ``--config`` takes."""
        return tomli_w.dumps(self.tree())


@dataclass(frozen=True)
class Layers:
    """What a person asked for; of two values for an option the later wins: file, settings, flags."""

    files: Sequence[Tree]
    """Of a run that is resumed, a preset, a configuration file; they may serve several methods and kinds of data."""
    settings: Sequence[Tree]
    flags: Tree

    @property
    def trees(self) -> list[Tree]:
        """All of them, the strongest last."""
        return [*self.files, *self.settings, self.flags]

    def typed(self, section: str) -> set[str]:
        """Return the keys of a section that a person typed, as a setting or a flag."""
        sections = [tree.get(section) for tree in (*self.settings, self.flags)]
        return {key for tree in sections if isinstance(tree, dict) for key in tree}

    def resolve(self) -> RunConfig:
        """Merge the layers and check the outcome; a section that was typed must be in use."""
        explicit = [key for layer in self.settings for key, value in layer.items() if isinstance(value, dict)]
        return RunConfig.resolve(self.trees, explicit)


def make_layers(
    flags: Tree,
    *,
    preset: str | None = None,
    config: str | None = None,
    settings: Iterable[str] | Mapping[str, Any] | None = None,
    base: Tree | None = None,
) -> Layers:
    """Read what a person asked for.

    Args:
        flags: single options, as a configuration file would hold them.
        preset: the name of a preset.
        config: a TOML file.
        settings: ``key=value`` strings, or values by dotted key; their sections must be in use.
        base: the configuration of a run that is resumed.
    """
    if isinstance(settings, Mapping):
        typed = [nest(key, value) for key, value in settings.items()]
    else:
        typed = [parse_setting(text) for text in settings or ()]
    files = [base or {}, read_preset(preset) if preset else {}, {} if config is None else read_toml(Path(config))]
    return Layers(files, typed, flags)


def read_toml(path: Path, what: str = "config") -> Tree:
    """Read a TOML file; errors call it ``what``."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from error
    except ValueError as error:  # also of a file that is not UTF-8
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


def check_section(model: type[_Model], values: Tree, prefix: str = "") -> _Model:
    """Check one section's values; errors name keys with ``prefix`` before them."""
    return _check(model, values, prefix, {})


def nest(key: str, value: Any) -> Tree:
    """Return the tree in which the dotted ``key`` has ``value``."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def _merged(layers: Sequence[Tree]) -> Tree:
    tree: Tree = {"data": {}}
    for layer in layers:
        tree = _merge(tree, layer)
    return tree


def _chosen(layer: Tree, method: str) -> Tree:
    """Return a layer with what it says for one method only, `[for.METHOD]`, in the place of what it says for all."""
    special = layer.get(FOR, {})
    if not isinstance(special, dict) or not all(isinstance(value, dict) for value in special.values()):
        raise ConfigError(f"'{FOR}': write a section per method, such as [{FOR}.unflip]")
    for name in special:
        find_method(name)
    rest = {key: value for key, value in layer.items() if key != FOR}
    return _merge(rest, special.get(method, {}))


def _part_name(tree: Tree, key: str) -> str:
    name = tree.get(key, Common.model_fields[key].default)
    if not isinstance(name, str):
        raise ConfigError(f"{key} = {name!r}: must be a name; see `unflip list {key}s`")
    return name


def network_section(network: str) -> str:
    """Return the section of a network: its name, or for `timm:NAME` its family's."""
    return network.partition(":")[0]


def _merge(below: Tree, above: Tree) -> Tree:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _check_common(tree: Tree, sections: Mapping[str, type[Options]]) -> Common:
    return _check(Common, {key: tree[key] for key in tree if key in Common.model_fields}, "", sections)


def _check(model: type[_Model], values: Any, prefix: str, sections: Mapping[str, type[Options]]) -> _Model:
    """Validate ``values``; what is wrong is one line that names the key, the value and what is allowed."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        parts, field = _locate(model, first["loc"])
        key = (prefix + ".".join(parts)).rstrip(".")
        if first["type"] == "extra_forbidden":
            raise ConfigError(unknown("configuration key", key, _all_keys(sections))) from error
        if first["type"] == "missing":
            hint = "; name the data with --data" if key == "data.path" else ""
            raise ConfigError(f"'{key}' is missing{hint}") from error
        if first["type"] == "literal_error":
            choices = re.findall("'([^']*)'", first["ctx"]["expected"])
            raise ConfigError(unknown(key, str(first["input"]), choices)) from error
        message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        if kind := {"int_parsing": "a whole number", "float_parsing": "a number"}.get(first["type"]):
            others = [e["ctx"]["expected"] for e in error.errors() if e["type"] == "literal_error"]
            message = " or ".join([kind, *others])  # that, or a word such as 'auto'
        raise ConfigError(f"{key} = {first['input']!r}: must be {message}{_range(field)}") from error


def _locate(model: type[Options], location: Sequence[str | int]) -> tuple[list[str], FieldInfo | None]:
    """Return where a wrong value is, without what pydantic adds for the members of a union, and its field."""
    parts: list[str] = []
    field: FieldInfo | None = None
    section: type[Options] | None = model
    for part in location:
        if section is not None or isinstance(part, int):
            parts.append(str(part))
        if section is not None:
            field = section.model_fields.get(str(part))
            kind = field.annotation if field else None
            section = kind if isinstance(kind, type) and issubclass(kind, Options) else None
    return parts, field


def _range(field: FieldInfo | None) -> str:
    """Say both ends of a field's range, where it has two."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    entries = field.metadata if field else ()
    limits = [(sign, getattr(entry, name, None)) for entry in entries for name, sign in signs.items()]
    bounds = [f"{sign} {limit}" for sign, limit in limits if limit is not None]
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
