"""``unflip predict``: a table of predictions."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from unflip.cli.flags import Device, FinishedRun, Force


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
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out images that cannot be read, and list them.")
    ] = False,
    weights: Annotated[
        Path | None, typer.Option(help="The backbone's weights, if the file that they came from lies elsewhere now.")
    ] = None,
    force: Force = False,
    device: Device = "auto",
) -> None:
    """Apply a run's model to new data of the kind it was trained on: id, label and probabilities, as a table."""
    import pyarrow.csv
    import pyarrow.parquet

    from unflip.api.predict import predict as predict_task
    from unflip.errors import ConfigError
    from unflip.files import write_atomically
    from unflip.progress import make_reporter
    from unflip.runs.targets import check_output

    if out is None and sys.__stdout__ is None:
        raise ConfigError("standard output is closed; name a file with --out")
    if out is not None:
        check_output(out, (".csv", ".parquet"), force=force, inputs=[data])
    prediction = predict_task(
        run,
        data,
        part=part,
        skip_broken=skip_broken,
        weights=weights,
        device=device,
        track=make_reporter(quiet=out is None).track,
    )
    for image in prediction.skipped:
        print(f"left out {image.id}: {image.reason}", file=sys.stderr)  # noqa: T201
    for remark in prediction.remarks:
        print(remark, file=sys.stderr)  # noqa: T201
    table = prediction.table()
    if out is None:
        pyarrow.csv.write_csv(table, sys.stdout.buffer)
    elif out.suffix.lower() == ".parquet":
        write_atomically(out, lambda path: pyarrow.parquet.write_table(table, path))
    else:
        write_atomically(out, lambda path: pyarrow.csv.write_csv(table, path))
