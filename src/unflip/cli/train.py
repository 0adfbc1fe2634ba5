"""``unflip train`` and ``unflip demo``: train, and print what came out."""

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
    out: Annotated[Path, typer.Option(help="Folder for the run; everything about it is written there.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Images (one folder per class, a .csv or .parquet table of paths, CIFAR, WebVision, Clothing1M), "
            "feature arrays (.npz, .npy or a folder of .npy), a .csv or .parquet table of numbers, or the built-in "
            "data set digits."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out where it stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Train and write nothing: show the configuration, columns and classes."),
    ] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Train on data whose labels may be wrong.

    Writes the model, the labels (as they came, as they are now, how sure), every epoch's figures, result.json and
    report.html.
    Example: unflip train --data features.npz --out runs/first
    """
    if dry_run and resume:
        raise ConfigError("--dry-run tells of a whole run; leave --resume out")
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
    """Return what a person wants to know of a finished run, in a few lines."""
    result = run.result
    lines = [f"{result['method']} on {result['data']}, seed {result['seed']}, {result['epochs']} epochs"]
    lines.append(f"  model of epoch {result['selected_epoch']}, chosen by {result['protocol']}")
    if result["test_accuracy"]["selected"] is not None:
        test = result["test_accuracy"]
        lines.append(f"  test accuracy  {test['selected']:.2%} (last epoch {test['last']:.2%})")
        if len(result["tests"]) > 1:
            lines += [
                f"    {name}  top-1 {figures['top1']:.2%}, top-5 {figures['top5']:.2%}"
                for name, figures in result["tests"].items()
            ]
    if result["val_accuracy"] is not None:
        lines.append(f"  agreement with the given labels of the validation examples  {result['val_accuracy']:.2%}")
    labels = result["label_accuracy_all"]
    if labels["given"] is not None:
        lines.append(f"  labels right   {labels['given']:.2%} as given, {labels['current']:.2%} now")
    if result.get("skipped"):
        lines.append(f"  {result['skipped']} broken images left out: {run.folder / 'skipped.csv'}")
    lines.append(f"  {result['seconds']:.1f} s; everything is in {run.folder} (labels.csv: one row per example)")
    if run.report_path.exists():
        lines.append(f"  to look at: {run.report_path}")
    return "\n".join(lines)


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
        result, test = run.result, run.result["test_accuracy"]
        shares = (test["selected"], test["last"], result["label_accuracy_all"]["current"])
        table.add_row(method, *(f"{share:.1%}" for share in shares), f"{result['seconds']:.1f}")
    return table
