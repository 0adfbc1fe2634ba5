"""Commands for finished runs: ``apply``, ``check``, ``predict``, ``export``, ``report`` and ``review``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unflip.api.options import APPLY, PREDICT
from unflip.cli.flags import FinishedRun, Force, Moved, takes
from unflip.errors import ConfigError, count_of
from unflip.review import Order

if TYPE_CHECKING:
    from unflip.review.sample import Cuts, SampleSummary


@takes(APPLY)
def apply(
    run: FinishedRun,
    out: Annotated[Path, typer.Option(help="File or folder to write, in the format of the data.")],
    data: Moved = None,
    force: Force = False,
    **options: Any,
) -> None:
    """Write your data with corrected labels; reviewed labels take precedence.

    The original data is never changed. Files in class folders are linked, not copied. changes.csv lists every change.

    Example: unflip apply runs/photos --out photos-fixed
    """
    from unflip.api.apply import apply as apply_task

    done = apply_task(run, out, data=data, force=force, **options)
    lines = [f"{count_of(done.relabeled, 'label')} changed, {count_of(done.dropped, 'example')} dropped: {done.data}"]
    lines += [f"  {count_of(done.missing, 'change')} not used: no such example in the data"] if done.missing else []
    print("\n".join([*lines, f"Changes: {done.listed}"]))  # noqa: T201


@takes(PREDICT)
def check(
    run: FinishedRun,
    data: Annotated[str, typer.Option(help="Labeled data of the same kind as in training.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default a temporary folder.")] = None,
    max_wrong: Annotated[
        str | None, typer.Option(help="Maximum share of wrong labels, such as 2%; above it, the exit code is 1.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run or of an earlier check; its share of wrong labels is added to --max-wrong.",
            metavar="RUN",
        ),
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="Label column; by default that of the run.")] = None,
    force: Force = False,
    **options: Any,
) -> None:
    """Score the labels of new data with the model of a finished run, without training.

    Writes the list of label issues and a report. The exit code is 1 if more labels are wrong than --max-wrong allows.

    Example: unflip check runs/photos --data new-photos --max-wrong 2%
    """
    from unflip.api.check import check as check_task
    from unflip.progress import make_reporter

    done = check_task(
        run, data, out, max_wrong=max_wrong, baseline=baseline, label_column=label_column, force=force,
        track=make_reporter(quiet=False).track, **options,
    )  # fmt: skip
    print(f"{done.summary()}\nReport: {done.report_path}")  # noqa: T201
    if done.limit is not None:
        verdict = "within" if done.passed else "above"
        print(f"{done.wrong:.1%} wrong labels, {verdict} the limit of {done.limit:.1%}")  # noqa: T201
    if not done.passed:
        raise typer.Exit(1)


@takes(PREDICT)
def predict(
    run: FinishedRun,
    data: Annotated[str, typer.Option(help="New examples of the same kind as in training; labels are optional.")],
    out: Annotated[Path | None, typer.Option(help="Output file, .csv or .parquet; by default standard output.")] = None,
    part: Annotated[str | None, typer.Option(help="Split to predict; by default the first test set.")] = None,
    force: Force = False,
    **options: Any,
) -> None:
    """Predict classes and probabilities for new examples."""
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
    form: Annotated[
        str | None,
        typer.Option(
            "--format", help="csv, parquet, jsonl, label-studio, argilla or fiftyone; by default inferred from --out."
        ),
    ] = None,
    all_examples: Annotated[
        bool, typer.Option("--all", help="Label Studio, Argilla: all examples, not only label issues.")
    ] = False,
    prefix: Annotated[
        str, typer.Option(help="Label Studio, Argilla: URL or folder to prepend to each image path.")
    ] = "",
    data: Moved = None,
    force: Force = False,
) -> None:
    """Export labels as a table, or for Label Studio, Argilla or FiftyOne.

    Example: unflip export runs/first --out tasks.json
    """
    from unflip.api.export import export as export_task

    count = export_task(run, out, form, all_examples=all_examples, prefix=prefix, data=data, force=force)
    print(f"{count_of(count, 'label')}: {out}")  # noqa: T201


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN")],
    out: Annotated[Path | None, typer.Option(help="Report file; by default RUN/report.html.")] = None,
    data: Moved = None,
    force: Force = False,
) -> None:
    """Write the HTML report of a run, or print a table that compares several runs.

    Example: unflip report runs/plc runs/mddc
    """
    from unflip.api.report import compare
    from unflip.api.report import report as report_task

    if len(runs) == 1:
        print(f"Report: {report_task(runs[0], out, data=data, force=force)}")  # noqa: T201
    elif out is not None or data is not None:
        raise ConfigError("--out and --data are for the report of a single run")
    else:
        print(compare(runs))  # noqa: T201


def review(
    run: FinishedRun,
    data: Moved = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.", min=0, max=65535)] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other machines cannot reach the default.")
    ] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    reviewer: Annotated[str | None, typer.Option(help="Reviewer name; by default your login name.")] = None,
    order: Annotated[Order, typer.Option(help="Initial order of the examples.")] = Order.LOWEST_QUALITY,
    export: Annotated[Path | None, typer.Option(help="Write the reviewed labels to this .csv file and exit.")] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Estimate from the reviewed sample how many labels are wrong, and exit.")
    ] = False,
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
        print(f"{count_of(count, 'reviewed example')}: {export}")  # noqa: T201
        return

    def on_ready(address: str) -> None:
        print(f"review: {address}\nPress Ctrl+C to stop. Decisions are saved as you make them.", flush=True)  # noqa: T201
        if host not in ("127.0.0.1", "localhost", "::1"):
            print("Warning: other machines can reach this page, and the connection is not encrypted.", flush=True)  # noqa: T201
        if not no_browser:
            import webbrowser

            webbrowser.open(address)

    count = review_task(run, data=data, host=host, port=port, reviewer=reviewer, order=order, on_ready=on_ready)
    print(f"{count_of(count, 'reviewed example')}. Export them: unflip review {run} --export reviewed.csv")  # noqa: T201


def _of_sample(summary: "SampleSummary", cuts: "Cuts") -> str:
    """Return what a reviewed sample says: wrong labels, precision of the list, and where to cut it."""
    lines = [str(summary)]
    if summary.wrong is not None:
        sizes = [size for size in (10, 100, 1_000, 10_000, 100_000, 1_000_000) if size < summary.total]
        parts = [f"{cuts.precision[size - 1]:.0%} of the first {size:,}" for size in sizes]
        lines.append(f"  lowest quality first: {', '.join([*parts, f'{cuts.precision[-1]:.1%} of all'])} are wrong")
        lines.append(f"  the first {cuts.best:,} are more likely wrong than right (quality up to {cuts.threshold:.1%})")
    return "\n".join(lines)
