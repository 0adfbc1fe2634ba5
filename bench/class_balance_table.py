"""How much of what calibration gains is balance between classes: test accuracy as it is, and with balanced predictions.

    UNFLIP_DATA=FOLDER python bench/class_balance_table.py docs/results/class-balance.jsonl --seeds 0

PMD noise makes some classes more frequent among the labels than others, a network learns that, and calibration draws
the same number of features from every class. To measure that, predictions are balanced afterwards by weights w_c with

    mean_i q_ic = 1 / k    for    q_ic = w_c p_ic / sum_j w_j p_ij

over the test examples, found by dividing each w_c by k mean_i q_ic again and again. This uses that classes are equally
frequent in the test set, and no test label. A line of the file is one run; runs that are in it are not run again.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from features_table import PMD, TAKE, files

METHODS = ("standard", "plc", "mddc", "cddc")


def balanced(probs: np.ndarray) -> np.ndarray:
    """Weight the classes of ``probs`` (n, k) such that all are equally probable on average."""
    for _ in range(100):
        probs = probs / probs.mean(0)
        probs = probs / probs.sum(1, keepdims=True)
    return probs


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    import torch

    import unflip

    torch.set_num_threads(1)
    data, labels, _ = files(task["row"])
    with np.load(data) as content:
        truth = content["test_labels"]
    with tempfile.TemporaryDirectory() as name:
        run = unflip.train(
            data, Path(name) / "run", labels=labels, take=TAKE, method=task["method"], preset="features",
            seed=task["seed"], select="last", device="cpu", threads=1,
        )  # fmt: skip
        probs = np.asarray(unflip.predict(run, data, device="cpu").probs)
        given = run.labels()["given"].to_numpy()
    counts = np.bincount(given, minlength=probs.shape[1])
    return task | {
        "test": float((probs.argmax(1) == truth).mean()),
        "balanced": float((balanced(probs).argmax(1) == truth).mean()),
        "least_given": int(counts.min()),
        "most_given": int(counts.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    out = arguments.out
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    tasks = [{"row": row, "method": method, "seed": seed} for seed in seeds for row in PMD for method in METHODS]
    missing = [task for task in tasks if not any(task.items() <= line.items() for line in done)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for line in pool.imap(run_one, missing):
            done.append(line)
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print("| noise | given labels a class | " + " | ".join(METHODS) + " |")
    print("| --- | --- |" + " --- |" * len(METHODS))
    for row in PMD:
        lines = [line for line in done if line["row"] == row]
        cells = []
        for method in METHODS:
            own = [line for line in lines if line["method"] == method]
            cells.append(
                " / ".join(f"{100 * statistics.mean(line[key] for line in own):.2f}" for key in ("test", "balanced"))
            )
        print(f"| {row} | {lines[0]['least_given']:,} to {lines[0]['most_given']:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
