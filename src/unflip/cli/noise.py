"""``unflip corrupt`` and ``unflip noise inspect``: make label noise, and measure it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unflip.api.options import CORRUPT
from unflip.cli.flags import Force, Quiet, takes
from unflip.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unflip.noise.transition import NoiseProfile

_ROWS = 20  # classes, at most
_NAME = 16  # characters of a class name, at most
_LEAST = 0.005  # smaller shares would be shown as 0.00
_CALLED = 4  # what a class is called instead, at most, where there is no room for a matrix


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
    limit: Annotated[
        int | None,
        typer.Option(help="Compare the first N only. A shorter LABELS is compared with the first rows.", min=1),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save a picture of the transition matrix here (.png).")] = None,
    force: Force = False,
) -> None:
    """Measure how wrong labels are: the rate, overall and per class, and which class became which."""
    from unflip.api.inspect_noise import inspect_noise

    found = inspect_noise(labels, clean, limit=limit, out=out, force=force)
    print_noise(found.measured, found.class_names)


def print_noise(measured: "NoiseProfile", class_names: "Sequence[str] | None") -> None:
    """Print the noise rate, and a row per class: its rate and what it is called instead; of many classes, the worst.

    Where there is room, each class has a column with the share of the row's class that is called so.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    count, counts = len(measured.matrix), measured.class_counts.tolist()
    names = [one_line(name) for name in class_names or map(str, range(count))]
    rows = list(range(count))
    if count > _ROWS:
        rows = measured.class_rates.argsort(descending=True, stable=True)[:_ROWS].tolist()
    console = Console(highlight=False, markup=False, emoji=False)
    room = console.width - 15 - 5 * count  # for names: four digits and a space in each column of a matrix
    is_matrix = room >= _NAME // 2
    most = min(_NAME, room) if is_matrix else _NAME
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("class", no_wrap=True, overflow="crop", max_width=most)
    for heading in ("examples", "wrong"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in names if is_matrix else []:
        table.add_column(Text(name), no_wrap=True, overflow="crop", max_width=4)
    if not is_matrix:
        table.add_column("called instead")
    for i in rows:
        shares = measured.matrix[i].tolist()
        if is_matrix:
            cells = [f"{share:.2f}" if share >= _LEAST else "." for share in shares]
        else:
            others = sorted((j for j in range(count) if j != i and shares[j] >= _LEAST), key=lambda j: -shares[j])
            cells = [", ".join(f"{names[j]} {shares[j]:.2f}" for j in others[:_CALLED])]
        figures = [str(counts[i]), f"{float(measured.class_rates[i]):.3f}"]
        table.add_row(*map(Text, (names[i], *figures, *cells)))
    worst = f"; the {_ROWS} with the most noise" if count > _ROWS else ""
    console.print(f"noise rate {measured.rate:.4f} over {sum(counts)} labels, {count} classes", soft_wrap=True)
    console.print(f"true class (rows) and what it is called{worst}", soft_wrap=True)
    console.print(table)
