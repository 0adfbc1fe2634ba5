"""Is quality a probability? Reliability of label quality where the true labels are known.

    UNFLIP_DATA=FOLDER python pages/quality_table.py docs/results/quality.jsonl --page docs/results/quality.md \
      --figure docs/images/quality.png --others docs/images/quality-methods.png

- `grid`: every setting of the grids features/cifar10 and features/cifar100, `unflip` with three seeds, other methods
  with one; run as the grids are
- `small`: `UnflipClassifier` on small data, nearly clean data among it

A line of the file is one run: `ece`, the expected calibration error in 20 bins of equally many training examples,
`bins`, mean quality and share of right labels of each, `wrong` and `expected`, the true and the expected share of wrong
labels, `first`, of the first 100, 1,000 and 10,000 of the list the expected and the true number of wrong labels,
`most`, how many of the list are said to hold 90 % of the wrong labels, and `held`, how many they do hold. Runs that are
in the file are not run again. --page fills the tables of that page, --figure and --others draw reliability diagrams.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa

import marked
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
OTHERS = ("standard", "lrt", "plc", "mddc", "cddc", "dividemix")
SETS = ("digits", "breast cancer", "wine", "cifar10")
NOISES = ("sym:0.01", "sym:0.05", "sym:0.2", "asym:0.05", "asym:0.2", "pmd1:0.2")
GROUPS = {
    "35 %": [row for row in PURE if "0.35" in row],
    "35 % and symmetric": [row for row in HYBRID if "+ sym" in row],
    "35 % and asymmetric": [row for row in HYBRID if "asym" in row],
    "70 %": [row for row in PURE if "0.70" in row],
}
HELD = 0.9  # fraction of the expected wrong labels that the first ``most`` labels contain
ALL = {"35 % and hybrid": [row for row in PURE + HYBRID if "0.70" not in row], **GROUPS}


def figures(quality: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return what a line holds of given labels, from the most doubtful on."""
    from unflip.runs.labels import expect_errors, wrong_so_far

    cells = list(zip(np.array_split(quality, BINS), np.array_split(right, BINS), strict=True))
    pairs = [(float(said.mean()), float(true.mean())) for said, true in cells]
    sizes = [len(said) for said, _ in cells]
    so_far = wrong_so_far(np.sort(quality))
    most = int(np.searchsorted(so_far, HELD * so_far[-1])) + 1
    return {
        "ece": sum(size * abs(said - true) for size, (said, true) in zip(sizes, pairs, strict=True)) / len(quality),
        "bins": [[round(value, 4) for value in pair] for pair in pairs],
        "wrong": float(1 - right.mean()),
        "expected": float(1 - quality.mean()),
        "first": [[size, round(said, 1), int((~right[:size]).sum())] for size, said in expect_errors(quality)],
        "most": most,
        "held": float((~right[:most]).sum() / max(1, (~right).sum())),
    }


def grid(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    import unflip
    from unflip.runs.labels import lowest_quality_first

    data, labels, noise = files(task["row"])
    more: dict[str, Any] = {"noise": noise} if noise else {}
    settings: dict[str, Any] = {"data.val_fraction": 0.1}
    if noise and noise.startswith("asym"):
        settings["noise.class_map"] = task["row"].split()[0]
    run = unflip.train(
        data, folder / "run", labels=labels, limit=TAKE, method=task["method"], preset="features", seed=task["seed"],
        select="last", device="cpu", threads=1, settings=settings, **more,
    )  # fmt: skip
    table = run.labels()
    with np.load(data) as content:
        right = table["given_label"].to_numpy() == content["train_labels"][:TAKE]
    order = lowest_quality_first(table)
    order = order[np.array(table["split"].to_pylist())[order] == "train"]
    return figures(table["label_quality"].to_numpy().astype(float)[order], right[order]) | {
        "auroc": run.result["quality_auroc"]
    }


def small(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    from own_data import load, make_noisy
    from unflip import find_label_errors

    problem = load(task["data"], task["seed"])
    given = make_noisy(task["data"], problem, task["noise"], task["seed"])
    table = pa.table(find_label_errors(problem.train, given, random_state=task["seed"], out=folder).ranked)
    table = table.slice(0, len(table) - table["label_quality"].null_count)
    index, quality = table["index"].to_numpy(), table["label_quality"].to_numpy().astype(float)
    right, flagged = (given == problem.clean)[index], table["is_label_issue"].to_numpy()
    doubted = flagged & (quality < 0.5)
    return figures(quality, right) | {
        "label_issues": [int(flagged.sum()), int((flagged & ~right).sum())],
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
    for row in PURE + HYBRID:
        for seed in range(3):
            yield {"experiment": "grid", "row": row, "method": "unflip", "seed": seed}
    for method in OTHERS:
        for row in PURE + HYBRID:
            yield {"experiment": "grid", "row": row, "method": method, "seed": 0}


def chosen(lines: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [line for line in lines if wanted.items() <= line.items()]


def called(row: str) -> str:
    """Return the title of a row."""
    base, _, noise = row.partition(" + ")
    data, kind, level = base.split()
    name = f"{data.upper().replace('CIFAR', 'CIFAR-')} {KINDS[kind]} {level[2:]} %"
    how, _, rate = noise.partition(":")
    return f"{name} + {rate[2:]} % {how}." if noise else name


def mean(lines: list[dict[str, Any]], figure: str, form: str = "{:.3f}") -> str:
    return form.format(statistics.mean(line[figure] for line in lines)) if lines else ""


def rows_table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield every setting of the grid: `unflip`, mean over its seeds."""
    yield "| setting | seeds | ECE | wrong | expected | of the first 1,000: expected | wrong | first M | hold |"
    yield "| --- |" + " --- |" * 8
    for row in PURE + HYBRID:
        some = chosen(lines, experiment="grid", row=row, method="unflip")
        if not some:
            continue
        first = [next(pair for size, *pair in line["first"] if size == 1000) for line in some]
        firsts = [f"{statistics.mean(pair[i] for pair in first):.0f}" for i in range(2)]
        cells = [str(len(some)), mean(some, "ece"), *(mean(some, name, "{:.1%}") for name in ("wrong", "expected"))]
        cells += [*firsts, mean(some, "most", "{:,.0f}"), mean(some, "held", "{:.1%}")]
        yield f"| {called(row)} | " + " | ".join(cells) + " |"


def groups_table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the mean error of groups of settings, those that choices looked at (type I) apart from the others."""
    yield "| mean ECE of `unflip` | all | type I, seen when choosing | types II and III, not seen |"
    yield "| --- | --- | --- | --- |"
    for name, rows in ALL.items():
        some = [line for row in rows for line in chosen(lines, experiment="grid", row=row, method="unflip")]
        seen = [line for line in some if line["row"].split()[1] == "1"]
        others = [line for line in some if line["row"].split()[1] != "1"]
        yield f"| {name} | {mean(some, 'ece')} | {mean(seen, 'ece')} | {mean(others, 'ece')} |"


def methods_table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield every method on every setting of the grid, seed 0, and the means of groups of settings."""
    runs = chosen(lines, experiment="grid", seed=0)
    methods = [name for name in (*OTHERS, "unflip") if chosen(runs, method=name)]
    yield "| ECE, seed 0 | " + " | ".join(methods) + " |"
    yield "| --- |" + " --- |" * len(methods)
    groups = {called(row): [row] for row in PURE + HYBRID} | {f"mean: {name}": rows for name, rows in ALL.items()}
    for name, rows in groups.items():
        found = [[line for line in chosen(runs, method=method) if line["row"] in rows] for method in methods]
        cells = [mean(some, "ece") if len(some) == len(rows) else "" for some in found]
        yield f"| {name} | " + " | ".join(cells) + " |"


def small_table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield small data sets: means over seeds, lists with how many of them are wrong."""
    lists = "label issues | of them wrong | with quality < 0.5 | of them wrong"
    yield f"| data | noise | seeds | ECE | wrong | expected | {lists} |"
    yield "| --- |" + " --- |" * 9
    for data in SETS:
        for noise in NOISES:
            some = chosen(lines, experiment="small", data=data, noise=noise)
            if not some:
                continue
            counts = [
                statistics.mean(line[of][i] for line in some) for of in ("label_issues", "doubted") for i in range(2)
            ]
            cells = [str(len(some)), mean(some, "ece"), *(mean(some, name, "{:.1%}") for name in ("wrong", "expected"))]
            cells += [f"{count:.0f}" for count in counts]
            yield f"| {data} | {noise} | " + " | ".join(cells) + " |"


TABLES = {"groups": groups_table, "rows": rows_table, "methods": methods_table, "small": small_table}


def fill(page: str, lines: list[dict[str, Any]]) -> str:
    """Return the page with its tables filled from the results."""
    return marked.fill(page, "quality", lambda name: TABLES[name](lines))


def draw(lines: list[dict[str, Any]], methods: Sequence[str], side: float, path: Path) -> None:
    """Draw reliability diagrams, seed 0: a row per method, a panel per group of settings, a line per setting."""
    import matplotlib.pyplot as plt

    size = side * len(GROUPS), 0.95 * side * len(methods) + 0.7
    figure, grid = plt.subplots(
        len(methods), len(GROUPS), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for panels, method in zip(grid, methods, strict=True):
        for axes, rows in zip(panels, GROUPS.values(), strict=True):
            axes.plot([0, 1], [0, 1], color="gray", linewidth=1)
            for line in chosen(lines, experiment="grid", method=method, seed=0):
                if line["row"] in rows:
                    color = "tab:blue" if line["row"].startswith("cifar10 ") else "tab:orange"
                    axes.plot(*zip(*line["bins"], strict=True), color=color, marker=".", linewidth=1, alpha=0.7)
            axes.set(aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        panels[0].set_ylabel(method)
    for axes, name in zip(grid[0], GROUPS, strict=True):
        axes.set_title(name, fontsize=10)
    grid[0][0].plot([], [], color="tab:blue", label="CIFAR-10")
    grid[0][0].plot([], [], color="tab:orange", label="CIFAR-100")
    grid[0][0].legend(fontsize=7)
    figure.supxlabel("quality", fontsize=10)
    figure.supylabel("share of labels that are right", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--figure", type=Path, help="draw the reliability diagrams of unflip here")
    parser.add_argument("--others", type=Path, help="draw those of the other methods here")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--as-it-is", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.as_it_is:
        run_missing(arguments.out, list(tasks()), run_one, arguments.jobs)
    lines = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    if arguments.figure is not None:
        draw(lines, ["unflip"], 3.0, arguments.figure)
    if arguments.others is not None:
        draw(lines, [name for name in OTHERS if chosen(lines, method=name)], 1.8, arguments.others)
    if arguments.page is not None:
        arguments.page.write_text(fill(arguments.page.read_text("utf-8"), lines), "utf-8")
    else:
        for table in TABLES.values():
            print("\n".join([*table(lines), ""]))


if __name__ == "__main__":
    main()
