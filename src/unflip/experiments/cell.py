"""A cell: one run of a grid, named by the hash of what it does; its folder is the run's folder, and its state."""

import contextlib
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from unflip.data.loader import is_embedded
from unflip.errors import InputError, RunFolderError, UnflipError
from unflip.experiments.fingerprint import Fingerprints, short_hash
from unflip.experiments.grid import Point
from unflip.files import write_json
from unflip.lock import locked
from unflip.runs import layout
from unflip.runs.config import Tree
from unflip.runs.folder import Run
from unflip.runs.options import Execution
from unflip.training.run import train_run

Keep = Literal["all", "results"]

_FILES = (
    ("data", "path"),
    ("data", "labels"),
    ("data", "reviewed"),
    ("data", "groups"),
    ("webvision", "imagenet"),
    ("noise", "posterior"),
    ("noise", "class_map"),
    ("noise", "matrix"),
)  # keys of the configuration whose values may be files
_MEANS = (
    ("data", "workers"),
    ("data", "map_above_mb"),
)  # keys that say how to do it, and change nothing of the outcome
_RESULTS = {
    "cell.json", "failures.json", "lock", "log.txt", layout.MARKER, layout.CONFIG, layout.METRICS, layout.RESULT
}  # fmt: skip
_TOLD = 20  # lines of its log that a failure keeps


@dataclass(frozen=True)
class Cell:
    """A run to be done, or done."""

    folder: Path
    config: Tree = field(compare=False)
    """Resolved, with absolute paths."""

    @property
    def name(self) -> str:
        """The hash of what the cell does."""
        return self.folder.name

    @property
    def run(self) -> Run:
        """The cell's folder as a run."""
        return Run(self.folder)

    @property
    def log(self) -> Path:
        """What all attempts said."""
        return self.folder / "log.txt"

    @property
    def epoch(self) -> int:
        """The last epoch that is done, 0 before."""
        try:
            return len(self.run.metrics)
        except RunFolderError:
            return 0

    def prepare(self, points: Sequence[Point]) -> None:
        """Write down what is to be done, and in which points of which grids it stands.

        The configuration is written even where a run began, since the data may have moved meanwhile.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot write to {self.folder}: {error.strerror}") from error
        stands = [{"grid": point.grid, "axes": dict(point.axes)} for point in points]
        write_json(self.folder / "cell.json", {"cell": self.name, "points": stands, "config": self.config})
        self.run.write_config(tomli_w.dumps(self.config))

    def record_failure(self, reason: str) -> None:
        """Add to the cell's failures, with the end of the log."""
        path = self.folder / "failures.json"
        try:
            failures = json.loads(path.read_text("utf-8"))["failures"]
        except (OSError, ValueError, KeyError):
            failures = []
        said = self.log.read_text("utf-8", errors="replace").splitlines() if self.log.exists() else []
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(path, {"failures": [*failures, {"time": when, "reason": reason, "log": said[-_TOLD:]}]})

    def tidy(self, keep: Keep) -> None:
        """Remove what a finished cell needs no more: checkpoints, what a kill left half written, what is not kept."""
        for path in self.folder.iterdir():
            if (
                path.name == layout.CHECKPOINTS
                or path.name.startswith(".")
                or (keep == "results" and path.name not in _RESULTS)
            ):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)


def find_cell(point: Point, cells: Path, data_root: Path, fingerprints: Fingerprints) -> Cell:
    """Resolve a point of a grid to its cell; two points that do the same are the same cell.

    The hash is of the whole configuration, with fingerprints in place of paths. Device, threads and folders are no
    part of a configuration, and so not of the hash.
    """
    config = point.configure().tree()
    identity: Tree = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for section, key in _FILES:
        value = config.get(section, {}).get(key)
        if value is None or _is_name(section, key, value):
            continue
        path = data_root / value
        if not path.exists():
            raise InputError(
                f"grid {point.grid}, {point.origin(section, key)}: {section}.{key} {value} is not in "
                f"{data_root}; name the folder it is in with --data-root"
            )
        config[section][key] = str(path.absolute())
        identity[section][key] = fingerprints.of(path)
    for section, key in _MEANS:
        identity[section].pop(key, None)
    return Cell(cells / short_hash([json.dumps(identity, sort_keys=True).encode()]), config)


def _is_name(section: str, key: str, value: str) -> bool:
    """Whether a value that may be a file is a name instead."""
    if (section, key) == ("data", "path"):
        return is_embedded(value)
    return key in ("posterior", "class_map", "groups") and not Path(value).suffix


def run_cell(folder: str, device: str, threads: int) -> str | None:
    """Begin or continue a prepared cell in this process; return what went wrong, None if nothing did.

    What is said goes to the cell's log. Another process that still works on the cell is waited for: it belongs to a
    sweep that was killed, and is about to end.
    """
    cell = Path(folder)
    with locked(cell / "lock"), _saying_to(cell / "log.txt"):
        try:
            run = Run(cell)
            train_run(run, run.config, Execution(device=device, threads=threads, quiet=False), resume=True)
        except UnflipError as error:
            print(error)  # noqa: T201 - into the log
            return str(error)
        except Exception as error:
            traceback.print_exc()
            return " ".join(f"{type(error).__name__}: {error}".split())
    return None


@contextlib.contextmanager
def _saying_to(log: Path) -> Iterator[None]:
    """Send what this process and the libraries in it print to the end of ``log``."""
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
    """Return what results.jsonl says of a finished cell; documented in docs/experiments.md."""
    result = cell.run.result
    as_there = ("noise", "seed", "selection", "epochs", "protocol", "test_accuracy")
    figures = ("label_accuracy", "val_accuracy", "quality_auroc", "seconds", "versions")
    return {
        "grid": point.grid,
        "cell": cell.name,
        "axes": dict(point.axes),
        "data": result["data"],
        "method": result["method"],
        "network": cell.config["network"],
        **{key: result[key] for key in as_there},
        "tests": {name: {top: test[top] for top in ("top1", "top5")} for name, test in result["tests"].items()},
        **{key: result[key] for key in figures},
    }
