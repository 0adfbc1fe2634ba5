"""Fit and encode 1,000,000 rows of 20 columns with gaps; processor time at most 3 times scikit-learn's transformers."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from limits import Limits
from unflip.data.columns import Table
from unflip.encoders.table import TableEncoder

ROWS, GAPS = 1_000_000, 0.05
RATIO = 3.0  # processor time by that of scikit-learn's ColumnTransformer on a pandas frame of the same cells: at most
MEMORY = 128.0  # MB beyond input and output at the peak: a block of rows, and a few copies of one column: at most
ROUNDS = 3
NUMBERS, CATEGORIES, DATES, BOOLEANS = (range(first, last) for first, last in ((0, 10), (10, 15), (15, 17), (17, 20)))


def columns() -> dict[str, pa.Array]:
    """Return 20 columns with gaps: 6 of floats, 4 of integers, 5 of names, 2 of dates, 3 of booleans."""
    draw = np.random.default_rng(0)
    values: list[Any] = [draw.normal(size=ROWS) for _ in range(6)]
    values += [draw.integers(0, 1000, ROWS) for _ in range(4)]
    for many in (3, 5, 10, 20, 40):
        names = pa.array([f"name {i}" for i in range(many)])
        values.append(names.take(pa.array(draw.integers(0, many, ROWS))))
    values += [draw.integers(0, 10**9, ROWS).astype("datetime64[s]") for _ in range(2)]
    values += [draw.random(ROWS) < 0.3 for _ in range(3)]
    gap = pa.scalar(None)
    made = {}
    for place, value in enumerate(values):
        array = pa.array(value)
        gaps = pa.array(draw.random(ROWS) < GAPS)
        made[f"c{place}"] = pa.compute.if_else(gaps, gap.cast(array.type), array)
    return made


def transformers() -> Any:
    """Return what scikit-learn offers for the same: medians, indicators, scales and one-hot features."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    booleans = SimpleImputer(strategy="most_frequent", add_indicator=True)
    names = OneHotEncoder(sparse_output=False, dtype=np.float32, handle_unknown="ignore")
    return ColumnTransformer(
        [
            ("numbers", numbers, [f"c{i}" for i in (*NUMBERS, *DATES)]),
            ("names", names, [f"c{i}" for i in CATEGORIES]),
            ("booleans", booleans, [f"c{i}" for i in BOOLEANS]),
        ]
    )


def frame(table: pa.Table) -> Any:
    """Return the table as pandas has it, dates and booleans as the numbers that scikit-learn wants."""
    made = table.to_pandas()
    for i in DATES:
        name = f"c{i}"
        made[name] = made[name].astype("int64").where(made[name].notna(), np.nan).astype("float64")
    for i in BOOLEANS:
        made[f"c{i}"] = made[f"c{i}"].astype("float64")
    return made


def processor_time(work: Callable[[Any], Any], data: Any) -> tuple[float, Any]:
    started = time.process_time()
    result = work(data)
    return time.process_time() - started, result


def memory(kind: str) -> float:
    """Return VmRSS or VmHWM of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def measure_memory() -> None:
    table = Table(pa.table(columns()))
    TableEncoder.fit(table[:1000]).encode(table[:1000])  # load what is loaded at first use
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = memory("VmRSS")
    made = TableEncoder.fit(table).encode(table)
    output = made.features.nbytes / 2**20
    print(f"input {table.table.nbytes / 2**20:.0f} MB, output {output:.0f} MB of {made.features.shape}")
    limits = Limits()
    limits.at_most("peak memory beyond input and output, MB", memory("VmHWM") - before - output, MEMORY, "{:.0f}")
    limits.finish()


def measure_time() -> None:
    cells = Table(pa.table(columns()))
    data = frame(cells.table)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        seconds, fitted = processor_time(TableEncoder.fit, cells)
        encoded, made = processor_time(fitted.encode, cells)
        ours.append(seconds + encoded)
        print(f"unflip: fit {seconds:.2f} s, encode {encoded:.2f} s, features {made.features.shape}", flush=True)
        del made
        seconds, made = processor_time(transformers().fit_transform, data)
        theirs.append(seconds)
        print(f"scikit-learn: {seconds:.2f} s, features {made.shape}", flush=True)
        del made
    limits = Limits()
    limits.at_most("processor time by scikit-learn's", min(ours) / min(theirs), RATIO, "{:.2f}")
    limits.finish()


def main() -> None:
    # The memory in its own process, before anything else has grown it.
    code = subprocess.run([sys.executable, __file__, "memory"], check=False).returncode
    measure_time()
    sys.exit(code)


if __name__ == "__main__":
    measure_memory() if sys.argv[1:] == ["memory"] else main()
