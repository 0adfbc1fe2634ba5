"""A cell: one run of a grid, named by a hash of its configuration; its folder is the run folder and its state."""

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from unflip.data.loaders import is_built_in
from unflip.engine.run import train_run
from unflip.errors import InputError, RunFolderError, UnflipError, described
from unflip.files import LOCK, locked, remove_partial, write_json
from unflip.reproduce.fingerprint import Fingerprints, short_hash
from unflip.reproduce.grid import Point
from unflip.runs import layout
from unflip.runs.config import FILE_KEYS, Tree
from unflip.runs.folder import Run
from unflip.runs.options import Execution

Keep = Literal["all", "results"]

_EXECUTION_KEYS = (
    ("data", "workers"),
    ("data", "map_above_mb"),
)  # keys that affect how a run is executed, but not its results
_CELL, _LOG, _FAILURES = "cell.json", "log.txt", "failures.json"
_CELL_LOCK = ".unflip-cell-lock"
_RESULTS = (layout.CONFIG, layout.METRICS, layout.RESULT)
_LOG_LINES = 20  # log lines kept with a failure


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
        """The output of all attempts."""
        return self.folder / _LOG

    @property
    def epoch(self) -> int:
        """The last finished epoch, 0 if there is none."""
        try:
            return len(self.run.metrics)
        except RunFolderError:
            return 0

    def check(self) -> None:
        """Refuse a folder that is not ours, or in which something of somebody else's is in the way."""
        self.run.check_own([_CELL, _LOG, _FAILURES])

    def prepare(self, points: Sequence[Point]) -> None:
        """Write the configuration, and the grid points that the cell belongs to.

        The configuration is written even if the run has started, as the data may have been moved.
        """
        self.run.begin()
        stands = [{"grid": point.grid, "axes": dict(point.axes)} for point in points]
        write_json(self.run.own(_CELL), {"cell": self.name, "points": stands, "config": self.config})
        self.run.own(_LOG)
        self.run.write_config(tomli_w.dumps(self.config))

    def record_failure(self, reason: str) -> None:
        """Record a failure, with the end of the log."""
        path = self.run.own(_FAILURES)
        try:
            failures = json.loads(path.read_text("utf-8"))["failures"]
        except (OSError, ValueError, KeyError):
            failures = []
        said = self.log.read_text("utf-8", errors="replace").splitlines() if self.log.exists() else []
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(path, {"failures": [*failures, {"time": when, "reason": reason, "log": said[-_LOG_LINES:]}]})

    def tidy(self, keep: Keep) -> None:
        """Remove the cell's own files that it no longer needs: checkpoints, partial files, what is not kept."""
        remove_partial(self.folder)
        (self.folder / LOCK).unlink(missing_ok=True)
        if keep == "results":
            self.run.remove([name for name in layout.REPLACED if name not in _RESULTS])
        else:
            self.run.remove([layout.CHECKPOINTS])


def find_cell(point: Point, cells: Path, data_root: Path, fingerprints: Fingerprints) -> Cell:
    """Resolve a grid point to its cell; points with the same configuration share a cell.

    The hash covers the whole configuration, with fingerprints instead of paths. Device, threads and folders are not
    part of a configuration, so they are not part of the hash.
    """
    config = point.configure().tree()
    identity: Tree = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for section, key in FILE_KEYS:
        value = config.get(section, {}).get(key)
        if value is None or _is_name(section, key, value):
            continue
        path = data_root / value
        if not path.exists():
            raise InputError(
                f"grid {point.grid}, {point.origin(section, key)}: {section}.{key} {value} is not in "
                f"{data_root}; name the folder that contains it with --data-root"
            )
        config[section][key] = str(path.absolute())
        identity[section][key] = fingerprints.of(path)
    for section, key in _EXECUTION_KEYS:
        identity[section].pop(key, None)
    return Cell(cells / short_hash([json.dumps(identity, sort_keys=True).encode()]), config)


def _is_name(section: str, key: str, value: str) -> bool:
    """Whether a value that may be a file is a built-in name instead."""
    if (section, key) == ("data", "path"):
        return is_built_in(value)
    return key in ("posterior", "class_map", "groups") and not Path(value).suffix


def run_cell(folder: str, device: str, threads: int) -> str | None:
    """Start or continue a prepared cell in this process; return the error, None if there was none.

    All output goes to the cell's log. If another process still works on the cell, wait for it: it belongs to a sweep
    that was killed and is about to exit.
    """
    cell = Path(folder)
    with locked(cell / _CELL_LOCK), _output_to(cell / _LOG):
        try:
            run = Run(cell)
            train_run(run, run.config, Execution(device=device, threads=threads, quiet=False), resume=True)
        except UnflipError as error:
            print(error)  # noqa: T201 - goes to the log
            return str(error)
        except Exception as error:
            traceback.print_exc()
            return described(error)
    return None


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Append everything that this process and its libraries print to ``log``."""
    with log.open("a", buffering=1, encoding="utf-8") as file:
        _flush()
        before = [(number, os.dup(number)) for number in (1, 2)]
        for number, _ in before:
            os.dup2(file.fileno(), number)
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield
        finally:
            _flush()
            for number, saved in before:
                os.dup2(saved, number)
                os.close(saved)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def result_line(point: Point, cell: Cell) -> dict[str, Any]:
    """Return the line of results.jsonl for a finished cell; see docs/experiments.md."""
    result = cell.run.result
    as_there = ("noise", "seed", "selection", "epochs", "protocol", "test_accuracy")
    figures = ("label_accuracy", "val_accuracy", "quality_auroc", "score_auroc", "seconds", "versions")
    return {
        "grid": point.grid,
        "cell": cell.name,
        "axes": dict(point.axes),
        "data": result["data"],
        "method": result["method"],
        "network": cell.config["network"],
        **{key: result[key] for key in as_there},
        "tests": {name: {top: test[top] for top in ("top1", "top5")} for name, test in result["tests"].items()},
        **{key: result[key] for key in figures if key in result},  # older runs have no score_auroc
    }
