"""``unflip demo``: several methods on digits with wrong labels; a table and a picture."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from unflip.cli.noise import run_corrupt
from unflip.errors import RunFolderError
from unflip.report.comparison import write_comparison
from unflip.report.demo_figure import draw_demo
from unflip.report.reported import train
from unflip.training.folder import Run

NOISE = "pmd1:0.35"
METHODS = ("standard", "gce", "sl", "lrt", "plc", "mddc", "cddc", "unflip")


def run_demo(out: Path, quiet: bool) -> None:
    """Make a third of the labels wrong where digits look alike, train each method, show what came out."""
    console = Console(quiet=quiet, highlight=False)
    labels = out / "labels.npy"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"--out {out}: {error.strerror}; name a folder that can be written") from error
    console.print(f"Handwritten digits; wrong labels by the recipe {NOISE}: a digit is taken for the one it resembles.")
    run_corrupt(
        "digits", NOISE, labels, labels=None, take=None, posterior="cross-fit", save_posterior=None, class_map=None,
        matrix=None, seed=0, force=True, device="cpu", threads=1, quiet=True,
    )  # fmt: skip
    runs: dict[str, Run] = {}
    for method in METHODS:
        runs[method] = train(
            "digits", out / method, labels=labels, method=method, preset="demo", force=True, device="cpu", threads=1,
            quiet=quiet,
        )  # fmt: skip
    picture = out / "demo.png"
    draw_demo(picture, runs)
    page = write_comparison(list(runs.values()), out / "comparison.html")
    console.print(_table(runs))
    console.print(f"A picture of this: {picture}. One row an example: {out / METHODS[-1] / 'labels.csv'}")
    console.print(f"Pages to look at: {page}, {out / METHODS[-1] / 'report.html'}")


def _table(runs: dict[str, Run]) -> Table:
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
