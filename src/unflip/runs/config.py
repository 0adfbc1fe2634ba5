"""A run's configuration: defaults < preset < config file < settings < flags, validated first; and the data it names."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import numpy as np
import tomli_w
import torch

from unflip.compute import total_memory
from unflip.data.columns import Table
from unflip.data.dataset import Dataset
from unflip.data.images import IMAGENET
from unflip.data.labeling import label_data, settle_scale
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions, NoiseOptions
from unflip.data.sources import Standardization
from unflip.encoders.table import encode_raw
from unflip.errors import ConfigError, InputError, check_text, unknown
from unflip.methods import calibrators, find_method, methods
from unflip.methods.base import RunShape
from unflip.nn import networks
from unflip.nn.backbone import PretrainedOptions, usual_freeze_epochs
from unflip.options import Options, check_options
from unflip.presets import preset_names
from unflip.progress import Track, untracked
from unflip.runs.options import Common, OptimizerOptions

Tree = dict[str, Any]
FILE_KEYS = (
    ("data", "path"), ("data", "labels"), ("data", "reviewed"), ("data", "groups"),
    ("noise", "posterior"), ("noise", "class_map"), ("noise", "matrix"),
)  # fmt: skip
"""Keys whose values may be paths."""
FOR = "for"
"""The section of a file for values of single methods, such as ``[for.plc]``."""
_MATRIX_BYTES = 32  # of each cell of a transition matrix: there are up to four, in double precision
_Model = TypeVar("_Model", bound=Options)


@dataclass(frozen=True)
class RunConfig:
    """A complete configuration: the common options, and one section per part in use."""

    common: Common
    parts: Mapping[str, Options]

    @classmethod
    def resolve(cls, layers: Sequence[Tree], explicit: Iterable[str] = ()) -> Self:
        """Merge layers and validate the result.

        Args:
            layers: trees of values; later ones take precedence. The method's own defaults have the lowest precedence.
            explicit: sections that must be in use. Others, from a preset or file, need not be, so that one file serves
                several methods.
        """
        own = partial(_chosen, method=_part_name(_merged(layers), "method"))
        tree = _merged(map(own, layers))
        method, network = (_part_name(tree, key) for key in ("method", "network"))
        network_options = networks.load(network).Options
        spec = find_method(method)
        sections = {**spec.sections, network_section(network): network_options}
        known = {*Common.model_fields, *sections}
        for key, value in tree.items():
            other_part = key in methods or key in networks or key in calibrators or key == "calibration"
            if key not in known and not (other_part and isinstance(value, dict)):
                raise ConfigError(unknown("configuration key", key, _all_keys(sections)))
        if unused := next((key for key in explicit if key not in known), None):
            used = f"method '{method}' and network '{network}' use: {', '.join(sections)}"
            raise ConfigError(f"section '{unused}' is not used; {used}")
        common = _check_common(tree, sections)
        check_text(common.data.path, "data")
        if common.optimizer.nesterov and common.optimizer.momentum == 0:
            raise ConfigError("optimizer.nesterov = True: must be false if optimizer.momentum is 0")
        shape = RunShape(common.epochs, common.optimizer.lr, of_rows=network == "mlp")
        tree = _merge(spec.options_for(shape), tree)
        if issubclass(sections[network_section(network)], PretrainedOptions):
            usual = {"freeze_epochs": usual_freeze_epochs(common.epochs)}
            tree = _merge({network_section(network): usual}, tree)
        common = _check_common(tree, sections)
        check = partial(check_section, sections=sections)
        return cls(common, {name: check(model, tree.get(name, {}), f"{name}.") for name, model in sections.items()})

    def check(self) -> None:
        """Raise ConfigError if options do not fit the number of epochs; not part of `resolve`, which reads old runs."""
        find_method(self.common.method).check(self.parts, self.common.epochs)

    def check_size(self, count: int, num_classes: int, device: str) -> None:
        """Raise ConfigError if class probabilities and transition matrices would not fit into memory."""
        tables = find_method(self.common.method).method.tables
        needed = 2 * tables * count * num_classes + _MATRIX_BYTES * num_classes**2
        available = total_memory(device)
        if available is not None and needed > available:
            size = f"{count:,} examples in {num_classes:,} classes take about {needed / 1e9:,.0f} GB"
            told = f"with method '{self.common.method}', more than the {available / 1e9:,.0f} GB of memory"
            raise ConfigError(f"{size} {told}; merge rare classes, or clean groups of similar classes one by one")

    def load_data(self, raw: Dataset | None = None, track: Track = untracked) -> Dataset:
        """Read, encode, label and scale the data of the run; ``raw`` is the output of the loader, if there already.

        With a noise recipe, it is not scaled yet: the scale must not depend on clean labels.
        """
        options = self.common.data
        raw = load_raw(options) if raw is None else raw
        normalization = self._network_normalization(raw)
        if raw.holds_images and normalization is not None:
            raw = replace(raw, normalization=normalization)
        if isinstance(raw.train.inputs, Table):
            raw = encode_raw(raw, options, track)
        data = label_data(raw, options, track, normalization).joined()
        return settle_scale(data) if options.standardize == "auto" and self.common.noise.recipe is None else data

    def _network_normalization(self, raw: Dataset) -> Standardization | None:
        """Return the normalization that the network's pretrained weights need; None if the data determines it.

        Arrays of images must be bytes for such weights, unless ``data.standardize`` is off.
        """
        common, options = self.common, self.network_options
        constants = networks.load(common.network).normalization
        own = None if constants is None else Standardization(*(torch.full((1, 1, 1), value) for value in constants))
        if raw.holds_images:
            return own
        if not isinstance(options, PretrainedOptions) or not options.pretrained or common.data.standardize == "off":
            return None
        arrays = {name: part.inputs for name, part in raw.parts().items() if isinstance(part.inputs, np.ndarray)}
        if "train" not in arrays or arrays["train"].ndim != 4:
            return None
        for name, array in arrays.items():
            if array.dtype != np.uint8:
                told = f"type {array.dtype}, and {common.network} needs images of type uint8"
                how = "if they are normalized already, --set data.standardize=off"
                raise InputError(f"{common.data.path}, '{name}': {told}; {how}")
        if own is not None or arrays["train"].shape[1] == 3:
            return own or IMAGENET
        return Standardization(*(value.mean().view(1, 1, 1) for value in (IMAGENET.mean, IMAGENET.std)))

    @property
    def network_options(self) -> Options:
        """The options of the network."""
        return self.parts[network_section(self.common.network)]

    def tree(self) -> Tree:
        """Return the configuration as plain values, without those that are None."""
        tree = self.common.model_dump(mode="json", exclude_none=True)
        return tree | {name: part.model_dump(mode="json", exclude_none=True) for name, part in self.parts.items()}

    def inputs(self) -> list[Path]:
        """Return the existing files and folders that the configuration names."""
        tree = self.tree()
        values = [tree.get(section, {}).get(key) for section, key in FILE_KEYS]
        return [path for value in values if value is not None and (path := Path(value)).exists()]

    def to_toml(self) -> str:
        """Return the configuration as TOML, for ``--config``."""
        return tomli_w.dumps(self.tree())


@dataclass(frozen=True)
class Layers:
    """The layers of a configuration, in order of precedence: files, settings, flags."""

    files: Sequence[Tree]
    """Of a resumed run, a preset, a configuration file; they may serve several methods and kinds of data."""
    settings: Sequence[Tree]
    flags: Tree

    @property
    def trees(self) -> list[Tree]:
        """All layers, highest precedence last."""
        return [*self.files, *self.settings, self.flags]

    def merged(self) -> Tree:
        """Return all layers as one tree, not validated."""
        return _merged(self.trees)

    def typed(self, section: str) -> set[str]:
        """Return the keys of a section that were set by settings or flags."""
        sections = [tree.get(section) for tree in (*self.settings, self.flags)]
        return {key for tree in sections if isinstance(tree, dict) for key in tree}

    def resolve(self) -> RunConfig:
        """Merge the layers and validate the result; sections in settings must be in use."""
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
    """Read the layers of a configuration.

    Args:
        flags: single options, as a tree of sections.
        preset: the name of a preset.
        config: a TOML file.
        settings: ``key=value`` strings, or values by dotted key.
        base: the configuration of a resumed run.
    """
    if isinstance(settings, Mapping):
        typed = [nest(key, value) for key, value in settings.items()]
    else:
        typed = [parse_setting(text) for text in settings or ()]
    files = [base or {}, read_preset(preset) if preset else {}, {} if config is None else read_toml(Path(config))]
    return Layers(files, typed, flags)


def read_toml(path: Path, what: str = "config") -> Tree:
    """Read a TOML file; errors name it ``what``."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from error
    except ValueError as error:  # also if not UTF-8
        raise ConfigError(f"{what} {path}: not TOML: {error}") from error


def read_preset(name: str) -> Tree:
    """Read a preset of the package."""
    file = resources.files("unflip.presets") / f"{name}.toml"
    if not file.is_file():
        raise ConfigError(unknown("preset", name, preset_names()))
    return tomllib.loads(file.read_text("utf-8"))


def parse_setting(text: str) -> Tree:
    """Return ``key=value`` as a tree; the value is TOML or a bare word.

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


def nest(key: str, value: Any) -> Tree:
    """Return the tree in which the dotted ``key`` has ``value``."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def flatten(tree: Tree, prefix: str = "") -> Tree:
    """Return the values of a tree by dotted key."""
    flat: Tree = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _merged(layers: Iterable[Tree]) -> Tree:
    return reduce(_merge, layers, {"data": {}})


def _chosen(layer: Tree, method: str) -> Tree:
    """Return a layer with its section `[for.METHOD]` merged into it, and the other methods' dropped."""
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
    """Return the section of a network: its name, or its family for `timm:NAME`."""
    return network.partition(":")[0]


def _merge(below: Tree, above: Tree) -> Tree:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _check_common(tree: Tree, sections: Mapping[str, type[Options]]) -> Common:
    return check_section(Common, {key: tree[key] for key in tree if key in Common.model_fields}, sections=sections)


def check_section(
    model: type[_Model], values: Any, prefix: str = "", sections: Mapping[str, type[Options]] = MappingProxyType({})
) -> _Model:
    """Validate one section; the error is one line with key, value and what is allowed.

    Args:
        model: the options of the section.
        values: by key.
        prefix: what errors put before a key.
        sections: further sections of the configuration, whose keys an error may suggest.
    """
    keys = _all_keys(sections)
    return check_options(model, values, prefix=prefix, kind="configuration key", keys=keys)


def _all_keys(sections: Mapping[str, type[Options]]) -> list[str]:
    nested: dict[str, type[Options]] = {"data": DataOptions, "noise": NoiseOptions, "optimizer": OptimizerOptions}
    nested |= sections
    keys = [key for key in Common.model_fields if key not in nested]
    return keys + [f"{section}.{key}" for section, model in nested.items() for key in model.model_fields]
