"""``unflip predict``: write a table of predictions."""

import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet

from unflip.errors import ConfigError
from unflip.files import write_atomically
from unflip.training.predict import predict


def run_predict(run: Path, data: str, out: Path | None, *, part: str | None, skip_broken: bool, device: str) -> None:
    """Predict and write to ``out``, or to standard output; name images that were left out."""
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {out}: cannot write '{out.suffix}'; name a .csv or .parquet file")
    prediction = predict(run, data, part=part, skip_broken=skip_broken, device=device)
    for image in prediction.skipped:
        print(f"left out {image.id}: {image.reason}", file=sys.stderr)  # noqa: T201
    table = prediction.table()
    if out is None:
        pyarrow.csv.write_csv(table, sys.stdout.buffer)
    elif out.suffix == ".parquet":
        write_atomically(out, lambda path: pyarrow.parquet.write_table(table, path))
    else:
        write_atomically(out, lambda path: pyarrow.csv.write_csv(table, path))
