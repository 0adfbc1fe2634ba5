"""Sweeps: run every cell of some grids, on this machine or on a Ray cluster, and keep results.jsonl up to date."""

import json
import logging
import os
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from joblib import cpu_count
from joblib.externals.loky import ProcessPoolExecutor

from unflip.compute import find_device
from unflip.errors import ConfigError, MissingExtraError, described, unknown
from unflip.files import LOCK, Interruption, OwnedFolder, locked, write_text
from unflip.reproduce.grid import Cell, Point, find_cell, read_grid, result_line, run_cell
from unflip.reproduce.tables import read_lines

_BACKENDS = ("local", "ray")
_KEEP = ("all", "results")
_CELLS, _RESULTS = "cells", "results.jsonl"
_ATTEMPTS = 2
_POLL_SECONDS = 0.2
_PATIENCE = 10.0  # seconds to wait for a cluster


@dataclass
class Progress:
    """The progress of a sweep."""

    cells: Mapping[Cell, Sequence[Point]]
    """Every cell, with the grid points it belongs to."""
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


Callback = Callable[[Progress, str | None], None]
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
    callback: Callback = lambda progress, message: None,
) -> Progress:
    """Run all unfinished cells of some grids and write their results to ``results.jsonl`` in ``out``.

    A failed cell is tried once more, after the others. Ctrl-C and SIGTERM raise KeyboardInterrupt after all workers
    have exited; the same call then resumes the sweep.

    Args:
        grids: .toml files, or names of ``unflip list grids``.
        out: output folder; an earlier sweep there is resumed.
        jobs: number of cells to run at a time; by default one per GPU, else one per core.
        threads: CPU threads per cell.
        backend: ``local`` or ``ray``.
        address: address of a Ray cluster, which implies ``ray``; by default one is started on this machine.
        data_root: folder to which data paths in the grids are relative.
        keep: files of finished cells to keep: ``all`` (except checkpoints) or ``results``.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        callback: called with the progress and with messages.

    Returns:
        The final progress: which cells finished and which failed.
    """
    for option, value, choices in (("--keep", keep, _KEEP), ("--backend", backend, _BACKENDS)):
        if value not in choices:
            raise ConfigError(unknown(option, value, choices))
    out = Path(out)
    cells = plan(grids, out, data_root=data_root)
    unfinished = [cell for cell in cells if not cell.run.is_finished]
    use_ray = unfinished and (backend == "ray" or address)
    executor = Ray(device, threads, address) if use_ray else Local(device, threads)
    _folder(out).begin()
    busy = "another sweep is running here; let it finish, or choose another --out"
    with closing(executor), locked(out / LOCK, busy=busy):
        for name in (_CELLS, _RESULTS):
            _folder(out).own(name)
        progress = Progress(cells, max(1, min(jobs or executor.jobs, len(unfinished))))
        results = _Results(out, progress, keep)
        results.add([cell for cell in cells if cell not in unfinished])
        _run_cells(unfinished, executor, progress, results, callback)
        return progress


def plan(grids: Sequence[str], out: str | Path, *, data_root: Path = Path()) -> dict[Cell, list[Point]]:
    """Resolve all grid points to cells, in order; nothing is run or written.

    Raises on any error in a grid, and if ``out`` contains files that unflip did not write.

    Args:
        grids: .toml files, or names of ``unflip list grids``.
        out: output folder of the sweep.
        data_root: folder to which data paths in the grids are relative.
    """
    out = Path(out)
    _folder(out).check([_CELLS, _RESULTS])
    cells: dict[Cell, list[Point]] = {}
    points = [point for name in grids for point in read_grid(name)]
    if len({(point.grid, point.position) for point in points}) < len(points):
        raise ConfigError(f"grids {', '.join(grids)}: names must differ")
    for point in points:
        cells.setdefault(find_cell(point, out / _CELLS, data_root), []).append(point)
    for cell in cells:
        if not cell.run.is_finished:
            cell.check()
    return cells


def _folder(out: Path) -> OwnedFolder:
    return OwnedFolder(out, "sweep.json", [_CELLS])


def _run_cells(
    cells: Sequence[Cell], executor: "Local | Ray", progress: Progress, results: "_Results", callback: Callback
) -> None:
    """Run cells, ``progress.jobs`` at a time, until each has finished or failed in all attempts."""
    waiting = deque((cell, 1) for cell in cells)
    free_slots = list(range(progress.jobs))
    running: dict[Future[str | None], tuple[Cell, int, int]] = {}
    with Interruption() as stop, warnings.catch_warnings():
        # loky replaces a worker whose memory has grown, and warns if a cell is waiting for it
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        while waiting or running:
            while waiting and free_slots:
                cell, attempt = waiting.popleft()
                cell.prepare()
                progress.running[cell] = time.monotonic()
                slot = free_slots.pop(0)
                running[executor.submit(slot, cell.folder)] = cell, attempt, slot
            done, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
            if stop.signal is not None:
                raise KeyboardInterrupt
            for future in done:
                cell, attempt, slot = running.pop(future)
                free_slots.append(slot)
                seconds = time.monotonic() - progress.running.pop(cell)
                exception = future.exception()  # of the worker process; run_cell returns errors of a run
                error = described(exception) if exception else future.result()
                title = f"{progress.cells[cell][0]} ({seconds:.1f} s)"
                if error is None:
                    results.add([cell])
                    callback(progress, f"done {title}")
                    continue
                with cell.log.open("a", encoding="utf-8") as log:
                    log.write(f"failed: {error}\n")
                if attempt < _ATTEMPTS:
                    waiting.append((cell, attempt + 1))
                else:
                    progress.failed[cell] = error
                callback(progress, f"{'failed' if cell in progress.failed else 'will retry'} {title}: {error}")
            callback(progress, None)


class Local:
    """This machine: one worker process per slot, started by joblib's loky when it is needed.

    Each slot has its own executor, so that a worker that dies does not affect other cells, and its own GPU.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        threads: CPU threads per cell.

    Attributes:
        jobs: default number of slots: one per GPU, else one per core.
    """

    def __init__(self, device: str, threads: int) -> None:
        find_device(device)
        self._device, self._threads = device, threads
        count = 0 if device == "cpu" else torch.cuda.device_count()
        self._gpus = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), count)
        self.jobs = len(self._gpus) or max(1, cpu_count() // threads)
        self._executors: dict[int, Any] = {}

    def submit(self, slot: int, folder: Path) -> "Future[str | None]":
        """Start the prepared cell in ``folder``; the future returns its error, None if there was none."""
        if slot not in self._executors:
            env = {"OMP_NUM_THREADS": str(self._threads)}
            if self._gpus:
                env["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
            self._executors[slot] = ProcessPoolExecutor(1, initializer=_follow, initargs=(os.getpid(),), env=env)
        try:
            arguments = (str(folder), self._device, self._threads)
            return self._executors[slot].submit(run_cell, *arguments)  # type: ignore[no-any-return]
        except BrokenExecutor:  # its process has died
            del self._executors[slot]
            return self.submit(slot, folder)

    def close(self) -> None:
        """Kill all workers; files are written atomically, so that is safe at any time."""
        for executor in self._executors.values():
            executor.shutdown(kill_workers=True)


class Ray:
    """A Ray cluster: the one at ``address``, or one started on this machine for the duration of the sweep.

    All machines must have the folder of the sweep and the data at the same paths. Same interface as :class:`Local`.
    """

    def __init__(self, device: str, threads: int, address: str | None) -> None:
        if address is not None:
            _check_answers(address)
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "ray") from error
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_answer(address, error) from error
        self._ray: Any = ray
        resources = ray.cluster_resources()
        if threads > resources.get("CPU", 0):
            ray.shutdown()
            raise ConfigError(f"--threads {threads}: the Ray cluster has only {int(resources.get('CPU', 0))} CPUs")
        gpus = int(resources.get("GPU", 0)) if device != "cpu" else 0
        self.jobs = gpus or int(resources["CPU"]) // threads
        # the sweep itself retries failed cells
        self._task = self._ray.remote(num_cpus=threads, num_gpus=min(1, gpus), max_retries=0)(run_cell)
        self._device, self._threads = device, threads
        self._started: dict[int, Any] = {}

    def submit(self, slot: int, folder: Path) -> "Future[str | None]":
        """Start the prepared cell in ``folder`` as a task."""
        self._started[slot] = self._task.remote(str(folder), self._device, self._threads)
        return self._started[slot].future()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Cancel running tasks and disconnect; a cluster that was started for the sweep is shut down."""
        for task in self._started.values():
            self._ray.cancel(task, force=True)
        self._ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise ConfigError if nothing listens at HOST:PORT or ray://HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return  # for example auto
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _no_answer(address, error) from error


def _no_answer(address: str | None, why: Exception) -> ConfigError:
    return ConfigError(f"--address {address}: no Ray cluster answers there ({why}); start one with `ray start --head`")


def _follow(parent: int) -> None:
    """In a worker: ignore Ctrl-C, which the parent handles, and exit when the parent is gone."""
    if hasattr(os, "setsid"):
        os.setsid()

    def exit_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def visible_gpus(visible: str | None, count: int) -> list[str]:
    """Return the GPUs as named in CUDA_VISIBLE_DEVICES.

    >>> visible_gpus(None, 2), visible_gpus("4,5", 2), visible_gpus("", 0)
    (['0', '1'], ['4', '5'], [])
    """
    return visible.split(",")[:count] if visible else [str(i) for i in range(count)]


class _Results:
    """results.jsonl: one line per finished point of each grid; lines of other grids are kept."""

    def __init__(self, out: Path, progress: Progress, keep: str) -> None:
        self._path, self._progress, self._keep = out / _RESULTS, progress, keep
        grids = {point.grid for points in progress.cells.values() for point in points}
        before = read_lines(self._path) if self._path.exists() else []
        others = [line for line in before if line.get("grid") not in grids]
        self._lines = {(str(line.get("grid")), place): line for place, line in enumerate(others)}

    def add(self, cells: Sequence[Cell]) -> None:
        """Add finished cells, remove files that are not needed any more, and write the file."""
        for cell in cells:
            cell.tidy(self._keep)
            for point in self._progress.cells[cell]:
                self._lines[point.grid, point.position] = line = result_line(point, cell)
                self._progress.seconds[cell] = float(line["seconds"])
        write_text(self._path, "".join(json.dumps(self._lines[key]) + "\n" for key in sorted(self._lines)))
