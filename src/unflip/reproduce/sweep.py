"""Sweeps: run every cell of some grids, on this machine or on a Ray cluster, and keep results.jsonl up to date."""

import json
import os
import statistics
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from joblib import cpu_count
from joblib.externals.loky import ProcessPoolExecutor

from unflip.errors import ConfigError, RunFolderError, described, unknown
from unflip.files import LOCK, Interruption, OwnedFolder, locked, write_text
from unflip.parallel import Cluster, find_device
from unflip.reproduce.cell import Cell, Fingerprints, Keep, find_cell, result_line, run_cell
from unflip.reproduce.grid import Point, read_grid

_PLACES = ("local", "ray")
_KEPT = ("all", "results")
_MARKER = "sweep.json"
_CELLS, _RESULTS, _FINGERPRINTS = "cells", "results.jsonl", "fingerprints.json"
_ATTEMPTS = 2
_WATCH_EVERY = 0.2  # seconds between checks of the running cells


@dataclass
class Progress:
    """The progress of a sweep."""

    cells: Mapping[Cell, Sequence[Point]]
    """Every cell once, with the grid points it belongs to."""
    jobs: int
    """Number of cells that run at a time."""
    seconds: dict[Cell, float] = field(default_factory=dict)
    """Run time of each finished cell."""
    running: dict[Cell, float] = field(default_factory=dict)
    """Start time of each running cell, by the monotonic clock."""
    failed: dict[Cell, str] = field(default_factory=dict)
    """The error of each cell that failed in all attempts."""

    @property
    def left(self) -> int:
        """Number of cells that have not started yet."""
        return len(self.cells) - len(self.seconds) - len(self.running) - len(self.failed)

    def seconds_left(self) -> float | None:
        """Estimate the remaining time by the mean of the finished cells; None if there are none."""
        if not self.seconds:
            return None
        return statistics.mean(self.seconds.values()) * (self.left + len(self.running)) / self.jobs


Watch = Callable[[Progress, str | None], None]
"""Called regularly with the progress, and with a message when a cell has finished or failed."""


def sweep(
    grids: Sequence[str],
    out: str | Path,
    *,
    jobs: int | None = None,
    threads: int = 1,
    backend: str = "local",
    address: str | None = None,
    data_root: Path = Path(),
    keep: str = "all",
    device: str = "auto",
    watch: Watch = lambda progress, news: None,
) -> Progress:
    """Run every cell of some grids that is not finished; results go to ``results.jsonl`` in ``out``.

    A cell that fails is tried once more, after the others. Ctrl-C and SIGTERM raise KeyboardInterrupt after all
    workers have exited; the same call then continues.

    Args:
        grids: .toml files, or names of ``unflip list grids``.
        out: the folder; an earlier sweep there is continued.
        jobs: cells to run at a time; by default one per GPU, else one per core.
        threads: processor threads of a cell.
        on: ``local`` or ``ray``.
        address: of the Ray cluster; by default one is started on this machine.
        data_root: the folder to which data paths in the grids are relative.
        keep: which files of a finished cell to keep: ``all`` (but checkpoints) or ``results``.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        watch: called with the progress and with messages.

    Returns:
        The progress at the end: which cells finished and which failed.
    """
    if keep not in _KEPT:
        raise ConfigError(unknown("--keep", keep, _KEPT))
    if backend not in _PLACES:
        raise ConfigError(unknown("--backend", backend, _PLACES))
    if address is not None and backend != "ray":
        raise ConfigError(f"--address {address} is that of a Ray cluster; add --backend ray")
    if backend == "local":
        find_device(device)
    kept: Keep = "all" if keep == "all" else "results"
    out = Path(out)
    fingerprints = Fingerprints(out / _FINGERPRINTS)
    cells = plan(grids, out, data_root=data_root, fingerprints=fingerprints)
    with ExitStack() as stack:  # whatever can be refused is refused before anything is written
        place: Executor | None = None
        if not all(cell.run.is_finished for cell in cells):
            place = Ray(device, threads, address) if backend == "ray" else Local(device, threads)
            stack.enter_context(closing(place))
        stack.enter_context(claimed(out))
        fingerprints.save()
        results = _Results(out, cells)
        progress = Progress(cells, 1)
        unfinished = [cell for cell in cells if not cell.run.is_finished]
        for cell in cells:
            if cell not in unfinished:
                cell.tidy(kept)
                progress.seconds[cell] = results.add(cell)
        results.write()
        if unfinished and place is not None:
            progress.jobs = min(jobs or place.jobs, len(unfinished))
            _run_cells(unfinished, place, progress, results, kept, watch)
        watch(progress, None)
        return progress


def plan(
    grids: Sequence[str], out: str | Path, *, data_root: Path = Path(), fingerprints: Fingerprints | None = None
) -> dict[Cell, list[Point]]:
    """Resolve all grid points to cells, in order; nothing is run or written.

    This finds every error in a grid, and refuses an ``out`` with somebody else's files in the way.

    Args:
        grids: .toml files, or names of ``unflip list grids``.
        out: the folder of the sweep.
        data_root: the folder to which data paths in the grids are relative.
        fingerprints: of data files; by default those cached in ``out``.
    """
    out = Path(out)
    read = [read_grid(name) for name in grids]
    _folder(out).check([_CELLS, _RESULTS, _FINGERPRINTS])
    names = [grid.name for grid in read]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"grid {twice}: given twice; grids need different names, which identify their results")
    fingerprints = fingerprints or Fingerprints(out / _FINGERPRINTS)
    cells: dict[Cell, list[Point]] = {}
    for point in (point for grid in read for point in grid.points):
        cells.setdefault(find_cell(point, out / _CELLS, data_root, fingerprints), []).append(point)
    for cell in cells:
        if not cell.run.is_finished:
            cell.check()
    return cells


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Lock ``out`` for this sweep, and mark it as a folder of sweeps."""
    _folder(out).begin()
    with locked(out / LOCK, busy="another sweep is running here; let it finish, or choose another --out"):
        for name in (_CELLS, _RESULTS, _FINGERPRINTS):
            _folder(out).own(name)
        yield


def _folder(out: Path) -> OwnedFolder:
    return OwnedFolder(out, _MARKER, [_CELLS])


def _run_cells(
    cells: Sequence[Cell], place: "Executor", progress: Progress, results: "_Results", keep: Keep, watch: Watch
) -> None:
    """Run cells, ``progress.jobs`` at a time, until each has finished or failed twice."""
    waiting = deque((cell, 1) for cell in cells)
    free = list(range(progress.jobs))
    under_way: dict[Future[str | None], tuple[Cell, int, int]] = {}
    with Interruption() as stop, warnings.catch_warnings():
        # loky replaces a worker whose memory has grown, and warns where the next cell waits for it
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        while waiting or under_way:
            while waiting and free:
                cell, attempt = waiting.popleft()
                cell.prepare()
                progress.running[cell] = time.monotonic()
                slot = free.pop(0)
                under_way[place.submit(slot, cell.folder)] = cell, attempt, slot
            done, _ = wait(under_way, _WATCH_EVERY, FIRST_COMPLETED)
            if stop.signal is not None:
                raise KeyboardInterrupt
            for future in done:
                cell, attempt, slot = under_way.pop(future)
                free.append(slot)
                took = time.monotonic() - progress.running.pop(cell)
                error = future.exception()  # of the worker process; run_cell returns those of a run
                why = described(error) if error else future.result()
                news = "done"
                if why is None:
                    cell.tidy(keep)
                    progress.seconds[cell] = results.add(cell)
                    results.write()
                else:
                    cell.log_failure(why)
                    if attempt < _ATTEMPTS:
                        news = "will try again"
                        waiting.append((cell, attempt + 1))
                    else:
                        news = "failed"
                        progress.failed[cell] = why
                because = f": {why}" if why else ""
                watch(progress, f"{news} {progress.cells[cell][0]} ({took:.1f} s){because}")
            watch(progress, None)


class Executor(Protocol):
    """Where cells run: a number of slots, each of which runs one cell at a time."""

    jobs: int
    """Suitable number of slots."""

    def submit(self, slot: int, folder: Path) -> "Future[str | None]":
        """Start the prepared cell in ``folder``; the future returns its error, None if there was none."""

    def close(self) -> None:
        """Stop what is running, and release all resources."""


class Local:
    """This machine: one worker process per slot, started by joblib's loky when it is needed.

    Each slot has an executor of its own. So a worker that dies takes no other cell with it, and each slot can have
    its own GPU.
    """

    def __init__(self, device: str, threads: int) -> None:
        self._device, self._threads = device, threads
        self._gpus = _gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()) if device != "cpu" else []
        self.jobs = len(self._gpus) or max(1, cpu_count() // threads)
        self._executors: dict[int, Any] = {}

    def submit(self, slot: int, folder: Path) -> "Future[str | None]":
        """Start a cell in the process of its slot; in a new one if there is none, or if it died."""
        order = (run_cell, str(folder), self._device, self._threads)
        try:
            return self._executor(slot).submit(*order)  # type: ignore[no-any-return]
        except BrokenExecutor:
            del self._executors[slot]
            return self._executor(slot).submit(*order)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End all processes at once; files are written atomically, so that is safe at any time."""
        for executor in self._executors.values():
            executor.shutdown(kill_workers=True)

    def _executor(self, slot: int) -> Any:
        if slot not in self._executors:
            environment = {"OMP_NUM_THREADS": str(self._threads)}
            if self._gpus:
                environment["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
            self._executors[slot] = ProcessPoolExecutor(
                1, initializer=_follow, initargs=(os.getpid(),), env=environment
            )
        return self._executors[slot]


class Ray:
    """A Ray cluster: the one at ``address``, or one started on this machine for the duration of the sweep.

    All machines must have the folder of the sweep and the data at the same paths.
    """

    def __init__(self, device: str, threads: int, address: str | None) -> None:
        self._cluster = Cluster(address, device, threads)
        self._device, self._threads = device, threads
        self.jobs = self._cluster.jobs
        self._task = self._cluster.task(run_cell, retries=0)  # the sweep itself tries failed cells again
        self._started: dict[int, Any] = {}

    def submit(self, slot: int, folder: Path) -> "Future[str | None]":
        """Start a cell as a task."""
        self._started[slot] = self._task.remote(str(folder), self._device, self._threads)
        return self._started[slot].future()  # type: ignore[no-any-return]

    def close(self) -> None:
        """End running tasks and disconnect; a cluster that was started for the sweep is shut down."""
        for task in self._started.values():
            self._cluster.ray.cancel(task, force=True)
        self._cluster.close()


def _follow(sweep: int) -> None:
    """In a worker: leave Ctrl-C to the process of the sweep, and exit when that process is gone."""
    if hasattr(os, "setsid"):
        os.setsid()

    def exit_with_it() -> None:
        while os.getppid() == sweep:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=exit_with_it, daemon=True).start()


def _gpus(visible: str | None, count: int) -> list[str]:
    """Return the GPUs as named in CUDA_VISIBLE_DEVICES.

    >>> _gpus(None, 2), _gpus("4,5", 2), _gpus("", 0)
    (['0', '1'], ['4', '5'], [])
    """
    return visible.split(",")[:count] if visible else [str(i) for i in range(count)]


class _Results:
    """results.jsonl: one line per finished point of each grid; lines of other grids are kept."""

    def __init__(self, out: Path, cells: Mapping[Cell, Sequence[Point]]) -> None:
        self._path, self._cells = out / _RESULTS, cells
        self._lines: dict[tuple[str, int], dict[str, Any]] = {}
        ours = {point.grid for points in cells.values() for point in points}
        self._others = [line for line in self._read() if line["grid"] not in ours]

    def add(self, cell: Cell) -> float:
        """Add a finished cell; return how long it took."""
        for point in self._cells[cell]:
            self._lines[point.grid, point.position] = line = result_line(point, cell)
        return float(line["seconds"])

    def write(self) -> None:
        """Write the file."""
        ours = [self._lines[key] for key in sorted(self._lines)]
        lines = sorted([*self._others, *ours], key=lambda line: line["grid"])  # stable: keeps each grid's order
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))

    def _read(self) -> list[dict[str, Any]]:
        try:
            lines = [json.loads(line) for line in self._path.read_text("utf-8").splitlines()]
            if not all(isinstance(line, dict) and "grid" in line for line in lines):
                raise ValueError("a line names no grid")
            return lines
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self._path}: not a results file ({error}); remove it and sweep again") from error
