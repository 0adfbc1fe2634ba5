"""Sweep: carry out every cell of some grids, survive what happens to them, and keep results.jsonl up to date."""

import json
import queue
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from unflip.errors import ConfigError, RunFolderError
from unflip.experiments.cell import Cell, Keep, find_cell, result_line
from unflip.experiments.fingerprint import Fingerprints
from unflip.experiments.grid import Grid, Point
from unflip.files import write_text
from unflip.lock import locked

_ATTEMPTS = 2
_LOOK_EVERY = 0.5  # seconds between two looks at the running cells
_WRITE_EVERY = 1.0  # seconds between two versions of results.jsonl


class Runner(Protocol):
    """Runs cells one after the other, for one job."""

    def __call__(self, folder: Path) -> str | None:
        """Run the prepared cell in ``folder`` to its end; return what went wrong."""

    def close(self) -> None:
        """End at once, even while another thread waits for a cell."""


class Place(Protocol):
    """Where cells run."""

    jobs: int
    """How many cells at a time suit it."""

    def runner(self, job: int) -> Runner:
        """Return a runner for each job."""

    def close(self) -> None:
        """Leave."""


@dataclass
class Progress:
    """How far a sweep is."""

    cells: Mapping[Cell, Sequence[Point]]
    """Every cell once, with the points of the grids in which it stands."""
    jobs: int
    seconds: dict[Cell, float] = field(default_factory=dict)
    """Of the cells that are done."""
    running: dict[Cell, float] = field(default_factory=dict)
    """Since when, by the monotonic clock."""
    failed: dict[Cell, str] = field(default_factory=dict)
    """Why, after all attempts."""

    @property
    def left(self) -> int:
        """How many cells are still to begin."""
        return len(self.cells) - len(self.seconds) - len(self.running) - len(self.failed)

    def seconds_left(self) -> float | None:
        """Estimate from the cells that are done, those of the same method first; None while there is none."""
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
"""Called with the progress every now and then, and with a line of news when a cell is done or failed."""


def plan(grids: Sequence[Grid], out: Path, data_root: Path, fingerprints: Fingerprints) -> dict[Cell, list[Point]]:
    """Resolve all points of the grids to cells, in their order; everything a grid can have wrong shows here."""
    names = [grid.name for grid in grids]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"grid {twice}: named twice; results are told apart by the grid's name")
    cells: dict[str, tuple[Cell, list[Point]]] = {}
    for point in (point for grid in grids for point in grid.points):
        cell = find_cell(point, out / "cells", data_root, fingerprints)
        cells.setdefault(cell.name, (cell, []))[1].append(point)
    return dict(cells.values())


def fingerprints_in(out: Path) -> Fingerprints:
    """Return the fingerprints that sweeps in ``out`` remember."""
    return Fingerprints(out / "fingerprints.json")


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Have ``out`` for this sweep alone."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write to {out}: {error.strerror}") from error
    with locked(out / "lock", busy="another sweep is at work here; let it finish, or choose another --out"):
        yield


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
    """Run what is not finished of the grids, at ``place``; results go to ``out``. Ends when every cell had its chance.

    A cell that fails is tried once more, after the others. Ctrl-C and SIGTERM raise KeyboardInterrupt, when all
    workers are gone.
    """
    with claimed(out):
        fingerprints = fingerprints_in(out)
        cells = plan(grids, out, data_root, fingerprints)
        fingerprints.save()
        results = _Results(out, [grid.name for grid in grids], cells)
        unfinished = [cell for cell in cells if not cell.run.is_finished]
        progress = Progress(cells, 1)
        for cell in cells:
            if cell not in unfinished:
                cell.tidy(keep)
                progress.seconds[cell] = results.add(cell)
        results.write()
        if unfinished:
            there = place()
            try:
                progress.jobs = min(jobs or there.jobs, len(unfinished))
                _Crew(there, progress, unfinished, results, keep, watch).work()
            finally:
                there.close()
                results.write()
        watch(progress, None)
        return progress


class _Results:
    """results.jsonl: a line for each finished point of each grid; those of grids that are not ours stay."""

    def __init__(self, out: Path, ours: Sequence[str], cells: Mapping[Cell, Sequence[Point]]) -> None:
        self._path, self._cells = out / "results.jsonl", cells
        self._lines: dict[tuple[str, int], dict[str, Any]] = {}
        self._others = [line for line in self._read() if line["grid"] not in ours]
        self._changed = True

    def add(self, cell: Cell) -> float:
        """Take a finished cell in; return how long it took."""
        seconds = 0.0
        for point in self._cells[cell]:
            line = result_line(point, cell)
            self._lines[point.grid, point.position] = line
            seconds = line["seconds"]
        self._changed = True
        return seconds

    def write(self) -> None:
        """Write the file if there is anything new."""
        if self._changed:
            ours = [self._lines[key] for key in sorted(self._lines)]
            lines = sorted([*self._others, *ours], key=lambda line: line["grid"])  # stable: a grid's order stays
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))
            self._changed = False

    def _read(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in self._path.read_text("utf-8").splitlines()]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self._path}: not a file of results ({error}); remove it and sweep again") from error


@dataclass(frozen=True)
class _News:
    """What a job tells the sweep's own thread."""

    cell: Cell
    what: str  # begun, done, failed; or the job itself: broken
    why: str | None = None
    error: Exception | None = None


class _Crew:
    """The jobs of a sweep: a thread each, that hands cells to its runner; one thread, the caller's, keeps the books."""

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
        """Go on until every cell had its chance."""
        with _terminable():
            try:
                for thread in self._threads:
                    thread.start()
                self._keep_books()
            finally:
                self._stopping.set()
                for runner, thread in zip(self._runners, self._threads, strict=True):
                    runner.close()
                    while thread.is_alive():  # it may have been about to begin a cell
                        thread.join(0.1)
                        runner.close()

    def _keep_books(self) -> None:
        progress, looked, written = self._progress, 0.0, time.monotonic()
        while len(progress.seconds) + len(progress.failed) < len(progress.cells):
            try:
                news: _News | None = self._news.get(timeout=_LOOK_EVERY)
            except queue.Empty:
                news = None
            told = self._record(news) if news else None
            now = time.monotonic()
            if told or now - looked >= _LOOK_EVERY:
                self._watch(progress, told)
                looked = now
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
            except Exception as error:  # not the cell's fault: the disk is full, the cluster is gone
                self._news.put(_News(cell, "broken", error=error))
                return


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does; only a program's first thread can."""
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
