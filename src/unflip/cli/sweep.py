"""``unflip sweep``: run grids, and show how far they are."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from unflip.cli.flags import Device, Quiet


def sweep(
    grids: Annotated[
        list[str], typer.Argument(help="Grids: FILE.toml, or a name of `unflip list grids`.", metavar="GRID...")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the cells and results.jsonl; an earlier sweep there goes on.")],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; by default one per GPU, else one per core.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads of a cell.")] = 1,
    on: Annotated[str, typer.Option(help="Where cells run: local or ray.", metavar="PLACE")] = "local",
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

    Exit code 1 if a cell failed twice. Example: unflip sweep smoke/digits --out sweep --jobs 2
    """
    from rich.console import Console

    from unflip.api.sweep import plan_sweep
    from unflip.api.sweep import sweep as sweep_task
    from unflip.cli.sweep_progress import counts, print_plan, title, watching

    console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        print_plan(plan_sweep(grids, out, data_root=data_root), console)
        return
    with watching(console) as watch:
        progress = sweep_task(
            grids, out, jobs=jobs, threads=threads, on=on, address=address, data_root=data_root, keep=keep,
            device=device, watch=watch,
        )  # fmt: skip
    console.print(f"{counts(progress)}; results in {out / 'results.jsonl'}")
    for cell, why in progress.failed.items():
        print(f"failed: {title(progress, cell)}: {why}; see {cell.log}", file=sys.stderr)  # noqa: T201
    if progress.failed:
        raise typer.Exit(1)
