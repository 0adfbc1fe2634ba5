"""``unflip paper``: sweeps over grids of runs, and the paper's tables."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unflip.cli.flags import Device, Quiet
from unflip.errors import count_of

if TYPE_CHECKING:
    from unflip.reproduce.sweep import Progress

paper_app = typer.Typer(help="Reproduce the paper: sweeps and tables.", no_args_is_help=True)


@paper_app.command()
def sweep(
    grids: Annotated[list[str], typer.Argument(help="TOML files, or names from `unflip list grids`.", metavar="GRID")],
    out: Annotated[Path, typer.Option(help="Output folder; an earlier sweep there is resumed.")],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of cells to run at a time; by default one per GPU or core.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per cell.")] = 1,
    backend: Annotated[str, typer.Option(help="local or ray.", metavar="BACKEND")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; by default, a cluster is started on this machine.")
    ] = None,
    data_root: Annotated[Path, typer.Option(help="Folder that data paths in grids are relative to.")] = Path(),
    keep: Annotated[
        str, typer.Option(help="Files to keep: all (except checkpoints) or results.", metavar="WHAT")
    ] = "all",
    device: Device = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and their state without running them.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run every cell (training run) of a grid; finished cells are skipped, and interrupted ones are resumed.

    The exit code is 1 if a cell failed twice.

    Example: unflip paper sweep smoke/digits --out sweep --jobs 2
    """
    from rich.console import Console

    from unflip.reproduce.sweep import plan
    from unflip.reproduce.sweep import sweep as run_sweep

    console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        cells = plan(grids, out, data_root=data_root)
        for cell, points in cells.items():
            state = "done" if cell.run.is_finished else "started" if cell.log.exists() else "to do"
            for point in points:
                console.print(f"{cell.name}  {state:8}  {point.grid}: {point}")
        finished = sum(cell.run.is_finished for cell in cells)
        left = len(cells) - finished
        console.print(f"{count_of(len(cells), 'cell')}, {finished} done, {left} to do; nothing was run")
        return

    def tell(progress: "Progress", message: str | None) -> None:
        if message is not None:
            console.print(f"{_counts(progress)}: {message}")

    progress = run_sweep(
        grids, out, jobs=jobs, threads=threads, backend=backend, address=address, data_root=data_root, keep=keep,
        device=device, callback=tell,
    )  # fmt: skip
    console.print(f"{_counts(progress)}; results: {out / 'results.jsonl'}")
    for cell, error in progress.failed.items():
        print(f"failed: {progress.cells[cell][0]}: {error}; see {cell.log}", file=sys.stderr)  # noqa: T201
    if progress.failed:
        raise typer.Exit(1)


@paper_app.command()
def table(
    name: Annotated[str, typer.Argument(help="Number of a table of the paper: 1 to 6.")],
    results: Annotated[
        list[Path] | None, typer.Option(help="A results.jsonl file or a sweep folder; repeatable.", metavar="PATH")
    ] = None,
    show: Annotated[
        str,
        typer.Option(
            help="selected, last or best: test accuracy of that epoch (best uses the test labels); labels: share of "
            "correct training labels after the last epoch; quality: area under the ROC curve of label scores.",
            metavar="WHAT",
        ),
    ] = "selected",
    paper: Annotated[bool, typer.Option(help="Show the paper's numbers.")] = True,
    methods: Annotated[
        str | None, typer.Option(help="Methods, separated by commas; by default those of the paper.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Use only results with this value, such as epochs=15; repeatable.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Print a table of the paper next to your results, with differences and missing cells.

    Without --results, only the paper's table is printed. --methods all adds every method that has results.

    Example: unflip paper table 1 --results sweep
    """
    from unflip.reproduce.table_text import table as make_table

    text = make_table(name, results or (), show=show, paper=paper, methods=methods, where=where or ())
    print(text, end="")  # noqa: T201


def _counts(progress: "Progress") -> str:
    done, running, failed = len(progress.seconds), len(progress.running), len(progress.failed)
    return f"{done} done, {running} running, {failed} failed, {progress.left} left"


@paper_app.command()
def label_error_benchmark(
    folder: Annotated[Path, typer.Argument(help="A clone of cleanlab/label-error-detection-benchmarks.")],
) -> None:
    """Find label errors in cleanlab's public benchmark, from its predicted probabilities.

    Example: unflip paper label-error-benchmark label-error-detection-benchmarks
    """
    from unflip.reproduce.label_errors import label_error_benchmark as benchmark

    print(benchmark(folder))  # noqa: T201
