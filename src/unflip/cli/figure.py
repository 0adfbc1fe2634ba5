"""``unflip figure``: draw one of the figures."""

from pathlib import Path
from typing import Annotated

import typer

from unflip.cli.flags import Force, Results, Where


def figure(
    name: Annotated[
        str,
        typer.Argument(help="alpha, lambda (from --results), curves, shift (from --run), pmd, level-set or boundary."),
    ],
    out: Annotated[Path, typer.Option(help="The picture: .png, .svg or .pdf.")],
    results: Results = None,
    run: Annotated[list[Path] | None, typer.Option(help="The folder of a finished run; repeatable.")] = None,
    where: Where = None,
    force: Force = False,
) -> None:
    """Draw a figure: influence of alpha or lambda, curves, class Gaussians, PMD noise, level sets, a moved boundary.

    Example: unflip figure shift --run runs/mddc --out shift.png
    """
    from unflip.api.figure import figure as figure_task

    drawn = figure_task(name, out, results=results or (), runs=run or (), where=where or (), force=force)
    print(f"drawn: {drawn}")  # noqa: T201
