"""``unflip embed``: write a feature file and print a summary."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unflip.api.options import EMBED
from unflip.cli.flags import Quiet, takes


@takes(EMBED)
def embed(
    data: Annotated[str, typer.Argument(help="Images (a folder per class, a list of paths, CIFAR), texts or a table.")],
    out: Annotated[Path, typer.Option(help="Feature file, .npz; every command takes it as --data.")],
    force: Annotated[bool, typer.Option("--force", help="Replace another file at --out.")] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Compute features of images, texts or columns once; training on them then takes seconds.

    Images are embedded by a pretrained network. Labels, class names, paths, splits and the encoder are saved with the
    features. An interrupted call is resumed by the same command.
    Example: unflip embed photos --out features.npz, then: unflip train --data features.npz --preset features --out run
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
    lines = [f"{result.path}: {counts}; {result.num_features} features; {how}", *(f"  {line}" for line in result.how)]
    print("\n".join([*lines, f"  next: {after.format(result.path)}"]))  # noqa: T201
