"""``unflip embed``: write a feature file and say what is in it."""

import sys
from pathlib import Path
from typing import Any

from unflip.training.embed import embed


def run_embed(data: str, out: Path, *, quiet: bool, **options: Any) -> None:
    """Embed, name images that were left out, and print a summary."""
    made = embed(data, out, quiet=quiet, **options)
    for image in made.skipped:
        print(f"left out {image.id}: {image.reason}", file=sys.stderr)  # noqa: T201
    if quiet:
        return
    counts = ", ".join(f"{count} {name}" for name, count in made.counts.items())
    how = "was there already" if made.reused else f"{made.seconds:.1f} s"
    after = "unflip clean {} --out runs/first" if made.labelled else "unflip predict RUN --data {}"
    print(  # noqa: T201
        f"{made.path}: {counts}; {made.num_features} features of {made.about.backbone}, "
        f"images of {made.about.image_size} pixels; {how}\n"
        f"  next: {after.format(made.path)}"
    )
