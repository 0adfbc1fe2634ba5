"""Rows without labels: test accuracy and suggested labels, with `unlabeled`, without these rows, and by self-training.

    UNFLIP_DATA=FOLDER python pages/unlabeled_table.py docs/results/unlabeled.jsonl --page docs/results/unlabeled.md

10, 50 or 90 % of the labels are removed at random; of the rest 20 % are wrong (symmetric noise). Data: digits (a fourth
to test) and the first 10,000 frozen training features of CIFAR-10 with its test set. Defaults of UnflipClassifier.

- `alone`: fitted to the labeled rows alone; suggestions are its predictions
- `unlabeled`: fitted to all rows with `unlabeled=-1`
- `self-training`: fitted to the labeled rows and to predictions of `alone` above 0.9, one round; suggestions are its
  predictions

Figures: `test`, accuracy on the test set; `suggested`, fraction of suggested labels of unlabeled rows that are right;
for self-training also `added`, the fraction of unlabeled rows that it takes, and `right`, how many of those labels are.

A line of the file is one run; runs in the file are not repeated. --page fills the table of that page.
"""

import argparse
import json
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import marked
import own_data

DATA = ("digits", "cifar10, 10,000")
REMOVED = (0.1, 0.5, 0.9)
WAYS = ("alone", "unlabeled", "self-training")
MIN_PROB = 0.9


def load(data: str, seed: int) -> own_data.Problem:
    import numpy as np

    if data == "digits":
        return own_data.load(data, seed)
    name, count = data.replace(",", "").split()
    arrays = np.load(Path(os.environ["UNFLIP_DATA"]) / "features" / f"{name}.npz")
    inputs, labels, test, test_labels = (arrays[key] for key in ("train", "train_labels", "test", "test_labels"))
    rows = slice(int(count))
    return own_data.Problem(inputs[rows].astype(np.float32), labels[rows], test.astype(np.float32), test_labels)


def run(data: str, removed: float, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way."""
    import numpy as np

    from unflip import UnflipClassifier

    problem = load(data, seed)
    inputs, clean = problem.train, problem.clean.astype(np.int64)
    given = own_data.make_noisy("", problem, "sym:0.2", seed)
    empty = np.random.default_rng(seed).random(len(clean)) < removed
    cell = {"data": data, "removed": removed, "seed": seed}

    def figures(way: str, model: Any, suggested: Any) -> dict[str, Any]:
        test = float((model.predict(problem.test) == problem.test_labels).mean())
        return cell | {
            "way": way,
            "test": round(test, 5),
            "suggested": round(float((suggested == clean[empty]).mean()), 5),
        }

    alone = UnflipClassifier(random_state=seed).fit(inputs[~empty], given[~empty])
    yield figures("alone", alone, alone.predict(inputs[empty]))
    model = UnflipClassifier(unlabeled=-1, random_state=seed).fit(inputs, np.where(empty, -1, given))
    yield figures("unlabeled", model, model.suggested_labels_[empty])
    probs = alone.predict_proba(inputs[empty])
    labels = given.copy()
    labels[empty] = alone.classes_[probs.argmax(1)]
    added = np.zeros_like(empty)
    added[empty] = probs.max(1) > MIN_PROB
    rows = added | ~empty
    again = UnflipClassifier(random_state=seed).fit(inputs[rows], labels[rows])
    extra = {"added": round(float(added[empty].mean()), 5), "right": round(float((labels == clean)[added].mean()), 5)}
    yield figures("self-training", again, again.predict(inputs[empty])) | extra


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each data set and fraction, averaged over seeds."""
    titles = [f"{figure}: {way}" for figure in ("test", "suggested") for way in WAYS]
    yield f"| data | labels removed | seeds | {' | '.join(titles)} | added to training | of them right |"
    yield "| --- " * (len(titles) + 5) + "|"
    for data, removed in product(DATA, REMOVED):
        lines = [line for line in results if (line["data"], line["removed"]) == (data, removed)]
        if not lines:
            continue
        names = [(figure, way) for figure in ("test", "suggested") for way in WAYS]
        names += [(figure, "self-training") for figure in ("added", "right")]
        cells = []
        for figure, way in names:
            values = [line[figure] for line in lines if line["way"] == way]
            cells.append(f"{100 * sum(values) / len(values):.1f}")
        seeds = len({line["seed"] for line in lines})
        yield f"| {data} | {removed:.0%} | {seeds} | {' | '.join(cells)} |"


def fill(page: str, results: list[dict[str, Any]]) -> str:
    return marked.fill(page, "unlabeled", lambda words: table(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    lines = options.results.read_text("utf-8").splitlines() if options.results.exists() else []
    results = [json.loads(line) for line in lines]
    done = {(line["data"], line["removed"], line["seed"]) for line in results}
    for cell in product(DATA, REMOVED, range(options.seeds)):
        if cell in done:
            continue
        made = [*run(*cell)]
        results += made
        with options.results.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in made))
        print(*made, sep="\n", flush=True)
    if options.page:
        options.page.write_text(fill(options.page.read_text("utf-8"), results), "utf-8")


if __name__ == "__main__":
    main()
