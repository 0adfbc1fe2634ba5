"""Progress: a bar on a terminal or in a notebook, a line now and then elsewhere, nothing if quiet."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Protocol, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_REDRAW_EVERY = 0.1  # seconds between updates of the bar
_LINE_EVERY = 30.0  # seconds between lines about a long job
_MANY = 5000  # from this number of items on, progress is shown
_Item = TypeVar("_Item")


class Track(Protocol):
    """Yields items unchanged, and may show how many of ``total`` are done."""

    def __call__(self, items: Iterable[_Item], title: str, total: int) -> Iterable[_Item]:
        """Yield the items."""


def untracked(items: Iterable[_Item], title: str, total: int) -> Iterable[_Item]:
    """Pass items through."""
    return items


class Reporter:
    """Shows nothing; subclasses show progress."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def start(self, title: str, total: int, first: int) -> None:
        """Start with item or epoch ``first`` of ``total``."""
        self._title, self._total, self._before = title, total, first - 1
        self._began = self._printed = time.monotonic()

    def step(self, progress: float) -> None:
        """Report that ``progress`` items or epochs are done."""

    def done(self, count: int, note: str) -> None:
        """Report that ``count`` items or epochs are done, with a ``note`` about them."""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Report an epoch's metrics."""
        self.done(metrics["epoch"], f"epoch {metrics['epoch']}/{self._total} {summary(metrics)}")

    def track(self, items: Iterable[_Item], title: str, total: int) -> Iterator[_Item]:
        """Yield items unchanged; if there are many, report how many of ``total`` are done."""
        if total < _MANY:
            yield from items
            return
        with self:
            self.start(title, total, 1)
            for done, item in enumerate(items, 1):
                yield item
                self.step(done)


class Lines(Reporter):
    """A line at most twice a minute, for logs."""

    def done(self, count: int, note: str) -> None:
        """Print a line with the time left, at most twice a minute."""
        now = time.monotonic()
        if now - self._printed > _LINE_EVERY:
            self._printed = now
            left = (self._total - count) * (now - self._began) / max(count - self._before, 1)
            print(f"{self._title} {note}, {duration(left)} left", flush=True)  # noqa: T201


class Bar(Reporter):
    """A progress bar with the last epoch's metrics."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=sys.stdout),
        )
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def start(self, title: str, total: int, first: int) -> None:
        """Draw the bar."""
        super().start(title, total, first)
        self._task = self._bar.add_task(title, total=total, completed=first - 1, note="")

    def step(self, progress: float) -> None:
        """Move the bar, at most ten times per second."""
        now = time.monotonic()
        if now - self._drawn > _REDRAW_EVERY:
            self._drawn = now
            self._bar.update(self._task, completed=progress)

    def done(self, count: int, note: str) -> None:
        """Move the bar, and show the note."""
        self._bar.update(self._task, completed=count, note=note)


def summary(metrics: Mapping[str, Any]) -> str:
    """Return the most important metrics of an epoch."""
    parts = [f"loss {sum(metrics['loss'].values()):.3f}"]
    for key, name in (("val_accuracy", "val"), ("test_accuracy", "test"), ("label_accuracy", "labels")):
        if metrics.get(key) is not None:
            parts.append(f"{name} {metrics[key]:.1%}")
    if metrics.get("changed"):
        parts.append(f"changed {metrics['changed']}")
    return "  ".join(parts)


def is_first_process() -> bool:
    """Whether this is the process that prints; works before a process group exists."""
    return int(os.environ.get("RANK", "0")) == 0


def make_reporter(quiet: bool | None) -> Reporter:
    """Return the reporter that suits standard output, or a notebook; only the first process shows anything.

    If ``quiet`` is None, notebooks have progress, and all else is quiet. A bar in a notebook needs ipywidgets.
    """
    in_notebook = Console().is_jupyter
    if not is_first_process() or (not in_notebook if quiet is None else quiet):
        return Reporter()
    has_bar = find_spec("ipywidgets") is not None if in_notebook else sys.stdout.isatty()
    return Bar() if has_bar else Lines()


def duration(seconds: float) -> str:
    """Format a duration with about two digits: `0.12 s`, `45 s`, `12 min`, `3.5 h`, `2.1 days`."""
    for size, unit, limit in ((1, "s", 120), (60, "min", 120), (3600, "h", 48)):
        if seconds < size * limit:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.1f} days"
