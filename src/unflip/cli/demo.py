"""``unflip demo``: several methods on digits with wrong labels; a table and a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unflip.cli.flags import Quiet

if TYPE_CHECKING:
    from rich.table import Table

    from unflip.runs.folder import Run


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the figure.")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """Train several methods on handwritten digits with wrong labels; about a minute."""
    from rich.console import Console

    from unflip.api.demo import METHODS, NOISE
    from unflip.api.demo import demo as demo_task

    console = Console(quiet=quiet, highlight=False)
    console.print(f"Handwritten digits; labels are wrong by the recipe {NOISE}: a digit becomes one that it resembles.")
    done = demo_task(out, quiet=quiet)
    last = out / METHODS[-1]
    console.print(_table(done.runs))
    console.print(f"A picture of this: {done.picture}. One row per example: {last / 'labels.csv'}")
    console.print(f"Pages to look at: {done.page}, {last / 'report.html'}")


def _table(runs: "dict[str, Run]") -> "Table":
    from rich.table import Table

    given = next(iter(runs.values())).result["label_accuracy_all"]["given"]
    table = Table(title=f"{1 - given:.1%} of the training labels are wrong")
    for heading in ("method", "test accuracy", "last epoch", "labels right now", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method, run in runs.items():
        result = run.result
        table.add_row(
            method,
            f"{result['test_accuracy']['selected']:.1%}",
            f"{result['test_accuracy']['last']:.1%}",
            f"{result['label_accuracy_all']['current']:.1%}",
            f"{result['seconds']:.1f}",
        )
    return table
