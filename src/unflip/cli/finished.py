"""``unflip predict``, ``report``, ``review`` and ``export``: what people do with a finished run."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unflip.api.options import PREDICT
from unflip.cli.flags import FinishedRun, Force, Moved, takes
from unflip.review import Order


@takes(PREDICT)
def predict(
    run: FinishedRun,
    data: Annotated[
        str,
        typer.Option(
            help="What training took: images (they need no class folders here), a table of texts or columns, features."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file; by default standard output.")] = None,
    part: Annotated[
        str | None, typer.Option(help="Which set of the data: train, val, test ...; by default the first test set.")
    ] = None,
    force: Force = False,
    **options: Any,
) -> None:
    """Apply a run's model to new data of the kind it was trained on: id, label and probabilities, as a table."""
    import pyarrow.csv
    import pyarrow.parquet

    from unflip.api.predict import predict as predict_task
    from unflip.files import write_atomically
    from unflip.progress import make_reporter
    from unflip.runs.layout import check_output

    if out is not None:
        check_output(out, (".csv", ".parquet"), force=force, inputs=[data])
    prediction = predict_task(run, data, part=part, track=make_reporter(quiet=out is None).track, **options)
    for remark in (*(f"left out {image.id}: {image.reason}" for image in prediction.skipped), *prediction.remarks):
        print(remark, file=sys.stderr)  # noqa: T201
    table = prediction.table()
    if out is None:
        pyarrow.csv.write_csv(table, sys.stdout.buffer)
    elif out.suffix.lower() == ".parquet":
        write_atomically(out, lambda path: pyarrow.parquet.write_table(table, path))
    else:
        write_atomically(out, lambda path: pyarrow.csv.write_csv(table, path))


def export(
    run: FinishedRun,
    out: Annotated[Path, typer.Option(help="The file: .csv, .parquet, .jsonl, or .json for Label Studio.")],
    form: Annotated[
        str, typer.Option("--format", help="csv, parquet, jsonl, label-studio or cleanlab.", metavar="FORMAT")
    ] = "csv",
    prefix: Annotated[
        str, typer.Option(help="For Label Studio: what stands before each image's path, as an address or folder.")
    ] = "",
    data: Moved = None,
    force: Force = False,
) -> None:
    """Write a run's labels for other tools: tables, Label Studio tasks with predictions, cleanlab's columns.

    Example: unflip export runs/first --format label-studio --out tasks.json
    """
    from unflip.api.export import export as export_task

    count = export_task(run, out, form, prefix=prefix, data=data, force=force)
    print(f"{count} labels as {form}: {out}")  # noqa: T201


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN...")],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default report.html in the run, or comparison.html here.")
    ] = None,
    data: Moved = None,
    force: Force = False,
) -> None:
    """Write a run's report.html anew, or a page that compares several runs.

    A page is one file, which opens without a network. Example: unflip report runs/plc runs/mddc --out compared.html
    """
    from unflip.api.report import report as report_task

    print(f"written: {report_task(runs, out, data=data, force=force)}")  # noqa: T201


_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def review(
    run: FinishedRun,
    data: Moved = None,
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
    ] = Order.LOWEST_QUALITY,
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
