"""Sweep: run every cell of some grids, handle failures, and keep results.jsonl up to date."""

import json
import queue
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from unflip.errors import ConfigError, RunFolderError
from unflip.files import LOCK, OwnedFolder, locked, write_text
from unflip.reproduce.cell import Cell, Keep, find_cell, result_line
from unflip.reproduce.fingerprint import Fingerprints
from unflip.reproduce.grid import Grid, Point

_MARKER = "sweep.json"
_CELLS, _RESULTS, _FINGERPRINTS = "cells", "results.jsonl", "fingerprints.json"
_ATTEMPTS = 2
_WATCH_EVERY = 0.5  # seconds between checks of the running cells
_WRITE_EVERY = 1.0  # seconds between updates of results.jsonl


class Runner(Protocol):
    """Runs cells one after the other, for one job."""

    def __call__(self, folder: Path) -> str | None:
        """Run the prepared cell in ``folder``; return the error, None if there was none."""

    def close(self) -> None:
        """Stop at once, even while another thread waits for a cell."""


class Place(Protocol):
    """Where cells run."""

    jobs: int
    """Suitable number of cells to run at a time."""

    def runner(self, job: int) -> Runner:
        """Return the runner of a job."""

    def close(self) -> None:
        """Release all resources."""


@dataclass
class Progress:
    """The progress of a sweep."""

    cells: Mapping[Cell, Sequence[Point]]
    """Every cell once, with the grid points it belongs to."""
    jobs: int
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
        """Estimate the remaining time from finished cells, preferably of the same method; None if there are none."""
        if not self.seconds:
            return None
        by_method: dict[str, list[float]] = {}
        for cell, seconds in self.seconds.items():
            by_method.setdefault(cell.config["method"], []).append(seconds)
        mean = statistics.mean(self.seconds.values())
        total = 0.0
        for cell in self.cells:
            if cell not in self.seconds and cell not in self.failed:
                whole = statistics.mean(by_method.get(cell.config["method"], [mean]))
                total += whole * (1 - cell.epoch / cell.config["epochs"] if cell in self.running else 1)
        return total / self.jobs


Watch = Callable[[Progress, str | None], None]
"""Called regularly with the progress, and with a message when a cell has finished or failed."""


def plan(grids: Sequence[Grid], out: Path, data_root: Path, fingerprints: Fingerprints) -> dict[Cell, list[Point]]:
    """Resolve all grid points to cells, in order; this finds every error in a grid, and refuses what is in the way."""
    _folder(out).check([_CELLS, _RESULTS, _FINGERPRINTS])
    names = [grid.name for grid in grids]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"grid {twice}: given twice; grids need different names, which identify their results")
    cells: dict[str, tuple[Cell, list[Point]]] = {}
    for point in (point for grid in grids for point in grid.points):
        cell = find_cell(point, out / _CELLS, data_root, fingerprints)
        cells.setdefault(cell.name, (cell, []))[1].append(point)
    for cell, _ in cells.values():
        if not cell.run.is_finished:
            cell.check()
    return dict(cells.values())


def fingerprints_in(out: Path) -> Fingerprints:
    """Return the cached fingerprints of the sweeps in ``out``."""
    return Fingerprints(out / _FINGERPRINTS)


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


def carry_out(
    grids: Sequence[Grid],
    out: Path,
    place: Callable[[], Place],
    *,
    data_root: Path,
    jobs: int | None = None,
    keep: Keep = "all",
    watch: Watch = lambda progress, news: None,
) -> Progress:
    """Run all unfinished cells of the grids and return when each has finished or failed.

    A cell that fails is tried once more, after the others. Ctrl-C and SIGTERM raise KeyboardInterrupt after all
    workers have exited.

    Args:
        grids: the grids to run.
        out: the folder for cells and results.
        place: creates the place where cells run; called only if there is something to run.
        data_root: the folder to which data paths are relative.
        jobs: number of cells to run at a time; by default what suits the place.
        keep: which files of a finished cell to keep.
        watch: called with the progress and with messages.
    """
    fingerprints = fingerprints_in(out)
    cells = plan(grids, out, data_root, fingerprints)
    with ExitStack() as stack:  # whatever can be refused is refused before anything is written
        there = None if all(cell.run.is_finished for cell in cells) else stack.enter_context(closing(place()))
        stack.enter_context(claimed(out))
        fingerprints.save()
        results = _Results(out, [grid.name for grid in grids], cells)
        unfinished = [cell for cell in cells if not cell.run.is_finished]
        progress = Progress(cells, 1)
        for cell in cells:
            if cell not in unfinished:
                cell.tidy(keep)
                progress.seconds[cell] = results.add(cell)
        results.write()
        if unfinished and there is not None:
            try:
                progress.jobs = min(jobs or there.jobs, len(unfinished))
                _Crew(there, progress, unfinished, results, keep, watch).work()
            finally:
                results.write()
        watch(progress, None)
        return progress


class _Results:
    """results.jsonl: one line per finished point of each grid; lines of other grids are kept."""

    def __init__(self, out: Path, ours: Sequence[str], cells: Mapping[Cell, Sequence[Point]]) -> None:
        self._path, self._cells = out / _RESULTS, cells
        self._lines: dict[tuple[str, int], dict[str, Any]] = {}
        self._others = [line for line in self._read() if line["grid"] not in ours]
        self._changed = True

    def add(self, cell: Cell) -> float:
        """Add a finished cell; return how long it took."""
        seconds = 0.0
        for point in self._cells[cell]:
            line = result_line(point, cell)
            self._lines[point.grid, point.position] = line
            seconds = line["seconds"]
        self._changed = True
        return seconds

    def write(self) -> None:
        """Write the file if anything changed."""
        if self._changed:
            ours = [self._lines[key] for key in sorted(self._lines)]
            lines = sorted([*self._others, *ours], key=lambda line: line["grid"])  # stable: keeps each grid's order
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))
            self._changed = False

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


@dataclass(frozen=True)
class _News:
    """A message from a job to the sweep's main thread."""

    cell: Cell
    what: str  # begun, done, failed; or the job itself: broken
    why: str | None = None
    error: Exception | None = None


class _Crew:
    """The jobs of a sweep: one thread each, which passes cells to its runner; the caller's thread records results."""

    def __init__(
        self,
        place: Place,
        progress: Progress,
        unfinished: Sequence[Cell],
        results: _Results,
        keep: Keep,
        watch: Watch,
    ) -> None:
        self._progress, self._results, self._keep, self._watch = progress, results, keep, watch
        self._todo = deque((cell, 1) for cell in unfinished)
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._runners = [place.runner(job) for job in range(progress.jobs)]
        self._threads = [threading.Thread(target=self._job, args=(runner,), daemon=True) for runner in self._runners]

    def work(self) -> None:
        """Run until every cell has finished or failed."""
        with _terminable():
            try:
                for thread in self._threads:
                    thread.start()
                self._process_news()
            finally:
                self._stopping.set()
                for runner, thread in zip(self._runners, self._threads, strict=True):
                    runner.close()
                    while thread.is_alive():  # it may have been about to start a cell
                        thread.join(0.1)
                        runner.close()

    def _process_news(self) -> None:
        progress, watched, written = self._progress, 0.0, time.monotonic()
        while len(progress.seconds) + len(progress.failed) < len(progress.cells):
            try:
                news: _News | None = self._news.get(timeout=_WATCH_EVERY)
            except queue.Empty:
                news = None
            message = self._record(news) if news else None
            now = time.monotonic()
            if message or now - watched >= _WATCH_EVERY:
                self._watch(progress, message)
                watched = now
            if now - written >= _WRITE_EVERY:
                self._results.write()
                written = now

    def _record(self, news: _News) -> str | None:
        progress, cell = self._progress, news.cell
        if news.error is not None:
            raise news.error
        if news.what == "begun":
            progress.running[cell] = time.monotonic()
            return None
        took = time.monotonic() - progress.running.pop(cell)
        if news.what == "done":
            cell.tidy(self._keep)
            progress.seconds[cell] = self._results.add(cell)
        elif news.what == "failed":
            progress.failed[cell] = news.why or ""
        because = f": {news.why}" if news.why else ""
        return f"{news.what} {progress.cells[cell][0]} ({took:.1f} s){because}"

    def _job(self, runner: Runner) -> None:
        while not self._stopping.is_set():
            try:
                cell, attempt = self._todo.popleft()
            except IndexError:
                return
            try:
                self._news.put(_News(cell, "begun"))
                cell.prepare(self._progress.cells[cell])
                why = runner(cell.folder)
                if self._stopping.is_set():
                    return
                if why is None:
                    self._news.put(_News(cell, "done"))
                    continue
                cell.record_failure(why)
                if attempt < _ATTEMPTS:
                    self._todo.append((cell, attempt + 1))
                self._news.put(_News(cell, "failed" if attempt == _ATTEMPTS else "will try again", why))
            except Exception as error:  # not the cell's fault: for example the disk is full or the cluster is gone
                self._news.put(_News(cell, "broken", error=error))
                return


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C; only possible in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
