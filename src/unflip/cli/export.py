"""``unflip export``: write a run's labels for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from unflip.cli.flags import FinishedRun, Force


def export(
    run: FinishedRun,
    out: Annotated[Path, typer.Option(help="The file: .csv, .parquet, .jsonl, or .json for Label Studio.")],
    form: Annotated[
        str, typer.Option("--format", help="csv, parquet, jsonl, label-studio or cleanlab.", metavar="FORMAT")
    ] = "csv",
    prefix: Annotated[
        str, typer.Option(help="For Label Studio: what stands before each image's path, as an address or folder.")
    ] = "",
    data: Annotated[
        str | None, typer.Option(help="For Label Studio: where the run's texts or table are now, if they have moved.")
    ] = None,
    force: Force = False,
) -> None:
    """Write a run's labels for other tools: tables, Label Studio tasks with predictions, cleanlab's columns.

    Example: unflip export runs/first --format label-studio --out tasks.json
    """
    from unflip.api.export import export as export_task

    count = export_task(run, out, form, prefix=prefix, data=data, force=force)
    print(f"{count} labels as {form}: {out}")  # noqa: T201
