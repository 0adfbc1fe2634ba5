"""How much of what calibration gains is balance between classes: test accuracy as it is, and with balanced predictions.

    UNFLIP_DATA=FOLDER python pages/class_balance_table.py docs/results/class-balance.jsonl

PMD noise makes some classes more frequent among the labels than others, a network learns that, and calibration draws
the same number of features from every class. To measure that, predictions are balanced afterwards by weights w_c with

    mean_i q_ic = 1 / k    for    q_ic = w_c p_ic / sum_j w_j p_ij

over the test examples, found by dividing each w_c by k mean_i q_ic again and again. This uses that classes are equally
frequent in the test set, and no test label. A line of the file is one run; runs that are in it are not run again.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from features_trials import PMD, TAKE, files, run_missing

ACCURACIES = ("test", "balanced")
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
            data, Path(name) / "run", labels=labels, limit=TAKE, method=task["method"], preset="features",
            seed=task["seed"], select="last", device="cpu", threads=1,
        )  # fmt: skip
        probs = np.asarray(unflip.predict(run, data, device="cpu").probs)
        given = run.labels()["given_label"].to_numpy()
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
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    tasks = [{"row": row, "method": method, "seed": seed} for seed in seeds for row in PMD for method in METHODS]
    done = run_missing(arguments.out, tasks, run_one, arguments.jobs)
    print("| noise | given labels a class | " + " | ".join(METHODS) + " |")
    print("| --- | --- |" + " --- |" * len(METHODS))
    means: dict[tuple[str, str], list[float]] = {(method, key): [] for method in METHODS for key in ACCURACIES}
    for row in PMD:
        lines = [line for line in done if line["row"] == row]
        for method, key in means:
            means[method, key].append(100 * statistics.mean(line[key] for line in lines if line["method"] == method))
        given = f"{lines[0]['least_given']:,} to {lines[0]['most_given']:,}"
        print(f"| {row} | {given} | " + " | ".join(_cell(means, method, -1) for method in METHODS) + " |")
    print("| mean | | " + " | ".join(_cell(means, method, None) for method in METHODS) + " |")


def _cell(means: dict[tuple[str, str], list[float]], method: str, place: int | None) -> str:
    values = [means[method, key] for key in ACCURACIES]
    return " / ".join(f"{statistics.mean(v) if place is None else v[place]:.2f}" for v in values)


if __name__ == "__main__":
    main()
