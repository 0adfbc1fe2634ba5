"""Commands for finished runs: ``predict``, ``export``, ``report`` and ``review``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unflip.api.options import PREDICT
from unflip.cli.flags import FinishedRun, Force, Moved, takes
from unflip.review import Order

if TYPE_CHECKING:
    from unflip.review.sample import Cuts, SampleSummary


@takes(PREDICT)
def predict(
    run: FinishedRun,
    data: Annotated[str, typer.Option(help="New examples of the same kind as in training; no labels needed.")],
    out: Annotated[Path | None, typer.Option(help="Output file, .csv or .parquet; by default standard output.")] = None,
    part: Annotated[str | None, typer.Option(help="Set to predict; by default the first test set.")] = None,
    force: Force = False,
    **options: Any,
) -> None:
    """Predict classes and probabilities of new examples."""
    import pyarrow.csv

    from unflip.api.predict import predict as predict_task
    from unflip.progress import make_reporter
    from unflip.runs.labels import write_table
    from unflip.runs.layout import check_output

    if out is not None:
        check_output(out, (".csv", ".parquet"), force=force, inputs=[data])
    prediction = predict_task(run, data, part=part, track=make_reporter(quiet=out is None).track, **options)
    for remark in (*(f"skipped {image.id}: {image.reason}" for image in prediction.skipped), *prediction.remarks):
        print(remark, file=sys.stderr)  # noqa: T201
    table = prediction.table()
    if out is None:
        pyarrow.csv.write_csv(table, sys.stdout.buffer)
    else:
        write_table(out, table)


def export(
    run: FinishedRun,
    out: Annotated[Path, typer.Option(help="Output file: .csv, .parquet, .jsonl, or .json for Label Studio.")],
    form: Annotated[str, typer.Option("--format", help="csv, parquet, jsonl, label-studio or cleanlab.")] = "csv",
    prefix: Annotated[str, typer.Option(help="Label Studio: URL or folder before each image path.")] = "",
    data: Moved = None,
    force: Force = False,
) -> None:
    """Export labels as a table, or for Label Studio or cleanlab.

    Example: unflip export runs/first --format label-studio --out tasks.json
    """
    from unflip.api.export import export as export_task

    count = export_task(run, out, form, prefix=prefix, data=data, force=force)
    print(f"{count:,} labels: {out}")  # noqa: T201


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN...")],
    out: Annotated[Path | None, typer.Option(help="Page; by default RUN/report.html or comparison.html.")] = None,
    data: Moved = None,
    force: Force = False,
) -> None:
    """Write the HTML report of a run, or compare several runs.

    Example: unflip report runs/plc runs/mddc --out comparison.html
    """
    from unflip.api.report import report as report_task

    print(f"Report: {report_task(runs, out, data=data, force=force)}")  # noqa: T201


def review(
    run: FinishedRun,
    data: Moved = None,
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.", min=0, max=65535)] = 0,
    host: Annotated[str, typer.Option(help="Address; other machines can reach any but the default.")] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    reviewer: Annotated[str | None, typer.Option(help="Reviewer name; by default your login name.")] = None,
    order: Annotated[Order, typer.Option(help="Initial order of the examples.")] = Order.LOWEST_QUALITY,
    export: Annotated[Path | None, typer.Option(help="Write the reviewed labels to this .csv file and exit.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Print what a sample says so far, and exit.")] = False,
    force: Force = False,
) -> None:
    """Review label issues in the browser.

    Example: unflip review runs/first
    """
    from unflip.api.review import export_review, review_summary
    from unflip.api.review import review as review_task

    if summary:
        print(_of_sample(*review_summary(run)))  # noqa: T201
        return
    if export is not None:
        count = export_review(run, export, force=force)
        print(f"{count:,} reviewed examples: {export}")  # noqa: T201
        return

    def on_ready(address: str) -> None:
        print(f"review: {address}\nPress Ctrl+C to stop. Decisions are saved as you make them.", flush=True)  # noqa: T201
        if host not in ("127.0.0.1", "localhost", "::1"):
            print("Warning: other machines can reach this page, and the connection is not encrypted.", flush=True)  # noqa: T201
        if not no_browser:
            import webbrowser

            webbrowser.open(address)

    count = review_task(run, data=data, host=host, port=port, reviewer=reviewer, order=order, on_ready=on_ready)
    print(f"{count:,} reviewed examples. Export them: unflip review {run} --export reviewed.csv")  # noqa: T201


def _of_sample(summary: "SampleSummary", cuts: "Cuts") -> str:
    """Return what a reviewed sample says: wrong labels, precision of the list, and where to cut it."""
    lines = [str(summary)]
    if summary.wrong is not None:
        sizes = [size for size in (10, 100, 1_000, 10_000, 100_000, 1_000_000) if size < summary.total]
        parts = [f"{cuts.precision[size - 1]:.0%} of the first {size:,}" for size in sizes]
        lines.append(f"  lowest quality first, wrong are {', '.join([*parts, f'{cuts.precision[-1]:.1%} of all'])}")
        lines.append(
            f"  most labels are right if the first {cuts.best:,} are changed (quality up to {cuts.threshold:.1%})"
        )
    return "\n".join(lines)
