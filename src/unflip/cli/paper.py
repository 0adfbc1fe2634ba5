"""``unflip paper``: sweeps over grids of runs, and the paper's tables and figures."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unflip.cli.flags import Device, Force, Quiet

if TYPE_CHECKING:
    from rich.console import Console, Group

    from unflip.reproduce.cell import Cell
    from unflip.reproduce.sweep import Progress, Watch

paper_app = typer.Typer(help="Reproduce the paper: grids of runs, its tables and figures.", no_args_is_help=True)

Results = Annotated[
    list[Path] | None,
    typer.Option(help="A results.jsonl or the folder of a sweep, to stand beside the paper's numbers; repeatable."),
]
Where = Annotated[
    list[str] | None,
    typer.Option(help="Use only results with this value: --where epochs=15; repeatable.", metavar="KEY=VALUE"),
]


@paper_app.command()
def sweep(
    grids: Annotated[
        list[str], typer.Argument(help="Grids: FILE.toml, or a name of `unflip list grids`.", metavar="GRID...")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the cells and results.jsonl; an earlier sweep there goes on.")],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; by default one per GPU, else one per core.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads of a cell.")] = 1,
    backend: Annotated[str, typer.Option(help="Where cells run: local or ray.", metavar="BACKEND")] = "local",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster to use; by default one is started on this machine.")
    ] = None,
    data_root: Annotated[Path, typer.Option(help="Where relative paths in the grids begin.")] = Path(),
    keep: Annotated[
        str, typer.Option(help="What stays of a finished cell: all (but checkpoints), or results.", metavar="WHAT")
    ] = "all",
    device: Device = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Run nothing: list the cells and what is done.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run every cell of a grid; what is finished is not run again, what was stopped goes on.

    Exit code 1 if a cell failed twice. Example: unflip paper sweep smoke/digits --out sweep --jobs 2
    """
    from rich.console import Console

    from unflip.reproduce.sweep import plan
    from unflip.reproduce.sweep import sweep as run_sweep

    console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        cells = plan(grids, out, data_root=data_root)
        for cell, points in cells.items():
            state = "done" if cell.run.is_finished else f"epoch {cell.epoch}" if cell.epoch else "to do"
            for point in points:
                console.print(f"{cell.name}  {state:8}  {point.grid}: {point}")
        finished = sum(cell.run.is_finished for cell in cells)
        console.print(f"{len(cells)} cells, {finished} done, {len(cells) - finished} to do; nothing was run")
        return
    with watching(console) as watch:
        progress = run_sweep(
            grids, out, jobs=jobs, threads=threads, backend=backend, address=address, data_root=data_root, keep=keep,
            device=device, watch=watch,
        )  # fmt: skip
    console.print(f"{_counts(progress)}; results in {out / 'results.jsonl'}")
    for cell, why in progress.failed.items():
        print(f"failed: {_title(progress, cell)}: {why}; see {cell.log}", file=sys.stderr)  # noqa: T201
    if progress.failed:
        raise typer.Exit(1)


@paper_app.command()
def table(
    name: Annotated[str, typer.Argument(help="A table of the paper: 1 to 6.")],
    results: Results = None,
    form: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.", metavar="FORMAT")] = "text",
    show: Annotated[
        str,
        typer.Option(
            help="What: test accuracy of the selected epoch, the last, or the best (uses the truth); labels, how many "
            "training labels are right at the end; quality, the ROC area of the given labels' quality.",
            metavar="WHAT",
        ),
    ] = "selected",
    paper: Annotated[bool, typer.Option(help="The paper's numbers beside yours.")] = True,
    methods: Annotated[
        str | None,
        typer.Option(help="Which, separated by commas; by default the paper's; all: those and what else there is."),
    ] = None,
    where: Where = None,
) -> None:
    """Print a table of the paper, with your results beside it, the difference, and what is missing.

    Without --results it is the paper's table alone. Example: unflip paper table 1 --results sweep --format markdown
    """
    from unflip.reproduce.table_text import table as make_table

    text = make_table(name, results or (), form=form, show=show, paper=paper, methods=methods, where=where or ())
    print(text, end="")  # noqa: T201


@paper_app.command()
def figure(
    name: Annotated[
        str,
        typer.Argument(help="alpha, lambda (from --results), curves, shift (from --run), pmd, level-set or boundary."),
    ],
    out: Annotated[Path, typer.Option(help="The picture: .png, .svg or .pdf.")],
    results: Results = None,
    run: Annotated[list[Path] | None, typer.Option(help="The folder of a finished run; repeatable.")] = None,
    where: Where = None,
    force: Force = False,
) -> None:
    """Draw a figure: influence of alpha or lambda, curves, class Gaussians, PMD noise, level sets, a moved boundary.

    Example: unflip paper figure shift --run runs/mddc --out shift.png
    """
    from unflip.reproduce.figures import figure as draw_figure

    drawn = draw_figure(name, out, results=results or (), runs=run or (), where=where or (), force=force)
    print(f"drawn: {drawn}")  # noqa: T201


@contextmanager
def watching(console: "Console") -> Iterator["Watch"]:
    """Show a table that changes in place on a terminal, a line for each piece of news elsewhere."""
    if not console.is_terminal or console.quiet:
        yield lambda progress, news: console.print(f"{_counts(progress)}: {news}") if news else None
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True) as live:

        def watch(progress: "Progress", news: str | None) -> None:
            if news is not None and not news.startswith("done"):
                live.console.print(news)
            live.update(_progress_table(progress), refresh=True)

        yield watch


def _progress_table(progress: "Progress") -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from unflip.progress import duration

    shown = Table(expand=False)
    for heading in ("running", "epoch", "for"):
        shown.add_column(heading, justify="left" if heading == "running" else "right")
    now = time.monotonic()
    for cell, since in progress.running.items():
        shown.add_row(_title(progress, cell), f"{cell.epoch}/{cell.config['epochs']}", duration(now - since))
    left = progress.seconds_left()
    ending = "" if left is None else f"; about {duration(left)} to go"
    return Group(shown, Text(_counts(progress) + ending))


def _counts(progress: "Progress") -> str:
    """Say how many cells are done, running, failed and left."""
    return (
        f"{len(progress.seconds)} done, {len(progress.running)} running, {len(progress.failed)} failed, "
        f"{progress.left} left"
    )


def _title(progress: "Progress", cell: "Cell") -> str:
    """Name a cell by its first point."""
    return str(progress.cells[cell][0])
