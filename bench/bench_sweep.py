"""A sweep of one-second cells in two jobs against the same runs in a plain pool of two processes; at most 1.15 times.

Both start their processes, import what they need and write the same run folders.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from limits import Limits
from unflip.reproduce.sweep import sweep

ROUNDS = 3
CELLS = 24
JOBS = 2
LIMIT = 1.15  # the sweep by the plain pool: at most
GRID = """# one-second cells
[config]
preset = "demo"
data = "digits"
method = "plc"
epochs = {epochs}
[axes]
seed = {seeds}
"""


def run_one(task: tuple[int, int, Path]) -> None:
    from unflip import train

    seed, epochs, out = task
    train(
        "digits", out / str(seed), method="plc", preset="demo", epochs=epochs, seed=seed, device="cpu", threads=1
    )  # fmt: skip


def pool_seconds(epochs: int, out: Path) -> float:
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(JOBS) as pool:
        pool.map(run_one, [(seed, epochs, out) for seed in range(CELLS)], chunksize=1)
    return time.perf_counter() - started


def sweep_seconds(epochs: int, out: Path) -> float:
    grid = out / "grid.toml"
    grid.write_text(GRID.format(epochs=epochs, seeds=list(range(CELLS))))
    started = time.perf_counter()
    progress = sweep([str(grid)], out / "sweep", device="cpu", data_root=out, jobs=JOBS)
    seconds = time.perf_counter() - started
    assert len(progress.seconds) == CELLS
    return seconds


def epochs_of_a_second() -> int:
    """How many epochs take about a second on this machine, everything that a run writes included."""
    with tempfile.TemporaryDirectory() as out:
        run_one((0, 5, Path(out)))  # loads what the first run loads
        started = time.perf_counter()
        run_one((1, 20, Path(out)))
        return max(1, round(20 / (time.perf_counter() - started)))


def main() -> None:
    epochs = epochs_of_a_second()
    pairs = []
    for _ in range(ROUNDS):  # in turns, so that both see the same machine
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            pairs.append((sweep_seconds(epochs, Path(one)), pool_seconds(epochs, Path(other))))
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"{CELLS} cells of {epochs} epochs in {JOBS} jobs: sweep {ours:.1f} s, plain pool {theirs:.1f} s, "
        f"{ROUNDS} pairs"
    )
    limits = Limits()
    limits.at_most("sweep by plain pool", ratio, LIMIT)
    limits.finish()


if __name__ == "__main__":
    main()
