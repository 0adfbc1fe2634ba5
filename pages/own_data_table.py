"""UnflipClassifier against cleanlab's CleanLearning, on small data and frozen features.

    UNFLIP_DATA=FOLDER python pages/own_data_table.py docs/results/own-data.jsonl --page docs/results/own-data.md

Three ways: UnflipClassifier with its defaults; CleanLearning around the same network, which is
`UnflipClassifier("standard")`; CleanLearning around scikit-learn's logistic regression on standardized columns, with C
by cross-validated likelihood of the given labels of the first seed, once for each data set and noise.

- `test`: accuracy on clean test labels
- `labels`: accuracy of the training labels in the end; for cleanlab, its issues set to the predicted class
- `auroc`: how well the label quality tells right given labels from wrong ones
- `filters`: `test` and `labels` for each `filter_by` of cleanlab; tables show the one whose mean is highest, for each
  figure, chosen with the clean labels
- `wall`: seconds of fitting by the clock, on one thread, with one filter; `cpu`: those of the processor

A line of the file is one run; runs in the file are not repeated. --page fills the tables of that page.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import marked
import own_data

WAYS = ("unflip", "cleanlab, same network", "cleanlab, logistic regression")
SEEDS = (0, 1, 2)
FILTERS = (
    "prune_by_noise_rate",  # cleanlab's default
    "prune_by_class",
    "both",
    "confident_learning",
    "predicted_neq_given",
    "low_normalized_margin",
    "low_self_confidence",
)
FIGURES = {
    "test": "Test accuracy, percent",
    "labels": "Training labels right in the end, percent",
    "auroc": "Label quality: area under the ROC curve, x 100",
    "wall": "Seconds of fitting",
}


def run(
    way: str, problem: own_data.Problem, given: Any, seed: int, choose_strength: Callable[[], float]
) -> dict[str, Any]:
    """Return the figures of one run; ``choose_strength`` returns the C of logistic regression."""
    from sklearn.metrics import roc_auc_score

    from unflip import UnflipClassifier

    if way.endswith("regression"):
        strength = choose_strength()
        model = own_data.logistic_regression(strength, max_iter=1000)
        return run_cleanlab(model, problem, given, seed) | {"C": strength}
    if way != "unflip":
        return run_cleanlab(UnflipClassifier("standard", random_state=seed), problem, given, seed)
    started = time.process_time(), time.perf_counter()
    model = UnflipClassifier(random_state=seed).fit(problem.train, given)
    cpu, wall = time.process_time() - started[0], time.perf_counter() - started[1]
    return {
        "test": float((model.predict(problem.test) == problem.test_labels).mean()),
        "labels": float((model.labels_ == problem.clean).mean()),
        "auroc": float(roc_auc_score(given == problem.clean, model.label_quality_)),
        "cpu": cpu,
        "wall": wall,
    }


def run_cleanlab(inner: Any, problem: own_data.Problem, given: Any, seed: int) -> dict[str, Any]:
    """Return the figures of CleanLearning around a classifier, with every filter."""
    from cleanlab.classification import CleanLearning
    from cleanlab.count import estimate_cv_predicted_probabilities
    from sklearn.base import clone
    from sklearn.metrics import roc_auc_score

    figures: dict[str, Any] = {"filters": {}}
    started = time.process_time(), time.perf_counter()
    probs = estimate_cv_predicted_probabilities(problem.train, given, clone(inner), seed=seed)
    for name in FILTERS:
        options = {"n_jobs": 1, "filter_by": name}
        model = CleanLearning(clone(inner), seed=seed, find_label_issues_kwargs=options)
        model.fit(problem.train, given, pred_probs=probs)
        issues = model.get_label_issues()
        if name == FILTERS[0]:
            figures |= {
                "auroc": float(roc_auc_score(given == problem.clean, issues["label_quality"])),
                "cpu": time.process_time() - started[0],
                "wall": time.perf_counter() - started[1],
            }
        labels = issues["predicted_label"].where(issues["is_label_issue"], issues["given_label"])
        figures["filters"][name] = {
            "test": float((model.predict(problem.test) == problem.test_labels).mean()),
            "labels": float((labels == problem.clean).mean()),
        }
    return figures


def tables(
    results: list[dict[str, Any]],
    sets: Sequence[str] = own_data.SETS,
    noises: Sequence[str] = own_data.NOISES,
    ways: Sequence[str] = WAYS,
) -> Iterator[str]:
    """Yield the lines of one table per figure: the mean over seeds and its standard deviation, the best in bold."""
    best = {way: best_filters(results, way) for way in ways if way != "unflip"}
    results = [
        line | {figure: line["filters"][name][figure] for figure, name in best[line["way"]].items()}
        if line["way"] in best
        else line
        for line in results
    ]
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


def best_filters(results: list[dict[str, Any]], way: str) -> dict[str, str]:
    """Return the filter of cleanlab with the highest mean, for each figure that depends on the filter."""
    means = {name: filter_means(results, way, name) for name in FILTERS}
    return {figure: max(FILTERS, key=lambda name: means[name][figure]) for figure in ("test", "labels")}


def filter_means(results: list[dict[str, Any]], way: str, name: str) -> dict[str, float]:
    """Return the means of a filter over all runs; every setting has the same number of seeds."""
    found = [line["filters"][name] for line in results if line["way"] == way]
    return {figure: 100 * statistics.mean(line[figure] for line in found) for figure in ("test", "labels")}


def filter_table(results: list[dict[str, Any]], ways: Sequence[str] = WAYS) -> Iterator[str]:
    """Yield the table of cleanlab's filters: means over all runs, the best of a column in bold."""
    names = [(way, figure) for way in ways[1:] for figure in ("test", "labels")]
    titles = {"test": "test accuracy", "labels": "labels right"}
    yield "| `filter_by` | " + " | ".join(f"{way.split(', ')[1]}: {titles[figure]}" for way, figure in names) + " |"
    yield "| --- |" + " --- |" * len(names)
    best = {way: best_filters(results, way) for way in ways[1:]}
    for name in FILTERS:
        cells = []
        for way, figure in names:
            text = f"{filter_means(results, way, name)[figure]:.2f}"
            cells.append(f"**{text}**" if best[way][figure] == name else text)
        yield f"| `{name}` | " + " | ".join(cells) + " |"


def fill(page: str, results: list[dict[str, Any]], *axes: Sequence[str]) -> str:
    """Return a page with its tables as the results say them; ``axes`` are sets, noises and ways."""
    page = marked.fill(page, "filters", lambda _: filter_table(results, *axes[2:]))
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


@cache
def choose_strength(name: str, noise: str) -> float:
    """Return the C that is used for a data set and noise."""
    problem = own_data.load(name, SEEDS[0])
    return own_data.choose_strength(problem.train, own_data.make_noisy(name, problem, noise, SEEDS[0]))


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
                    wrong = {"wrong": float((given != problem.clean).mean())}
                    figures = wrong | run(way, problem, given, seed, partial(choose_strength, name, noise))
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
