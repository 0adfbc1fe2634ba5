"""Grid files: axes and fixed settings, expanded to points (see docs/experiments.md); and cells, one run for each.

A cell is named by a hash of its configuration, and its folder is a run folder.
"""

import contextlib
import hashlib
import itertools
import json
import os
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from unflip.data.loaders import is_built_in
from unflip.engine.run import train_run
from unflip.errors import ConfigError, InputError, UnflipError, described, unknown
from unflip.files import LOCK, locked, remove_partial
from unflip.reproduce.grids import grid_names, grid_text
from unflip.runs import layout
from unflip.runs.config import FILE_KEYS, RunConfig, Tree, nest, read_preset, read_toml
from unflip.runs.folder import Claim, Run
from unflip.runs.options import Execution

_SHORT = {"data": "path", "noise": "recipe"}  # `data = X` means `data.path = X`; `noise = X`, `noise.recipe = X`
_EXECUTION_KEYS = ("workers", "mmap_threshold_mb")  # of the data; they do not affect results
_LOG = "log.txt"
_CELL_LOCK = ".unflip-cell-lock"
_RESULTS = (layout.CONFIG, layout.METRICS, layout.RESULT)
_HASH_LENGTH = 16  # hexadecimal digits
_COPIED = (
    "data", "method", "noise", "seed", "selection", "epochs", "protocol", "test_accuracy", "label_accuracy",
    "val_accuracy", "quality_auroc", "score_auroc", "seconds", "versions",
)  # fmt: skip
"""What a line of results.jsonl takes over from result.json."""


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
    short = [key for key in _SHORT if key in tree and not isinstance(tree[key], dict)]
    return tree | {key: {_SHORT[key]: tree[key]} for key in short}


@dataclass(frozen=True)
class Cell:
    """A planned or finished run."""

    folder: Path
    config: Tree = field(compare=False)
    """The resolved configuration, with absolute paths."""

    @property
    def name(self) -> str:
        """The hash of the cell's configuration."""
        return self.folder.name

    @property
    def run(self) -> Run:
        """The cell's folder as a run."""
        return Run(self.folder)

    @property
    def log(self) -> Path:
        """The output of all attempts, with their errors."""
        return self.folder / _LOG

    def check(self) -> None:
        """Raise if the folder contains files that unflip did not write."""
        self.run.check_own([_LOG])

    def prepare(self) -> None:
        """Write the configuration, also of a run that has started: its data may have been moved."""
        self.run.begin()
        self.run.own(_LOG)
        self.run.write_config(tomli_w.dumps(self.config))

    def tidy(self, keep: str) -> None:
        """Remove partial files and checkpoints of a finished cell; with ``results``, everything but its results."""
        remove_partial(self.folder)
        (self.folder / LOCK).unlink(missing_ok=True)
        unneeded = set(layout.REPLACED) - set(_RESULTS) if keep == "results" else {layout.CHECKPOINTS}
        self.run.remove(sorted(unneeded))


def find_cell(point: Point, cells: Path, data_root: Path) -> Cell:
    """Resolve a grid point to its cell; points with the same configuration share a cell.

    The hash covers the whole configuration, with fingerprints in place of paths. Device, threads and folders are not
    part of a configuration, so they are not part of the hash.

    Args:
        point: the grid point.
        cells: the folder that contains the cells.
        data_root: the folder to which data paths are relative.
    """
    config = point.configure().tree()
    identity: Tree = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for section, key in FILE_KEYS:
        value = config.get(section, {}).get(key)
        if value is None or _is_name(section, key, value):
            continue
        path = data_root / value
        if not path.exists():
            raise InputError(f"grid {point.grid}, {point}: {section}.{key} {value} is not in --data-root {data_root}")
        config[section][key] = str(path.absolute())
        identity[section][key] = fingerprint(path)
    for key in _EXECUTION_KEYS:
        identity["data"].pop(key, None)
    return Cell(cells / _short_hash([json.dumps(identity, sort_keys=True).encode()]), config)


def run_cell(folder: str, device: str, threads: int) -> str | None:
    """Start or resume a prepared cell in this process; return the error, None if there was none.

    All output goes to the cell's log. If another process still works on the cell, wait for it: it belongs to a sweep
    that was killed and is about to exit.
    """
    cell = Path(folder)
    with locked(cell / _CELL_LOCK), _output_to(cell / _LOG):
        try:
            run = Run(cell)
            with Claim(run, resume=True) as claim:
                train_run(claim, run.config, Execution(device=device, threads=threads, quiet=False))
        except UnflipError as error:
            return str(error)
        except Exception as error:
            traceback.print_exc()
            return described(error)
    return None


def result_line(point: Point, cell: Cell) -> dict[str, Any]:
    """Return the line of results.jsonl for a finished cell; see docs/experiments.md."""
    result = cell.run.result
    return {
        "grid": point.grid,
        "cell": cell.name,
        "axes": dict(point.axes),
        "network": cell.config["network"],
        **{key: result[key] for key in _COPIED},
        "tests": {name: {top: test[top] for top in ("top1", "top5")} for name, test in result["tests"].items()},
    }


def _is_name(section: str, key: str, value: str) -> bool:
    """Return whether a value that may be a file is a built-in name instead."""
    if (section, key) == ("data", "path"):
        return is_built_in(value)
    return key in ("labels", "posterior", "class_map", "groups") and not Path(value).suffix


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Append everything that this process and its libraries print to ``log``, from now on."""
    with log.open("a", buffering=1, encoding="utf-8") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            yield


def fingerprint(path: Path) -> str:
    """Return a short hash of a file, or of all files in a folder with their names; it does not depend on the place."""
    try:
        walk = os.walk(path, followlinks=True)  # large data is often a symbolic link
        files = [path] if path.is_file() else sorted(Path(at, name) for at, _, names in walk for name in names)
        return _short_hash(_content(file, path, file.stat().st_mtime_ns) for file in files)
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror}") from error


@cache
def _content(file: Path, base: Path, changed: int) -> bytes:
    """Return the name and the hash of a file, which is read once, as many cells share it."""
    with file.open("rb") as stream:
        return f"{file.relative_to(base)}:".encode() + hashlib.file_digest(stream, "sha256").digest()


def _short_hash(parts: Iterable[bytes]) -> str:
    """Return the first digits of the SHA-256 of the concatenated parts."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:_HASH_LENGTH]
