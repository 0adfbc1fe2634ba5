"""cleanlab around tuned logistic regression on the frozen CIFAR features, in the settings of the paper's Table 1.

    UNFLIP_DATA=FOLDER python pages/cleanlab_regression.py docs/results/cleanlab-regression.jsonl \\
        --page docs/results/unflip.md

Same split, noise and seeds as cleanlab_results.py. C is chosen by cross-validated likelihood of the given labels of
10,000 training examples of the first seed, once for each setting; figures and filters as in own_data_table.py. What is
in the file is not run again. --page fills the table, with `unflip` and cleanlab around the network beside it.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

import cleanlab_results
import marked
import own_data
import own_data_table

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WAY = "cleanlab, logistic regression"
SEEDS = (0, 1)
ROWS = 10_000  # with which C is chosen
FIGURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "test": lambda line: line["test_accuracy"]["selected"],
    "labels": lambda line: line["label_accuracy"]["current"],
    "auroc": lambda line: line["quality_auroc"],
}


@cache
def choose_strength(data: str, noise: str) -> float:
    """Return the C that is used in a setting."""
    prepared = cleanlab_results.prepare(cleanlab_results.settings()[f"cleanlab {data} {noise} {SEEDS[0]}"])
    rows = np.random.default_rng(0).permutation(len(prepared.given))[:ROWS]
    return own_data.choose_strength(prepared.inputs[rows], prepared.given[rows])


def run(point: Any) -> dict[str, Any]:
    """Return the figures of one setting and seed."""
    axes = point.axes
    prepared = cleanlab_results.prepare(point)
    strength = choose_strength(axes["data"], axes["noise"])
    problem = own_data.Problem(prepared.inputs, prepared.clean, prepared.test, prepared.test_labels)
    model = own_data.logistic_regression(strength, max_iter=1000)
    figures = own_data_table.run_cleanlab(model, problem, prepared.given, axes["seed"])
    return {"data": axes["data"], "noise": axes["noise"], "seed": axes["seed"], "way": WAY, "C": strength} | figures


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each setting: means over seeds of three figures, by `unflip` and both ways of cleanlab."""
    best = own_data_table.best_filters(results, WAY)
    stored = [
        json.loads(line)
        for name in ("features", "cleanlab")
        for line in (RESULTS / f"{name}.jsonl").read_text("utf-8").splitlines()
    ]
    names = ("unflip", "network", "regression")
    titles = {"test": "test", "labels": "labels", "auroc": "quality"}
    yield "| data | noise | " + " | ".join(f"{titles[figure]}: {name}" for figure in FIGURES for name in names) + " |"
    yield "| --- | --- |" + " --- |" * 9
    columns: list[list[float]] = [[] for _ in range(9)]
    for data, noise in dict.fromkeys((line["data"], line["noise"]) for line in results):
        here = [line for line in results if (line["data"], line["noise"]) == (data, noise)]
        seeds, values = {line["seed"] for line in here}, []
        for figure, read in FIGURES.items():
            for method in ("unflip", "cleanlab"):
                axes = [{"data": data, "noise": noise, "method": method, "seed": seed} for seed in sorted(seeds)]
                values.append(statistics.mean(read(line) for line in stored if line["axes"] in axes))
            values.append(
                statistics.mean(
                    line["filters"][best[figure]][figure] if figure in best else line[figure] for line in here
                )
            )
        for column, value in zip(columns, values, strict=True):
            column.append(100 * value)
        yield f"| {data} | {noise} | " + _cells([100 * value for value in values])
    yield "| mean | | " + _cells([statistics.mean(column) for column in columns])


def _cells(values: list[float]) -> str:
    """Return nine cells, the best of each three in bold."""
    tops = [max(values[start : start + 3]) for start in (0, 0, 0, 3, 3, 3, 6, 6, 6)]
    return " | ".join(f"**{v:.2f}**" if v == top else f"{v:.2f}" for v, top in zip(values, tops, strict=True)) + " |"


def fill(page: str, results: list[dict[str, Any]]) -> str:
    """Return the page with both tables filled from the results."""
    page = marked.fill(page, "cleanlab filters", lambda _: own_data_table.filter_table(results, ("unflip", WAY)))
    return marked.fill(page, "cleanlab regression", lambda _: table(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    done = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    known = {(line["data"], line["noise"], line["seed"]) for line in done}
    points = [point for point in cleanlab_results.settings().values() if "+" not in point.axes["noise"]]
    for point in sorted((p for p in points if p.axes["seed"] in SEEDS), key=lambda point: point.axes["seed"]):
        if (point.axes["data"], point.axes["noise"], point.axes["seed"]) not in known:
            done.append(run(point))
            with arguments.out.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
            print(done[-1], file=sys.stderr)
    if arguments.page is None:
        print("\n".join(table(done)))
        return
    arguments.page.write_text(fill(arguments.page.read_text("utf-8"), done), "utf-8")


if __name__ == "__main__":
    main()
