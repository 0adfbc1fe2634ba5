"""``unflip table``: a table of the paper, alone or with results beside it."""

from typing import Annotated

import typer

from unflip.cli.flags import Results, Where


def table(
    name: Annotated[str, typer.Argument(help="A table of the paper: 1 to 6.")],
    results: Results = None,
    form: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.", metavar="FORMAT")] = "text",
    show: Annotated[
        str,
        typer.Option(
            help="What: test accuracy of the selected epoch, the last, or the best (uses the truth); labels, how many "
            "training labels are right at the end; quality, the ROC area of the given labels' quality.",
            metavar="WHAT",
        ),
    ] = "selected",
    paper: Annotated[bool, typer.Option(help="The paper's numbers beside yours.")] = True,
    methods: Annotated[
        str | None,
        typer.Option(help="Which, separated by commas; by default the paper's; all: those and what else there is."),
    ] = None,
    where: Where = None,
) -> None:
    """Print a table of the paper, with your results beside it, the difference, and what is missing.

    Without --results it is the paper's table alone. Example: unflip table 1 --results sweep --format markdown
    """
    from unflip.api.table import table as table_task

    text = table_task(name, results or (), form=form, show=show, paper=paper, methods=methods, where=where or ())
    print(text, end="")  # noqa: T201
