"""What ``unflip sweep`` prints: the plan, how far it is, and what failed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unflip.progress import duration
from unflip.reproduce.cell import Cell
from unflip.reproduce.grid import Point
from unflip.reproduce.sweep import Progress, Watch


def print_plan(cells: Mapping[Cell, Sequence[Point]], console: Console) -> None:
    """Print every point of every cell, and how far the cell is."""
    finished = 0
    for cell, points in cells.items():
        state = "done" if cell.run.is_finished else f"epoch {cell.epoch}" if cell.epoch else "to do"
        finished += cell.run.is_finished
        for point in points:
            console.print(f"{cell.name}  {state:8}  {point.grid}: {point}")
    console.print(f"{len(cells)} cells, {finished} done, {len(cells) - finished} to do; nothing was run")


@contextmanager
def watching(console: Console) -> Iterator[Watch]:
    """Show a table that changes in place on a terminal, a line for each piece of news elsewhere."""
    if not console.is_terminal or console.quiet:
        yield lambda progress, news: console.print(f"{counts(progress)}: {news}") if news else None
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def watch(progress: Progress, news: str | None) -> None:
            if news is not None and not news.startswith("done"):
                live.console.print(news)
            live.update(_table(progress), refresh=True)

        yield watch


def counts(progress: Progress) -> str:
    """Say how many cells are done, running, failed and left."""
    return (
        f"{len(progress.seconds)} done, {len(progress.running)} running, {len(progress.failed)} failed, "
        f"{progress.left} left"
    )


def title(progress: Progress, cell: Cell) -> str:
    """Name a cell by its first point."""
    return str(progress.cells[cell][0])


def _table(progress: Progress) -> Group:
    table = Table(expand=False)
    for heading in ("running", "epoch", "for"):
        table.add_column(heading, justify="left" if heading == "running" else "right")
    now = time.monotonic()
    for cell, since in progress.running.items():
        table.add_row(title(progress, cell), f"{cell.epoch}/{cell.config['epochs']}", duration(now - since))
    left = progress.seconds_left()
    ending = "" if left is None else f"; about {duration(left)} to go"
    return Group(table, Text(counts(progress) + ending))
