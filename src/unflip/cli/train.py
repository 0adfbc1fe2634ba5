"""``unflip embed``, ``unflip corrupt``, ``unflip train`` and ``unflip demo``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unflip.api.options import CORRUPT, EMBED, TRAIN
from unflip.cli.flags import DryRun, Quiet, takes
from unflip.errors import ConfigError, count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unflip.runs.folder import Run

_LISTED = 10  # label issues that the demo prints


@takes(EMBED)
def embed(
    data: Annotated[str, typer.Argument(help="Images: one folder per class, a list of paths, or CIFAR.")],
    out: Annotated[Path, typer.Option(help="Feature file (.npz), which every command accepts as --data.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file at --out.")] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Compute image features with a pretrained network, so that training takes seconds.

    Labels, class names, paths, splits and the encoder are saved with the features. If the command is interrupted, run
    it again to resume.

    Example: unflip embed photos --out features.npz
    """
    from unflip.api.embed import embed as embed_task

    result = embed_task(data, out, force=force, quiet=quiet, **options)
    for image in result.skipped:
        print(f"left out {image.id}: {image.reason}", file=sys.stderr)  # noqa: T201
    if quiet:
        return
    counts = ", ".join(f"{count} {name}" for name, count in result.counts.items())
    how = "already done" if result.reused else f"{result.seconds:.1f} s"
    labeled = result.features.train.labels is not None
    after = "unflip clean {} --out runs/first" if labeled else "unflip predict RUN --data {}"
    first = f"{result.path}: {counts}; {count_of(result.num_features, 'feature')}; {how}"
    print("\n  ".join([first, *result.how, f"next: {after.format(result.path)}"]))  # noqa: T201


@takes(CORRUPT)
def corrupt(
    data: Annotated[str, typer.Option(help="Feature arrays with clean train_labels, or the built-in data set digits.")],
    noise: Annotated[str, typer.Option(help="Noise recipe: steps joined by +.", metavar="RECIPE")],
    out: Annotated[Path, typer.Option(help="File for the labels, .npy or .csv, with a .json file next to it.")],
    save_posterior: Annotated[Path | None, typer.Option(help="Write the estimated posteriors to an .npy file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Add label noise to clean labels, and record the recipe.

    A recipe consists of steps, applied in order: pmd1, pmd2 or pmd3 (instance-dependent noise of the paper's types I to
    III), sym, asym, asym-pairs, asym-cycle or pair, each with a level, as in sym:0.3, or matrix.

    Example: unflip corrupt --data digits --noise "pmd1:0.35 + sym:0.30" --out labels.npy
    """
    from unflip.api.corrupt import corrupt as corrupt_task

    result = corrupt_task(data, noise, out, save_posterior=save_posterior, force=force, quiet=quiet, **options)
    if not quiet:
        print(f"Noise rate: {result.noise_rate:.4f}\nLabels: {result.labels}, record: {result.record}")  # noqa: T201


@takes(TRAIN)
def train(
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Images or texts (one folder per class), a table (.csv, .parquet, .jsonl), feature arrays "
            "(.npz, .npy), CIFAR, or a built-in data set: see `unflip list data`."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    dry_run: DryRun = False,
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
    from unflip.progress import is_first_process

    if not quiet and is_first_process():
        print(text)  # noqa: T201


def summary(run: "Run") -> str:
    """Return the results of a finished run in a few lines."""
    result = run.result
    lines = [f"{result['method']} on {result['data']}, seed {result['seed']}, {count_of(result['epochs'], 'epoch')}"]
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


def demo(out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("demo"), quiet: Quiet = False) -> None:
    """Find wrong labels among handwritten digits, and compare methods, in about a minute."""
    from unflip.api.demo import METHODS, NOISE
    from unflip.api.demo import demo as demo_task
    from unflip.reproduce.table_text import markdown_table
    from unflip.runs.labels import list_issues

    if not quiet:
        print(f"Handwritten digits with label noise {NOISE}: digits are mistaken for similar ones.")  # noqa: T201
    runs = demo_task(out, quiet=quiet)
    last = runs[METHODS[-1]]
    methods: list[Sequence[str]] = [("method", "test accuracy", "last epoch", "label accuracy", "seconds")]
    for method, run in runs.items():
        done, test = run.result, run.result["test_accuracy"]
        scores = (test["selected"], test["last"], done["label_accuracy_all"]["current"])
        methods.append((method, *(f"{score:.1%}" for score in scores), f"{done['seconds']:.1f}"))
    listed = list_issues(last.labels(), None).slice(0, _LISTED).to_pylist()
    issues = [("digit", "given label", "suggested label", "label quality")]
    issues += [(row["id"], row["given_label"], row["suggested_label"], f"{row['label_quality']:.1%}") for row in listed]
    parts = [
        f"Label noise: {1 - last.result['label_accuracy_all']['given']:.1%}",
        markdown_table(methods),
        f"{METHODS[-1]}: {last.label_summary}",
        f"Lowest label quality:\n{markdown_table(issues)}",
        f"All labels: {last.folder / 'labels.csv'}\nReport, with pictures: {last.report_path}",
    ]
    if not quiet:
        print("\n\n".join(parts))  # noqa: T201
