"""Grid files: axes and fixed settings, expanded to points; see docs/experiments.md."""

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unflip.errors import ConfigError, unknown
from unflip.reproduce.grids import grid_names, grid_text
from unflip.runs.config import RunConfig, Tree, nest, read_preset, read_toml

_SHORT = {"data": "path", "noise": "recipe"}  # `data = X` means `data.path = X`; `noise = X`, `noise.recipe = X`


@dataclass(frozen=True)
class Point:
    """One combination of axis values."""

    grid: str
    position: int
    """Its number within the grid."""
    axes: Mapping[str, Any]
    """Axis -> the name of the value if it has one, otherwise the value."""
    layers: tuple[Tree, ...]
    """The parts of its configuration; later ones win."""

    def __str__(self) -> str:
        return ", ".join(f"{axis} = {value}" for axis, value in self.axes.items())

    def configure(self) -> RunConfig:
        """Resolve the configuration; an error names the grid and the point."""
        trees = [dict(layer) for layer in self.layers]
        presets = [tree.pop("preset") for tree in trees if "preset" in tree]
        try:
            preset = read_preset(str(presets[-1])) if presets else {}
            explicit = [axis.partition(".")[0] for axis in self.axes if "." in axis]
            return RunConfig.resolve([preset, *trees], explicit)
        except ConfigError as error:
            raise ConfigError(f"grid {self.grid}, {self}: {error}") from error


def read_grid(name: str) -> list[Point]:
    """Return the points of a grid, a built-in one by name or a .toml file; the last axis changes fastest."""
    if name.endswith(".toml"):
        path = Path(name)
        return _parse(path.stem, read_toml(path, "grid"))
    if name not in grid_names():
        raise ConfigError(f"{unknown('grid', name, grid_names())}, or FILE.toml")
    return _parse(name, tomllib.loads(grid_text(name)))


def _parse(name: str, tree: Tree) -> list[Point]:
    blocks = tree.get("grid", [{}])
    if not isinstance(blocks, list):
        raise ConfigError(f"grid {name}: blocks must be lists, [[grid]]")
    for part, allowed in [(tree, ("config", "axes", "grid")), *((block, ("config", "axes")) for block in blocks)]:
        for key in part:
            if key not in allowed or (key != "grid" and not isinstance(part[key], dict)):
                raise ConfigError(f"grid {name}: '{key}': settings must be in [config], axes in [axes]")
    points: list[Point] = []
    for block in blocks:
        axes = tree.get("axes", {}) | block.get("axes", {})
        if not axes:
            raise ConfigError(f"grid {name}: no axes; add at least one to [axes], such as seed = [0, 1, 2]")
        fixed = [_expand(part["config"]) for part in (tree, block) if "config" in part]
        for values in itertools.product(*(_values(name, axis, axes[axis]) for axis in axes)):
            shown = {axis: value for axis, (value, _) in zip(axes, values, strict=True)}
            points.append(Point(name, len(points), shown, (*fixed, *(part for _, part in values))))
    return points


def _values(name: str, axis: str, values: Any) -> list[tuple[Any, Tree]]:
    """Return the values of an axis, each with its configuration.

    They are a list, or a table of named values, which may be parts of a configuration.
    """
    if not isinstance(values, list | dict) or not values:
        raise ConfigError(f"grid {name}, axis '{axis}': {values!r} is not a list of values; write [A, B, ...]")
    pairs = list(values.items()) if isinstance(values, dict) else [(value, value) for value in values]
    if "." not in axis and any(isinstance(value, list) for _, value in pairs):
        raise ConfigError(f"grid {name}, axis '{axis}': a key with a dot needs quotes: \"{axis}.KEY\" = [...]")
    return [(shown, _expand(value if isinstance(value, dict) else nest(axis, value))) for shown, value in pairs]


def _expand(tree: Tree) -> Tree:
    """Return a configuration with the short forms of `data` and `noise` written as sections."""
    return {
        key: {_SHORT[key]: value} if key in _SHORT and not isinstance(value, dict) else value
        for key, value in tree.items()
    }
