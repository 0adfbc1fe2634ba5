"""``unflip train`` and ``unflip demo``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unflip.api.options import TRAIN
from unflip.cli.flags import Quiet, takes
from unflip.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from unflip.runs.folder import Run


@takes(TRAIN)
def train(
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Images or texts (one folder per class), a table (.csv, .parquet, .jsonl), feature arrays "
            "(.npz, .npy), CIFAR, WebVision, Clothing1M, or a built-in data set: see `unflip list data`."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the configuration, columns and classes; write nothing."),
    ] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Train a classifier on noisy labels.

    Writes the model, the label table (labels.csv), metrics, result.json and report.html to --out.

    Example: unflip train --data features.npz --out runs/first
    """
    if dry_run and resume:
        raise ConfigError("--dry-run and --resume cannot be combined")
    if dry_run:
        from unflip.api.train import dry_run as describe

        text = describe(data, out, force=force, **options)
    else:
        from unflip.api.train import train as train_task

        text = summary(train_task(data, out, resume=resume, force=force, quiet=quiet, **options))
    from unflip.engine.distributed import is_first_process

    if not quiet and is_first_process():
        print(text)  # noqa: T201


def summary(run: "Run") -> str:
    """Return the results of a finished run in a few lines."""
    result = run.result
    lines = [f"{result['method']} on {result['data']}, seed {result['seed']}, {result['epochs']} epochs"]
    lines.append(f"  selected epoch       {result['selected_epoch']} ({result['protocol']})")
    if result["test_accuracy"]["selected"] is not None:
        test = result["test_accuracy"]
        lines.append(f"  test accuracy        {test['selected']:.2%} (last epoch {test['last']:.2%})")
        if len(result["tests"]) > 1:
            scores = result["tests"].items()
            lines += [f"    {name}  top-1 {score['top1']:.2%}, top-5 {score['top5']:.2%}" for name, score in scores]
    if result["val_accuracy"] is not None:
        lines.append(f"  validation accuracy  {result['val_accuracy']:.2%} (noisy labels)")
    labels = result["label_accuracy_all"]
    if labels["given"] is not None:
        lines.append(f"  label accuracy       {labels['given']:.2%} given, {labels['current']:.2%} corrected")
    if result.get("skipped"):
        lines.append(f"  broken images skipped: {result['skipped']} ({run.folder / 'skipped.csv'})")
    lines += [f"  time                 {result['seconds']:.1f} s", f"Labels: {run.folder / 'labels.csv'}"]
    if run.report_path.exists():
        lines.append(f"Report: {run.report_path}")
    return "\n".join(lines)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the figure.")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """Compare methods on handwritten digits with label noise; takes about a minute."""
    from rich.console import Console

    from unflip.api.demo import METHODS, NOISE
    from unflip.api.demo import demo as demo_task

    console = Console(quiet=quiet, highlight=False)
    console.print(f"Handwritten digits with label noise {NOISE}: digits are mistaken for similar ones.")
    result = demo_task(out, quiet=quiet)
    last = out / METHODS[-1]
    console.print(_table(result.runs))
    console.print(f"Figure: {result.picture}\nLabels: {last / 'labels.csv'}")
    console.print(f"Comparison: {result.page}\nReport: {last / 'report.html'}")


def _table(runs: "dict[str, Run]") -> "Table":
    from rich.table import Table

    given = next(iter(runs.values())).result["label_accuracy_all"]["given"]
    table = Table(title=f"Label noise: {1 - given:.1%}")
    for heading in ("method", "test accuracy", "last epoch", "label accuracy", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method, run in runs.items():
        result, test = run.result, run.result["test_accuracy"]
        scores = (test["selected"], test["last"], result["label_accuracy_all"]["current"])
        table.add_row(method, *(f"{score:.1%}" for score in scores), f"{result['seconds']:.1f}")
    return table
