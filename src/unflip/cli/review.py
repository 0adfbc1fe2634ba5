"""``unflip review``: serve the review page of a run, or write what was decided."""

from pathlib import Path
from typing import Annotated

import typer

from unflip.cli.flags import FinishedRun, Force
from unflip.review.order import Order

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def review(
    run: FinishedRun,
    data: Annotated[str | None, typer.Option(help="Where the data is now, if it has moved since training.")] = None,
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes a free port.", min=0, max=65535)] = 0,
    host: Annotated[
        str, typer.Option(help="Which address to listen on; any but the default can be reached by other machines.")
    ] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, open nothing.")] = False,
    reviewer: Annotated[
        str | None, typer.Option(help="The name to decide under; by default your login. The page can change it.")
    ] = None,
    order: Annotated[
        Order,
        typer.Option(help="Begin with the most doubtful labels, or with decisions that teach most. The page has both."),
    ] = Order.DOUBTFUL,
    export: Annotated[
        Path | None, typer.Option(help="Write what was decided to this .csv, for train --reviewed, and serve nothing.")
    ] = None,
    force: Force = False,
) -> None:
    """Go through doubtful labels on a local web page, by keyboard or mouse, alone or with others.

    Example: unflip review runs/first
    """
    from unflip.api.review import export_review, reviewer_name
    from unflip.api.review import review as review_task

    reviewer_name(reviewer)
    if export is not None:
        count = export_review(run, export, force=force)
        print(f"{export}: {count} examples that people settled")  # noqa: T201
        return

    def on_ready(address: str) -> None:
        print(f"review: {address}", flush=True)  # noqa: T201
        print("Anyone with this address can decide. Ctrl+C ends it; every decision is saved already.", flush=True)  # noqa: T201
        if host not in _THIS_MACHINE:
            print("Other machines reach it by this machine's name or address; nothing is encrypted.", flush=True)  # noqa: T201
        if not no_browser:
            import webbrowser

            webbrowser.open(address)

    settled = review_task(run, data=data, host=host, port=port, reviewer=reviewer, order=order, on_ready=on_ready)
    print(f"{settled} examples are settled; write them with: unflip review {run} --export reviewed.csv")  # noqa: T201
