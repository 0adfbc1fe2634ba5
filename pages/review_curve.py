"""Value of reviewed labels: correct labels and test accuracy by the number of decisions and the order of review.

    UNFLIP_DATA=FOLDER python pages/review_curve.py docs/results/review-curve.jsonl --page docs/results/review.md \
      --figure docs/images/review-curve.png

Digits (three quarters of them, split by seed) and the first 5,000 CIFAR-10 features under PMD noise of type I, and
BANKING77 (its own split, texts by `wordllama`), of which a fifth of each class has the label of the most similar one.
`unflip clean` scores the labels; the first 50, 100, 200 and 400 examples in an order get their true label;
`unflip clean --reviewed` trains again with these. The order is computed once, before the first decision. A line of the
file is a data set, an order and a seed: `given`, the number of correct given labels, and by number of decisions
`right`, the number of correct labels including the reviewed ones, and `test`, the test accuracy. Lines in the file are
not computed again.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

import marked
import own_data
import raw_data_table
from features_trials import run_missing

DATA = {"digits": "pmd1:0.35", "BANKING77": "similar:0.2", "cifar10": "pmd1:0.35"}
NAMES = {"digits": "digits, PMD 35 %", "BANKING77": "BANKING77, 20 % similar", "cifar10": "CIFAR-10, PMD 35 %"}
ORDERS = {"random": "at random", "lowest-quality": "lowest quality first", "informative": "most informative first"}
DECISIONS = (0, 50, 100, 200, 400)
SEEDS = range(3)


def make(data: str, seed: int) -> tuple[own_data.Problem, np.ndarray[Any, Any]]:
    """Return a data set and noisy labels of its training examples."""
    source: Any = raw_data_table if data == "BANKING77" else own_data
    problem = source.load(data, seed)
    return problem, source.make_noisy(data, problem, DATA[data], seed)


def clean(data: Path, out: Path, seed: int, reviewed: Path | None = None) -> Any:
    """Return the run of `unflip clean` without the other checks."""
    import unflip
    from unflip.issues import checks

    return unflip.clean(
        data, out, reviewed=reviewed, seed=seed, skip_check=tuple(checks.names()), threads=1, device="cpu", quiet=True
    )


def arrange(run: Any, order: str, seed: int) -> list[int]:
    """Return all examples of a run in the order of review."""
    from unflip.review.examples import most_informative_first
    from unflip.runs.labels import lowest_quality_first

    table = run.labels()
    if order == "random":
        rows = np.random.default_rng(seed).permutation(len(table))
    else:
        rows = lowest_quality_first(table) if order == "lowest-quality" else most_informative_first(table, run.features)
    return [int(row) for row in rows]


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    problem, given = make(task["data"], task["seed"])
    right, test = [], []
    order_of_review: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(
            folder / "data.npz", train=problem.train, train_labels=given, test=problem.test,
            test_labels=problem.test_labels,
        )  # fmt: skip
        for count in DECISIONS:
            reviewed = None
            if count:
                reviewed = folder / "reviewed.csv"
                rows = "".join(f"{index},{problem.clean[index]}\n" for index in order_of_review[:count])
                reviewed.write_text(f"index,label\n{rows}", "utf-8")
            run = clean(folder / "data.npz", folder / f"after {count}", task["seed"], reviewed)
            order_of_review = order_of_review or arrange(run, task["order"], task["seed"])
            right.append(int((run.labels()["current_label"].to_numpy() == problem.clean).sum()))
            test.append(run.result["test_accuracy"]["last"])
    return task | {
        "count": len(given), "given": int((given == problem.clean).sum()), "decisions": list(DECISIONS),
        "right": right, "test": [round(value, 4) for value in test],
    }  # fmt: skip


def tasks() -> Iterator[dict[str, Any]]:
    for data in DATA:
        for seed in SEEDS:
            for order in ORDERS:
                yield {"data": data, "noise": DATA[data], "order": order, "seed": seed}


def chosen(lines: list[dict[str, Any]], data: str, order: str) -> list[dict[str, Any]]:
    return [line for line in lines if (line["data"], line["order"]) == (data, order)]


def table(lines: list[dict[str, Any]], figure: str) -> Iterator[str]:
    """Return means over seeds, in percent: the fraction of correct labels (`right`) or the test accuracy (`test`)."""
    yield "| data | order | seeds | " + " | ".join(f"{count}" for count in DECISIONS) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(DECISIONS)
    for data, name in NAMES.items():
        for order, words in ORDERS.items():
            some = chosen(lines, data, order)
            if some:
                values = [[shares(line, figure)[i] for line in some] for i in range(len(DECISIONS))]
                cells = " | ".join(f"{100 * statistics.mean(value):.2f}" for value in values)
                yield f"| {name} | {words} | {len(some)} | {cells} |"


def shares(line: dict[str, Any], figure: str) -> list[float]:
    return [value / line["count"] for value in line["right"]] if figure == "right" else list(line["test"])


def fill(page: str, lines: list[dict[str, Any]]) -> str:
    """Return the page with its tables filled from the results."""
    return marked.fill(page, "curve", lambda figure: table(lines, figure))


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw correct labels by number of decisions: a panel per data set, a line per order, a dot per seed."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(DATA), figsize=(4 * len(DATA), 3.6), layout="constrained")
    for axes, data in zip(panels, DATA, strict=True):
        for place, (order, words) in enumerate(ORDERS.items()):
            some = [[100 * value for value in shares(line, "right")] for line in chosen(lines, data, order)]
            if some:
                color = ("gray", "tab:orange", "tab:blue")[place]
                axes.plot(DECISIONS, np.mean(some, 0), color=color, label=words)
                for values in some:
                    axes.plot(DECISIONS, values, ".", color=color, markersize=4, alpha=0.6)
        axes.set_title(NAMES[data])
        axes.set_xlabel("decisions")
    panels[0].set_ylabel("labels right, %")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--figure", type=Path, help="draw the curves here")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--as-it-is", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.as_it_is:
        run_missing(arguments.out, list(tasks()), run_one, arguments.jobs)
    lines = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    if arguments.figure is not None:
        draw(lines, arguments.figure)
    if arguments.page is not None:
        arguments.page.write_text(fill(arguments.page.read_text("utf-8"), lines), "utf-8")
    else:
        for figure in ("right", "test"):
            print("\n".join([*table(lines, figure), ""]))


if __name__ == "__main__":
    main()
