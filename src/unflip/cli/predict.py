"""``unflip predict``: write a table of predictions."""

import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet

from unflip.errors import ConfigError
from unflip.files import write_atomically
from unflip.training.predict import predict


def run_predict(run: Path, data: str, out: Path | None, part: str | None, device: str) -> None:
    """Predict and write to ``out``, or to standard output."""
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {out}: cannot write '{out.suffix}'; name a .csv or .parquet file")
    table = predict(run, data, part=part, device=device).table()
    if out is None:
        pyarrow.csv.write_csv(table, sys.stdout.buffer)
    elif out.suffix == ".parquet":
        write_atomically(out, lambda path: pyarrow.parquet.write_table(table, path))
    else:
        write_atomically(out, lambda path: pyarrow.csv.write_csv(table, path))
