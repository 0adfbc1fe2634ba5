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

_MAX_ROWS = 20
_MAX_NAME = 16  # characters of a class name
_MIN_SHARE = 0.005  # smaller ones would be shown as 0.00


@takes(CORRUPT)
def corrupt(
    data: Annotated[str, typer.Option(help="Feature arrays with clean train_labels, or the built-in data set digits.")],
    noise: Annotated[str, typer.Option(help="Noise recipe: steps joined by +.", metavar="RECIPE")],
    out: Annotated[Path, typer.Option(help="Output labels: .npy, .csv or .txt; .json and .png go next to it.")],
    save_posterior: Annotated[Path | None, typer.Option(help="Write the estimated posteriors to this .npy.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Add label noise to clean labels, and record how.

    Steps: pmd1, pmd2, pmd3 (instance-dependent, the paper's types I to III), sym, asym, asym-pairs, asym-cycle, pair
    (each with its level, as in sym:0.3) and matrix. Later steps are applied to the result of earlier ones.
    Example: unflip corrupt --data digits --noise "pmd1:0.35 + sym:0.30" --out labels.npy
    """
    from unflip.api.corrupt import corrupt as corrupt_task

    result = corrupt_task(data, noise, out, save_posterior=save_posterior, force=force, quiet=quiet, **options)
    if not quiet:
        print_noise(result.measured, result.class_names)
        print(f"Labels: {result.labels}, record: {result.record}, picture: {result.picture}")  # noqa: T201


def inspect(
    labels: Annotated[Path, typer.Argument(help="Noisy labels: .npy, .csv or .txt.")],
    clean: Annotated[Path, typer.Option(help="True labels: .npy, .csv, .txt, or labeled data, such as digits.")],
    limit: Annotated[int | None, typer.Option(help="Compare the first N labels only.", min=1)] = None,
    out: Annotated[Path | None, typer.Option(help="Save a picture of the transition matrix (.png).")] = None,
    force: Force = False,
) -> None:
    """Measure label noise: the noise rate, overall and per class, and the transition matrix."""
    from unflip.api.corrupt import inspect_noise

    print_noise(*inspect_noise(labels, clean, limit=limit, out=out, force=force))


def print_noise(measured: "NoiseProfile", class_names: "Sequence[str] | None") -> None:
    """Print the noise rate, and a row per class: its noise rate and transition probabilities.

    Up to 20 classes are shown, those with the most noise. If the transition matrix does not fit the terminal, only the
    four most frequent wrong labels of each class are shown.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    count, counts = len(measured.matrix), measured.class_counts.tolist()
    names = [one_line(name) for name in class_names or map(str, range(count))]
    rows = measured.class_rates.argsort(descending=True, stable=True)[:_MAX_ROWS].tolist()
    console = Console(highlight=False, markup=False, emoji=False)
    room = console.width - 15 - 5 * count  # for names: four digits and a space in each column of a matrix
    is_matrix = room >= _MAX_NAME // 2
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("class", no_wrap=True, overflow="crop", max_width=min(_MAX_NAME, room) if is_matrix else _MAX_NAME)
    for heading in ("examples", "wrong"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in names if is_matrix else ["wrong labels"]:
        table.add_column(Text(name), no_wrap=is_matrix, overflow="crop", max_width=4 if is_matrix else None)
    for i in rows if count > _MAX_ROWS else range(count):
        shares = measured.matrix[i].tolist()
        if is_matrix:
            cells = [f"{share:.2f}" if share >= _MIN_SHARE else "." for share in shares]
        else:
            others = sorted((j for j in range(count) if j != i and shares[j] >= _MIN_SHARE), key=lambda j: -shares[j])
            cells = [", ".join(f"{names[j]} {shares[j]:.2f}" for j in others[:4])]
        table.add_row(*map(Text, (names[i], str(counts[i]), f"{float(measured.class_rates[i]):.3f}", *cells)))
    worst = f"; the {_MAX_ROWS} classes with the most noise" if count > _MAX_ROWS else ""
    console.print(f"noise rate {measured.rate:.4f} over {sum(counts)} labels, {count} classes", soft_wrap=True)
    console.print(f"true class (rows), given label (columns){worst}", soft_wrap=True)
    console.print(table)
