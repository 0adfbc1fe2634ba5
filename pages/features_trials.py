"""Trials of settings on the frozen CIFAR features, selected by the noisy labels of held-out examples (`val`).

    UNFLIP_DATA=FOLDER python pages/features_trials.py OUT.jsonl --methods plc,cddc --set plc.warmup=3

A line of OUT.jsonl is one run; runs that are in it already are not run again. Two processes, one thread each. What is
measured once the settings stand, with test accuracy, are the grids features/* (`unflip paper sweep`).
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

PMD = [f"{data} {kind} {level}" for data in ("cifar10", "cifar100") for kind in (1, 2, 3) for level in ("0.35", "0.70")]
HYBRID = [f"{data} 1 0.35 + {noise}" for data in ("cifar10", "cifar100") for noise in ("sym:0.30", "sym:0.60")]
TAKE = 45_000  # the published labels are of the first so many examples
ROWS = {
    "pmd": PMD,
    "hybrid": HYBRID,
    "tuning": [row for row in PMD if "0.35" in row] + HYBRID,  # what choices may look at, by noisy validation
    "all": PMD + HYBRID,
}


def files(row: str) -> tuple[Path, Path, str | None]:
    """Return the features and the labels of a row, and the noise that is added to them."""
    base, _, noise = row.partition(" + ")
    data, kind, level = base.split()
    folder = Path(os.environ["UNFLIP_DATA"])
    return folder / "features" / f"{data}.npz", folder / "pmd" / f"{data}-{kind}-{level}.npy", noise or None


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    import torch

    import unflip

    torch.set_num_threads(1)
    data, labels, noise = files(task["row"])
    with tempfile.TemporaryDirectory() as out:
        run = unflip.train(
            data,
            out,
            labels=labels,
            limit=TAKE,
            noise=noise,
            method=task["method"],
            preset="features",
            seed=task["seed"],
            select="last",
            settings=task["settings"],
            force=True,
            device="cpu",
            threads=1,
        )
        result = run.result
        last = run.metrics[-1]
    return task | {
        "test": result["test_accuracy"]["last"],
        "val": last["val_accuracy"],
        "labels": result["label_accuracy"]["current"],
        "labels_all": result["label_accuracy_all"]["current"],
        "auroc": result["quality_auroc"],
        "noise_rate_estimate": result["noise_rate_estimate"],
        "seconds": result["seconds"],
    }


def run_missing(
    out: Path, tasks: list[dict[str, Any]], run_one: Callable[[dict[str, Any]], dict[str, Any]], jobs: int
) -> list[dict[str, Any]]:
    """Run the tasks that have no line in ``out`` yet, append theirs, and return those of all tasks, in order."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    def found(task: dict[str, Any]) -> dict[str, Any] | None:
        return next((line for line in lines if task.items() <= line.items()), None)

    missing = [task for task in tasks if not found(task)]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, out.open("a") as file:
        for number, line in enumerate(pool.imap_unordered(run_one, missing), 1):
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{number}/{len(missing)}", file=sys.stderr)
    return [done for task in tasks if (done := found(task)) is not None]


def tables(results: list[dict[str, Any]], figure: str) -> Iterator[str]:
    columns = list(dict.fromkeys((r["method"], json.dumps(r["settings"])) for r in results))
    yield f"| {figure} | " + " | ".join(f"{m} {s if s != '[]' else ''}".strip() for m, s in columns) + " |"
    yield "| --- |" + " --- |" * len(columns)
    sums: dict[int, list[float]] = {}
    for row in dict.fromkeys(r["row"] for r in results):
        cells = []
        for i, column in enumerate(columns):
            values = [
                100 * r[figure]
                for r in results
                if r["row"] == row and (r["method"], json.dumps(r["settings"])) == column
            ]
            if values:
                sums.setdefault(i, []).append(statistics.mean(values))
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "")
        yield f"| {row} | " + " | ".join(cells) + " |"
    yield "| mean | " + " | ".join(f"{statistics.mean(sums[i]):.2f}" for i in range(len(columns))) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", default="standard,gce,sl,lrt,plc,mddc,cddc")
    parser.add_argument("--rows", default="tuning", help=f"{', '.join(ROWS)}, or rows with commas between them")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--figures", default="val")
    arguments = parser.parse_args()
    tasks = [
        {"row": row, "method": method, "seed": int(seed), "settings": arguments.settings}
        for seed in arguments.seeds.split(",")
        for row in ROWS.get(arguments.rows) or arguments.rows.split(",")
        for method in arguments.methods.split(",")
    ]
    results = run_missing(arguments.out, tasks, run_one, arguments.jobs)
    for figure in arguments.figures.split(","):
        print("\n".join(tables(results, figure)), end="\n\n")


if __name__ == "__main__":
    main()
