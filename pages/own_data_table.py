"""UnflipClassifier against cleanlab's CleanLearning, on small data and frozen features.

    UNFLIP_DATA=FOLDER python pages/own_data_table.py docs/results/own-data.jsonl --page docs/results/own-data.md

Three ways, each with its defaults: UnflipClassifier; CleanLearning around the same network, which is
`UnflipClassifier("standard")`; CleanLearning around scikit-learn's logistic regression on standardized columns.

- `test`: accuracy on clean test labels
- `labels`: accuracy of the training labels in the end; for cleanlab, its issues set to the predicted class
- `auroc`: how well the label quality tells right given labels from wrong ones
- `wall`: seconds of fitting by the clock, on one thread; `cpu`: those of the processor

A line of the file is one run; runs in the file are not repeated. --page fills the tables of that page.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import marked
import own_data

WAYS = ("unflip", "cleanlab, same network", "cleanlab, logistic regression")
SEEDS = (0, 1, 2)
FIGURES = {
    "test": "Test accuracy, percent",
    "labels": "Training labels right in the end, percent",
    "auroc": "Label quality: area under the ROC curve, x 100",
    "wall": "Seconds of fitting",
}


def run(way: str, problem: own_data.Problem, given: Any, seed: int) -> dict[str, float]:
    from cleanlab.classification import CleanLearning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from unflip import UnflipClassifier

    started = time.process_time(), time.perf_counter()
    if way == "unflip":
        model = UnflipClassifier(random_state=seed).fit(problem.train, given)
        labels, quality = model.labels_, model.label_quality_
    else:
        inner = UnflipClassifier("standard", random_state=seed)
        if way.endswith("regression"):
            inner = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model = CleanLearning(inner, seed=seed, find_label_issues_kwargs={"n_jobs": 1}).fit(problem.train, given)
        issues = model.get_label_issues()
        labels = issues["predicted_label"].where(issues["is_label_issue"], issues["given_label"]).to_numpy()
        quality = issues["label_quality"].to_numpy()
    cpu, wall = time.process_time() - started[0], time.perf_counter() - started[1]
    return {
        "test": float((model.predict(problem.test) == problem.test_labels).mean()),
        "labels": float((labels == problem.clean).mean()),
        "auroc": float(roc_auc_score(given == problem.clean, quality)),
        "cpu": cpu,
        "wall": wall,
    }


def tables(
    results: list[dict[str, Any]],
    sets: Sequence[str] = own_data.SETS,
    noises: Sequence[str] = own_data.NOISES,
    ways: Sequence[str] = WAYS,
) -> Iterator[str]:
    """Yield the lines of one table per figure: the mean over seeds and its standard deviation, the best in bold."""
    for figure, title in FIGURES.items():
        yield f"### {title}"
        yield ""
        yield "| data | noise | seeds | wrong, percent | " + " | ".join(ways) + " |"
        yield "| --- | --- | --- | --- |" + " --- |" * len(ways)
        means: dict[str, list[float]] = {way: [] for way in ways}
        for name in sets:
            for noise in noises:
                found = [line for line in results if (line["data"], line["noise"]) == (name, noise)]
                whole = {line["seed"] for line in found if line["way"] == ways[-1]}  # the last of a seed
                rows = [line for line in found if line["seed"] in whole]
                if rows:
                    yield _row(name, noise, figure, rows, means)
        yield "| mean | | | | " + " | ".join(f"{statistics.mean(means[way]):.2f}" for way in ways) + " |"
        yield ""


def fill(page: str, results: list[dict[str, Any]], *axes: Sequence[str]) -> str:
    """Return a page with its tables as the results say them; ``axes`` are sets, noises and ways."""
    return marked.fill(page, "tables", lambda _: tables(results, *axes))


def _row(name: str, noise: str, figure: str, rows: list[dict[str, Any]], means: dict[str, list[float]]) -> str:
    scale = 1 if figure == "wall" else 100
    values = {way: [scale * line[figure] for line in rows if line["way"] == way] for way in means}
    for way in means:
        means[way].append(statistics.mean(values[way]))
    best = "" if figure == "wall" else f"{max(found[-1] for found in means.values()):.2f}"
    cells = []
    for way in means:
        text = f"{means[way][-1]:.2f}"
        spread = f" ± {statistics.stdev(values[way]):.2f}" if len(values[way]) > 1 and figure != "wall" else ""
        cells.append(f"**{text}{spread}**" if text == best else text + spread)
    wrong = 100 * statistics.mean(line["wrong"] for line in rows)
    return f"| {name} | {noise} | {len(rows) // len(means)} | {wrong:.1f} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--sets", default=",".join(own_data.SETS))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    done = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    for seed in SEEDS:
        for name in arguments.sets.split(","):
            for noise in own_data.NOISES:
                task = {"data": name, "noise": noise, "seed": seed}
                missing = [way for way in WAYS if not any((task | {"way": way}).items() <= x.items() for x in done)]
                if not missing:
                    continue
                problem = own_data.load(name, seed)
                given = own_data.make_noisy(name, problem, noise, seed)
                for way in missing:
                    figures = {"wrong": float((given != problem.clean).mean())} | run(way, problem, given, seed)
                    done.append(task | {"way": way} | figures)
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(done[-1]) + "\n")
                print(task, file=sys.stderr)
    if arguments.page is None:
        print("\n".join(tables(done)))
        return
    arguments.page.write_text(fill(arguments.page.read_text("utf-8"), done), "utf-8")


if __name__ == "__main__":
    main()
