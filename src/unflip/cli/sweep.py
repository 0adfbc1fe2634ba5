"""``unflip sweep``: run grids, and show how far they are."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unflip.errors import ConfigError, unknown
from unflip.experiments.cell import Cell, Keep
from unflip.experiments.grid import Grid, read_grid
from unflip.experiments.local import Local
from unflip.experiments.ray import Ray
from unflip.experiments.sweep import Place, Progress, Watch, fingerprints_in, plan, sweep

_PLACES = ("local", "ray")


def run_sweep(
    grids: Sequence[str],
    out: Path,
    *,
    jobs: int | None,
    threads: int,
    on: str,
    address: str | None,
    data_root: Path,
    keep: str,
    device: str,
    dry_run: bool,
    quiet: bool,
) -> bool:
    """Carry out grids, or say what there is to do; return whether all cells are done."""
    if keep not in ("all", "results"):
        raise ConfigError(unknown("--keep", keep, ("all", "results")))
    if on not in _PLACES:
        raise ConfigError(unknown("--on", on, _PLACES))
    if address is not None and on != "ray":
        raise ConfigError(f"--address {address} is that of a Ray cluster; add --on ray")
    read = [read_grid(name) for name in grids]
    console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        _show_plan(read, out, data_root, console)
        return True

    def place() -> Place:
        return Ray(device, threads, address) if on == "ray" else Local(device, threads)

    kept: Keep = "all" if keep == "all" else "results"
    with _watching(console) as watch:
        progress = sweep(read, out, place, data_root=data_root, jobs=jobs, keep=kept, watch=watch)
    console.print(f"{_counts(progress)}; results in {out / 'results.jsonl'}")
    for cell, why in progress.failed.items():
        print(f"failed: {_title(progress, cell)}: {why}; see {cell.log}", file=sys.stderr)  # noqa: T201
    return not progress.failed


def _show_plan(grids: Sequence[Grid], out: Path, data_root: Path, console: Console) -> None:
    cells = plan(grids, out, data_root, fingerprints_in(out))
    finished = 0
    for cell, points in cells.items():
        state = "done" if cell.run.is_finished else f"epoch {cell.epoch}" if cell.epoch else "to do"
        finished += cell.run.is_finished
        for point in points:
            console.print(f"{cell.name}  {state:8}  {point.grid}: {point}")
    console.print(f"{len(cells)} cells, {finished} done, {len(cells) - finished} to do; nothing was run")


@contextmanager
def _watching(console: Console) -> Iterator[Watch]:
    """Show a table that changes in its place on a terminal, a line for each piece of news elsewhere."""
    if not console.is_terminal or console.quiet:
        yield lambda progress, news: console.print(f"{_counts(progress)}: {news}") if news else None
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def watch(progress: Progress, news: str | None) -> None:
            if news is not None and not news.startswith("done"):
                live.console.print(news)
            live.update(_table(progress), refresh=True)

        yield watch


def _counts(progress: Progress) -> str:
    return (
        f"{len(progress.seconds)} done, {len(progress.running)} running, {len(progress.failed)} failed, "
        f"{progress.left} left"
    )


def _table(progress: Progress) -> Group:
    table = Table(expand=False)
    for heading in ("running", "epoch", "for"):
        table.add_column(heading, justify="left" if heading == "running" else "right")
    now = time.monotonic()
    for cell, since in progress.running.items():
        table.add_row(_title(progress, cell), f"{cell.epoch}/{cell.config['epochs']}", _duration(now - since))
    left = progress.seconds_left()
    ending = "" if left is None else f"; about {_duration(left)} to go"
    return Group(table, Text(_counts(progress) + ending))


def _title(progress: Progress, cell: Cell) -> str:
    return str(progress.cells[cell][0])


def _duration(seconds: float) -> str:
    """Say a time as a clock does.

    >>> _duration(5), _duration(3725)
    ('0:05', '1:02:05')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
