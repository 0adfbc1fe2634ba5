"""How the cost of `unflip` grows: time and memory per example by examples, classes and features; about an hour.

    python bench/bench_growth.py [--last]

Data as in bench_ensemble.py, each run in a process of its own: three epochs, one thread, features mapped from disk.
Memory is the peak beyond that of the imports; it counts the pages of the mapped file. The last size has limits of its
own, a tenth of its labels is wrong, and the fractions of right labels are printed, too; ``--last`` measures it alone.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from bench_ensemble import measure, write
from limits import Limits

SIZES = (
    (10_000, 256, 100),
    (100_000, 256, 100),
    (1_000_000, 256, 100),
    (100_000, 256, 10),
    (100_000, 256, 1000),
    (100_000, 64, 100),
    (100_000, 1024, 100),
    (100_000, 1280, 14),
    (1_000_000, 1280, 14),
    (100_000, 1280, 1000),
)
"""Examples, features, classes."""
LAST = (200_000, 128, 5000)
LAST_STD, LAST_NOISE_RATE = 2.0, 0.1
MOST = 1.5  # times as much per example with ten times as many
MINUTES, GB = 20, 8  # that the last may take, on one core


def main() -> None:
    limits, found = Limits(), {}
    print("| examples | features | classes | seconds | ms per example | peak GB | kB per example |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for size in (LAST,) if "--last" in sys.argv else (*SIZES, LAST):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            noise = (LAST_STD, LAST_NOISE_RATE) if size == LAST else ()
            figures = measure(write(folder / "data", *size, *noise), folder / "run", "unflip")
            labels, clean = pq.read_table(folder / "run" / "labels.parquet"), np.load(folder / "clean.npy")
        count, seconds, beyond = size[0], figures["seconds"], figures["gb"] - figures["imported"]
        found[size] = seconds / count * 1e3, beyond / count * 2**20
        row = (*(f"{number:,}" for number in size), f"{seconds:.1f}", f"{found[size][0]:.3f}")
        print("|", " | ".join((*row, f"{figures['gb']:.2f}", f"{found[size][1]:.2f}")), "|", flush=True)
    if len(found) > 1:
        before, after = found[100_000, 256, 100], found[1_000_000, 256, 100]
        for what, few, many in zip(("time", "memory"), before, after, strict=True):
            limits.at_most(f"{what} per example of 1,000,000 by that of 100,000", many / few, MOST, "{:.2f}")
    right = {name: (labels[f"{name}_label"].to_numpy() == clean).mean() for name in ("given", "current")}
    print(f"labels right with 5,000 classes: {right['given']:.4f} given, {right['current']:.4f} current")
    limits.at_most("minutes with 5,000 classes", figures["seconds"] / 60, MINUTES, "{:.1f}")
    limits.at_most("GB with 5,000 classes", figures["gb"], GB, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main()
