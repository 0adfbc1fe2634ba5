"""``unflip corrupt`` and ``unflip noise inspect``: make label noise, and measure it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unflip.api.options import CORRUPT
from unflip.cli.flags import Force, Quiet, takes


@takes(CORRUPT)
def corrupt(
    data: Annotated[str, typer.Option(help="Feature arrays with clean train_labels, or the built-in data set digits.")],
    noise: Annotated[str, typer.Option(help="The recipe: steps joined by +.", metavar="RECIPE")],
    out: Annotated[Path, typer.Option(help="Where the labels go: .npy, .csv or .txt; .json and .png beside it.")],
    save_posterior: Annotated[Path | None, typer.Option(help="Keep the estimated posteriors in this .npy.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Make noisy labels out of clean ones, with a record of how.

    Steps: pmd1, pmd2, pmd3 (instance-dependent, the paper's types I to III), sym, asym, asym-pairs, asym-cycle, pair
    (each with its level, as in sym:0.3) and matrix. Later steps are applied to the outcome of earlier ones.
    Example: unflip corrupt --data digits --noise "pmd1:0.35 + sym:0.30" --out labels.npy
    """
    from unflip.api.corrupt import corrupt as corrupt_task
    from unflip.cli.noise_table import print_noise

    made = corrupt_task(data, noise, out, save_posterior=save_posterior, force=force, quiet=quiet, **options)
    if not quiet:
        print_noise(made.measured, made.class_names)
        print(f"labels in {made.labels}, how they were made in {made.record}, a picture in {made.picture}")  # noqa: T201


def inspect(
    labels: Annotated[Path, typer.Argument(help="The labels in question: .npy, .csv or .txt.")],
    clean: Annotated[
        Path,
        typer.Option(help="The true labels: .npy, .csv, .txt, or data that holds them, such as an .npz or digits."),
    ],
    take: Annotated[
        int | None,
        typer.Option(help="Compare the first N only. A shorter LABELS is compared with the first rows.", min=1),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save a picture of the transition matrix here (.png).")] = None,
    force: Force = False,
) -> None:
    """Measure how wrong labels are: the rate, overall and per class, and which class became which."""
    from unflip.api.inspect_noise import inspect_noise
    from unflip.cli.noise_table import print_noise

    found = inspect_noise(labels, clean, take=take, out=out, force=force)
    print_noise(found.measured, found.class_names)
