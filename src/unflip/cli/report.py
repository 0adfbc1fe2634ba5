"""``unflip report``: a page about a run, or one that compares several."""

from pathlib import Path
from typing import Annotated

import typer

from unflip.cli.flags import Force


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN...")],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default report.html in the run, or comparison.html here.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the run's data is now, if it has moved: for the pictures.")
    ] = None,
    force: Force = False,
) -> None:
    """Write a run's report.html anew, or a page that compares several runs.

    A page is one file, which opens without a network. Example: unflip report runs/plc runs/mddc --out compared.html
    """
    from unflip.api.report import report as report_task

    print(f"written: {report_task(runs, out, data=data, force=force)}")  # noqa: T201
