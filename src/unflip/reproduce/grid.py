"""Grid files: axes and fixed settings, expanded to points; see docs/experiments.md."""

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unflip.errors import ConfigError, unknown
from unflip.reproduce.grids import grid_names, grid_text
from unflip.runs.config import RunConfig, Tree, nest, read_preset, read_toml

_SHORT = {"data": "path", "noise": "recipe"}  # `data = X` means `data.path = X`; `noise = X`, `noise.recipe = X`


@dataclass(frozen=True)
class Layer:
    """A part of a point's configuration, and where in the grid it comes from."""

    origin: str
    tree: Tree
    typed: str | None = None
    """The section named in the key of an axis; the run must use it."""


@dataclass(frozen=True)
class Point:
    """One combination of axis values."""

    grid: str
    position: int
    """Its number within the grid."""
    axes: Mapping[str, Any]
    """Axis -> the name of the value if it has one, otherwise the value."""
    layers: tuple[Layer, ...]

    def __str__(self) -> str:
        return ", ".join(f"{axis} = {value}" for axis, value in self.axes.items())

    def configure(self) -> RunConfig:
        """Resolve the configuration; an error names the grid and the point."""
        trees = [dict(layer.tree) for layer in self.layers]
        presets = [tree.pop("preset") for tree in trees if "preset" in tree]
        try:
            preset = read_preset(str(presets[-1])) if presets else {}
            return RunConfig.resolve([preset, *trees], [layer.typed for layer in self.layers if layer.typed])
        except ConfigError as error:
            raise ConfigError(f"grid {self.grid}, {self}: {error}") from error

    def origin(self, section: str, key: str) -> str:
        """Return where in the grid the value of a key comes from."""
        found = [layer.origin for layer in self.layers if key in layer.tree.get(section, {})]
        return found[-1] if found else "preset"


@dataclass(frozen=True)
class Grid:
    """A grid's name and its points, the last axis changing fastest."""

    name: str
    points: tuple[Point, ...]


def read_grid(name: str) -> Grid:
    """Read a grid: a built-in one by name, or a .toml file."""
    if name.endswith(".toml"):
        path = Path(name)
        return _parse(path.stem, read_toml(path, "grid"))
    if name not in grid_names():
        raise ConfigError(f"{unknown('grid', name, grid_names())}, or FILE.toml")
    return _parse(name, tomllib.loads(grid_text(name)))


def _parse(name: str, tree: Tree) -> Grid:
    _check_keys(name, tree, "", ("config", "axes", "grid"))
    blocks = tree.get("grid", [{}])
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        raise ConfigError(f"grid {name}: 'grid' must be a list of blocks; write [[grid]] with double brackets")
    for block in blocks:
        _check_keys(name, block, "grid.", ("config", "axes"))
    combinations = (combination for block in blocks for combination in _combine(name, tree, block))
    return Grid(name, tuple(Point(name, i, axes, layers) for i, (axes, layers) in enumerate(combinations)))


def _check_keys(name: str, tree: Tree, prefix: str, allowed: tuple[str, ...]) -> None:
    for key in tree:
        if key not in allowed:
            hint = "; settings belong in [config], axes in [axes]"
            raise ConfigError(f"grid {name}: {unknown('key', prefix + key, [prefix + one for one in allowed])}{hint}")
    for key in ("config", "axes"):
        if not isinstance(tree.get(key, {}), dict):
            raise ConfigError(f"grid {name}: '{prefix}{key}' must be a table; write [{prefix}{key}]")


def _combine(name: str, tree: Tree, block: Tree) -> Iterator[tuple[dict[str, Any], tuple[Layer, ...]]]:
    """Yield every combination of a block's axes: its displayed values and its configuration."""
    axes = tree.get("axes", {}) | block.get("axes", {})
    if not axes:
        raise ConfigError(f"grid {name}: a block has no axes; add at least one to [axes], for example seed = [0, 1, 2]")
    fixed = [
        Layer(origin, _expand(part["config"]))
        for origin, part in (("[config]", tree), ("[grid.config]", block))
        if "config" in part
    ]
    for values in itertools.product(*(_values(name, axis, axes[axis]) for axis in axes)):
        shown = {axis: value for axis, (value, _) in zip(axes, values, strict=True)}
        yield shown, (*fixed, *(layer for _, layer in values))


def _values(name: str, axis: str, values: Any) -> list[tuple[Any, Layer]]:
    """Return the values of an axis, each with its displayed form and its configuration."""
    where = f"grid {name}, axis '{axis}'"
    if not isinstance(values, list | dict):
        raise ConfigError(f"{where}: {values!r} is not a list of values; write [{json.dumps(values, default=str)}]")
    if not values:
        raise ConfigError(f"{where}: has no values; add some, or remove the axis")
    named = list(values.items()) if isinstance(values, dict) else [(value, value) for value in values]
    found: list[tuple[Any, Layer]] = []
    for shown, value in named:
        if isinstance(shown, dict | list):
            raise ConfigError(f"{where}: {shown!r} needs a name; write [axes.{json.dumps(axis)}] and NAME = ...")
        if isinstance(value, list) and "." not in axis:
            raise ConfigError(
                f"{where}: '{shown}' is a list; a key with a dot needs quotes: \"{axis}.{shown}\" = [...]"
            )
        is_config = isinstance(value, dict)
        section = axis.partition(".")[0] if "." in axis and not is_config else None
        layer = Layer(f"{axis} = {shown}", _expand(value if is_config else nest(axis, value)), section)
        if any(shown == other for other, _ in found):
            raise ConfigError(f"{where}: {shown!r} appears twice; list every value once")
        found.append((shown, layer))
    return found


def _expand(tree: Tree) -> Tree:
    """Return a configuration with the short forms of `data` and `noise` written as sections."""
    return {
        key: {_SHORT[key]: value} if key in _SHORT and not isinstance(value, dict) else value
        for key, value in tree.items()
    }
