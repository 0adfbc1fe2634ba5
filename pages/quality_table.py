"""Is quality a probability? Reliability of label quality where the true labels are known.

    UNFLIP_DATA=FOLDER python pages/quality_table.py docs/results/quality.jsonl --page docs/audit.md

- `grid`: every setting of the grids features/cifar10 and features/cifar100, `unflip` with three seeds; plc, mddc, cddc
  and dividemix with one seed where 35 % of the labels are wrong; run as the grids are
- `small`: `UnflipClassifier` on small data, nearly clean data among it

A line of the file is one run: `ece`, the expected calibration error in 20 bins of equally many training examples,
`bins`, mean quality and share of right labels of each, `wrong` and `expected`, the true and the expected share of wrong
labels, `first`, of the first 100, 1,000 and 10,000 of the list the expected and the true number of wrong labels,
`most`, how many of the list are said to hold 90 % of the wrong labels, and `held`, how many they do hold. Runs that are
in the file are not run again. --page fills the tables of that page.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from features_trials import TAKE, files, run_missing

BINS = 20
DATA = ("cifar10", "cifar100")
KINDS = {"1": "I", "2": "II", "3": "III"}
PURE = [f"{data} {kind} {level}" for data in DATA for kind in KINDS for level in ("0.35", "0.70")]
HYBRID = [
    f"{data} {kind} 0.35 + {noise}"
    for data in DATA
    for kind in KINDS
    for noise in ("sym:0.30", "sym:0.60", "asym:0.30")
]
OTHERS = ("plc", "mddc", "cddc", "dividemix")
SETS = ("digits", "breast cancer", "wine", "cifar10")
NOISES = ("sym:0.01", "sym:0.05", "sym:0.2", "asym:0.05", "asym:0.2", "pmd1:0.05", "pmd1:0.2")
GROUPS = {
    "35 %": [row for row in PURE if "0.35" in row],
    "35 % and symmetric": [row for row in HYBRID if "+ sym" in row],
    "35 % and asymmetric": [row for row in HYBRID if "asym" in row],
    "70 %": [row for row in PURE if "0.70" in row],
}


def figures(quality: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return what a line holds of given labels, from the most doubtful on."""
    from unflip.runs.labels import expect_errors

    cells = list(zip(np.array_split(quality, BINS), np.array_split(right, BINS), strict=True))
    pairs = [(float(said.mean()), float(true.mean())) for said, true in cells]
    sizes = [len(said) for said, _ in cells]
    expected = expect_errors(quality)
    return {
        "ece": sum(size * abs(said - true) for size, (said, true) in zip(sizes, pairs, strict=True)) / len(quality),
        "bins": [[round(value, 4) for value in pair] for pair in pairs],
        "wrong": float(1 - right.mean()),
        "expected": float(1 - quality.mean()),
        "first": [[size, round(said, 1), int((~right[:size]).sum())] for size, said in expected.first],
        "most": expected.most,
        "held": float((~right[: expected.most]).sum() / max(1, (~right).sum())),
    }


def grid(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    import unflip
    from unflip.runs.labels import most_doubtful_first

    data, labels, noise = files(task["row"])
    more: dict[str, Any] = {"noise": noise} if noise else {}
    settings: dict[str, Any] = {"data.val_fraction": 0.1}
    if noise and noise.startswith("asym"):
        settings["noise.class_map"] = task["row"].split()[0]
    run = unflip.train(
        data, folder / "run", labels=labels, take=TAKE, method=task["method"], preset="features", seed=task["seed"],
        select="last", device="cpu", threads=1, settings=settings, **more,
    )  # fmt: skip
    table = run.labels()
    with np.load(data) as content:
        right = table["given"].to_numpy() == content["train_labels"][:TAKE]
    order = most_doubtful_first(table)
    order = order[np.array(table["split"].to_pylist())[order] == "train"]
    return figures(table["quality"].to_numpy().astype(float)[order], right[order]) | {
        "auroc": run.result["quality_auroc"]
    }


def small(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    from own_data import load, make_noisy
    from unflip import find_label_errors

    problem = load(task["data"], task["seed"])
    given = make_noisy(task["data"], problem, task["noise"], task["seed"])
    table = find_label_errors(problem.train, given, random_state=task["seed"])
    table = table.slice(0, len(table) - table["quality"].null_count)
    index, quality = table["index"].to_numpy(), table["quality"].to_numpy().astype(float)
    right, suspect = (given == problem.clean)[index], table["is_error"].to_numpy()
    doubted = suspect & (quality < 0.5)
    return figures(quality, right) | {
        "suspects": [int(suspect.sum()), int((suspect & ~right).sum())],
        "doubted": [int(doubted.sum()), int((doubted & ~right).sum())],
        "count": len(right),
    }


RUNS = {"grid": grid, "small": small}


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        return task | RUNS[task["experiment"]](task, Path(name))


def tasks() -> Iterator[dict[str, Any]]:
    for seed in range(3):
        for data in SETS:
            for noise in NOISES:
                yield {"experiment": "small", "data": data, "noise": noise, "seed": seed}
    for method in OTHERS:
        for row in GROUPS["35 %"]:
            yield {"experiment": "grid", "row": row, "method": method, "seed": 0}
    for seed in range(3):
        for row in PURE + HYBRID:
            yield {"experiment": "grid", "row": row, "method": "unflip", "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    run_missing(arguments.out, list(tasks()), run_one, arguments.jobs)


if __name__ == "__main__":
    main()
