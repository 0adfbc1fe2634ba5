"""Grid files: axes and fixed settings, expanded to points; see docs/experiments.md."""

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
    typed: tuple[str, ...]
    """The sections named in the keys of axes; the run must use them."""

    def __str__(self) -> str:
        return ", ".join(f"{axis} = {value}" for axis, value in self.axes.items())

    def configure(self) -> RunConfig:
        """Resolve the configuration; an error names the grid and the point."""
        trees = [dict(layer) for layer in self.layers]
        presets = [tree.pop("preset") for tree in trees if "preset" in tree]
        try:
            preset = read_preset(str(presets[-1])) if presets else {}
            return RunConfig.resolve([preset, *trees], self.typed)
        except ConfigError as error:
            raise ConfigError(f"grid {self.grid}, {self}: {error}") from error


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
    blocks = tree.get("grid", [{}])
    parts = [("", tree), *(("grid.", block) for block in blocks)]
    for prefix, part in parts if isinstance(blocks, list) else []:
        for key in part:
            allowed = [f"{prefix}config", f"{prefix}axes", *(["grid"] if part is tree else [])]
            if prefix + key not in allowed:
                hint = "; settings belong in [config], axes in [axes]"
                raise ConfigError(f"grid {name}: {unknown('key', prefix + key, allowed)}{hint}")
    if not isinstance(blocks, list) or not all(isinstance(part.get("axes", {}), dict) for _, part in parts):
        raise ConfigError(f"grid {name}: axes must stand in a table, [axes], and blocks in lists, [[grid]]")
    points: list[Point] = []
    for block in blocks:
        axes = tree.get("axes", {}) | block.get("axes", {})
        if not axes:
            raise ConfigError(f"grid {name}: a block has no axes; add at least one to [axes], such as seed = [0, 1, 2]")
        fixed = [_expand(part["config"]) for part in (tree, block) if "config" in part]
        for values in itertools.product(*(_values(name, axis, axes[axis]) for axis in axes)):
            shown = {axis: value.shown for axis, value in zip(axes, values, strict=True)}
            typed = tuple(value.section for value in values if value.section)
            points.append(Point(name, len(points), shown, (*fixed, *(value.tree for value in values)), typed))
    return Grid(name, tuple(points))


class _Value(NamedTuple):
    """A value of an axis: how it is displayed, its configuration, and the section that its key names."""

    shown: Any
    tree: Tree
    section: str | None


def _values(name: str, axis: str, values: Any) -> list[_Value]:
    """Return the values of an axis: a list, or a table of named ones, which may be parts of a configuration."""
    where = f"grid {name}, axis '{axis}'"
    if not isinstance(values, list | dict) or not values:
        raise ConfigError(f"{where}: {values!r} is not a list of values; write [A, B, ...]")
    found = []
    for shown, value in values.items() if isinstance(values, dict) else [(value, value) for value in values]:
        if isinstance(value, list) and "." not in axis:
            raise ConfigError(
                f"{where}: '{shown}' is a list; a key with a dot needs quotes: \"{axis}.{shown}\" = [...]"
            )
        is_config = isinstance(value, dict)
        section = axis.partition(".")[0] if "." in axis and not is_config else None
        found.append(_Value(shown, _expand(value if is_config else nest(axis, value)), section))
    return found


def _expand(tree: Tree) -> Tree:
    """Return a configuration with the short forms of `data` and `noise` written as sections."""
    return {
        key: {_SHORT[key]: value} if key in _SHORT and not isinstance(value, dict) else value
        for key, value in tree.items()
    }
