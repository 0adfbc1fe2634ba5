"""``unflip embed``: write a feature file, and print what is in it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unflip.api.options import EMBED
from unflip.cli.flags import Quiet, takes


@takes(EMBED)
def embed(
    data: Annotated[
        str,
        typer.Argument(
            help="Images (one folder per class, a .csv or .parquet of paths, CIFAR and so on), texts, or a table."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The feature file, .npz; every other command takes it as --data.")],
    force: Annotated[bool, typer.Option("--force", help="Replace another file at --out.")] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Turn images, texts or columns into features, once; training on them then takes seconds.

    Images go through a pretrained network. Labels, class names, paths, splits and the encoder go with the features. An
    embedding that was stopped goes on when called again.
    Example: unflip embed photos --out features.npz, then: unflip train --data features.npz --preset features --out run
    """
    from unflip.api.embed import embed as embed_task

    made = embed_task(data, out, force=force, quiet=quiet, **options)
    for image in made.skipped:
        print(f"left out {image.id}: {image.reason}", file=sys.stderr)  # noqa: T201
    if quiet:
        return
    counts = ", ".join(f"{count} {name}" for name, count in made.counts.items())
    how = "was there already" if made.reused else f"{made.seconds:.1f} s"
    labeled = made.features.train.labels is not None
    after = "unflip clean {} --out runs/first" if labeled else "unflip predict RUN --data {}"
    print(  # noqa: T201
        "\n".join(
            [
                f"{made.path}: {counts}; {made.num_features} features; {how}",
                *(f"  {line}" for line in made.how),
                f"  next: {after.format(made.path)}",
            ]
        )
    )
