"""How many labels are wrong, and are they better or worse after correction? UnflipClassifier with its defaults.

    UNFLIP_DATA=FOLDER python pages/noise_rate_table.py docs/results/noise-rate.jsonl --page docs/results/noise-rate.md

Small data of scikit-learn as a whole (`mixed breast cancer` has categories, dates and gaps, see raw_data_table.py),
TrashNet and BANKING77 with the default encoders, the first 2,000, 10,000 or 45,000 frozen training features of CIFAR,
and their first 4 or 16 principal components: features so weak that classes are ambiguous. Noise: none, symmetric, each
class to the next (`pair`), and PMD type I (frozen features: also II and III at 35 %): the published labels of CIFAR at
35 and 70 %, elsewhere posteriors of a network fitted to the clean labels, cross-fitted for data of scikit-learn and
in-sample for the rest, as in the released generator. Levels that a posterior cannot reach are left out. TrashNet and
BANKING77 have errors of their own.

- `given`, `after`: fraction of labels that are right; `best`: after the best cut of the same ranking, in hindsight
- `rate`: fraction of wrong labels; `estimate`, `low`, `high`: what is said of it
- `auroc`: how well the label quality tells right given labels from wrong ones; null without wrong ones
- `ece`: expected calibration error of the label quality, in ten bins
- `cleanlab_...`: logistic regression on the same features, C by cross-validated likelihood of the labels with 20 %
  symmetric noise, once for each data set; `cleanlab_after`: its label issues set to the most likely class (seed 0,
  data of at most 2,527 rows)

A line of the file is one run; runs in the file are not repeated. --page fills the tables of that page; --only runs some
data sets.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import marked
import own_data
import raw_data_table

SMALL = ("digits", "breast cancer", "wine", "mixed breast cancer")
RAW = ("TrashNet", "BANKING77")
FEATURES = tuple(f"{name}, {size}" for size in ("2,000", "10,000", "45,000") for name in ("cifar10", "cifar100"))
WEAK = ("cifar10, 10,000, 4 components", "cifar100, 10,000, 16 components")
NOISES = (
    "none",
    "sym:0.01",
    "sym:0.05",
    "sym:0.2",
    "sym:0.4",
    "pair:0.1",
    "pmd1:0.1",
    "pmd1:0.2",
    "pmd1:0.35",
    "pmd2:0.35",
    "pmd3:0.35",
    "pmd1:0.7",
)
PUBLISHED = {"pmd1:0.35": "1-0.35", "pmd2:0.35": "2-0.35", "pmd3:0.35": "3-0.35", "pmd1:0.7": "1-0.70"}
TOLERANCE = 0.003  # or three labels: what "worse" means
MAX_CLEANLAB_ROWS = 2_527


def cells(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield data, noise and seed of every run."""
    for data in (*SMALL, *RAW, *FEATURES, *WEAK):
        for seed in seeds[:1] if "45,000" in data else seeds:
            yield from ({"data": data, "noise": noise, "seed": seed} for noise in NOISES if has(data, noise))


def has(data: str, noise: str) -> bool:
    """Return whether data is tried with a kind of noise."""
    return data in FEATURES or not noise.startswith("pmd" if data in WEAK else ("pmd2", "pmd3"))


def run(cell: dict[str, Any]) -> dict[str, Any] | None:
    """Return the figures of a run; None if the noise cannot be had."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    from unflip import UnflipClassifier
    from unflip.data.dataset import Dataset, Split
    from unflip.engine.distributed import Distributed
    from unflip.engine.run import train_in_memory
    from unflip.errors import InputError

    inputs, clean = load(cell["data"])
    try:
        given = make_noisy(**cell)
    except InputError as error:
        print(cell, error, flush=True)
        return None
    config = UnflipClassifier(settings={"seed": cell["seed"]})._configure(len(given), {"path": cell["data"]})
    done = train_in_memory(config, Dataset(Split(inputs, given)), Distributed("cpu", "float32", 1))
    table = {
        name: done.labels[name].to_numpy() for name in ("current_label", "log_odds", "label_quality", "top1", "top2")
    }
    right, quality = given == clean, np.nan_to_num(table["label_quality"], nan=1.0)
    odds = np.nan_to_num(table["log_odds"], nan=99.0)
    other = np.where(table["top1"] == given, table["top2"], table["top1"])
    gains = np.cumsum(((other == clean).astype(int) - right)[np.argsort(odds)])
    bins = np.minimum((10 * quality).astype(int), 9)
    parts = [bins == number for number in range(10) if (bins == number).any()]
    summary = done.summary
    return cell | {
        "count": len(clean),
        "given": float(right.mean()),
        "after": float((table["current_label"] == clean).mean()),
        "best": float(right.mean() + max(0, gains.max()) / len(clean)),
        "rate": float(1 - right.mean()),
        "estimate": summary.noise_rate,
        "low": summary.low / max(1, summary.scored),
        "high": summary.high / max(1, summary.scored),
        "issues": summary.issues,
        "auroc": None if right.all() else float(roc_auc_score(right, odds)),
        "ece": float(sum(abs(quality[part].mean() - right[part].mean()) * part.mean() for part in parts)),
        **(cleanlab(cell["data"], given) if cell["seed"] == 0 and len(given) <= MAX_CLEANLAB_ROWS else {}),
    }


@cache
def load(data: str) -> tuple[Any, Any]:
    """Return inputs and clean labels."""
    import numpy as np
    from sklearn import datasets

    if data == "mixed breast cancer":
        whole = raw_data_table.mixed("breast cancer", 0)
        return np.concatenate([whole.train, whole.test]), np.concatenate([whole.clean, whole.test_labels])
    if data in SMALL:
        inputs, clean = getattr(datasets, f"load_{data.replace(' ', '_')}")(return_X_y=True)
        return inputs, clean.astype(np.int64)
    if data in RAW:
        problem = raw_data_table.photos() if data == "TrashNet" else raw_data_table.texts()
        return problem.train, problem.clean.astype(np.int64)
    name, size, *components = data.removesuffix(" components").split(", ")
    arrays, count = np.load(Path(os.environ["UNFLIP_DATA"]) / "features" / f"{name}.npz"), int(size.replace(",", ""))
    columns = int(components[0]) if components else None
    return arrays["train"][:count, :columns].astype(np.float32), arrays["train_labels"][:count].astype(np.int64)


def make_noisy(data: str, noise: str, seed: int) -> Any:
    """Return given labels."""
    import numpy as np
    import torch

    from unflip.noise.corrupt import ClassRelations, corrupt
    from unflip.noise.recipe import parse

    clean = load(data)[1]
    if noise == "none":
        return clean
    if data in FEATURES and noise in PUBLISHED:
        path = Path(os.environ["UNFLIP_DATA"]) / "pmd" / f"{data.split(',')[0]}-{PUBLISHED[noise]}.npy"
        return np.load(path)[: len(clean)].astype(np.int64)
    probs = torch.from_numpy(posterior(data)) if noise.startswith("pmd") else None
    relations = ClassRelations(class_map={}, superclasses=None, matrix=None)
    count = int(clean.max()) + 1
    made = corrupt(
        parse(noise), torch.from_numpy(clean), num_classes=count, seed=seed, posterior=probs, relations=relations
    )
    return made.labels.numpy()


@cache
def posterior(data: str) -> Any:
    """Return class probabilities of a network fitted to the clean labels."""
    from sklearn.model_selection import cross_val_predict

    from unflip import UnflipClassifier

    inputs, clean = load(data)
    if data in SMALL:
        network = UnflipClassifier("standard", random_state=0)
        return cross_val_predict(network, inputs, clean, cv=5, method="predict_proba")
    return UnflipClassifier("standard", epochs=30, random_state=0).fit(inputs, clean).predict_proba(inputs)


def cleanlab(data: str, given: Any) -> dict[str, Any]:
    """Return the figures of cleanlab around logistic regression."""
    import numpy as np
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores
    from sklearn.metrics import roc_auc_score

    inputs, clean = load(data)
    probs = own_data.out_of_fold(inputs, given, strength(data))
    issues = find_label_issues(given, probs)
    right = given == clean
    scores = get_label_quality_scores(given, probs)
    return {
        "cleanlab_after": float((np.where(issues, probs.argmax(1), given) == clean).mean()),
        "cleanlab_issues": int(issues.sum()),
        "cleanlab_auroc": None if right.all() else float(roc_auc_score(right, scores)),
    }


@cache
def strength(data: str) -> float:
    """Return the C of highest cross-validated likelihood of labels with 20 % symmetric noise."""
    import numpy as np

    inputs, given = load(data)[0], make_noisy(data, "sym:0.2", 0)
    rows = np.random.default_rng(0).permutation(len(given))[:4000]
    return own_data.choose_strength(inputs[rows], given[rows])


def tables(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one table, a row for each data set and noise, averaged over seeds."""
    yield (
        "| data | noise | right, given | after | best cut | wrong | estimated | label issues | AUROC | ECE "
        "| cleanlab: after | issues | AUROC |"
    )
    yield "| --- " * 13 + "|"
    for row in averaged(results):
        after = f"**{percent(row['after'])}**" if is_worse(row) else percent(row["after"])
        figures = (
            *(row["data"], row["noise"], percent(row["given"]), after, percent(row["best"]), percent(row["rate"])),
            f"{percent(row['estimate'])} ({percent(row['low'])} to {percent(row['high'])})",
            *(f"{row['issues']:.0f}", percent(row["auroc"]), f"{row['ece']:.3f}"),
            *(percent(row.get("cleanlab_after")), row.get("cleanlab_issues", ""), percent(row.get("cleanlab_auroc"))),
        )
        yield f"| {' | '.join(map(str, figures))} |"


def averaged(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of each data set and noise, averaged over seeds; those of cleanlab are of the first seed."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in results:
        groups.setdefault((line["data"], line["noise"]), []).append(line)
    rows = []
    for lines in groups.values():
        numbers = [name for name, value in lines[0].items() if isinstance(value, int | float)]
        names = [name for name in numbers if not name.startswith("cleanlab")]
        rows.append(lines[0] | {name: sum(line[name] for line in lines) / len(lines) for name in names})
    return rows


def summary(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how many of the rows are as good as wanted."""
    rows = averaged(results)
    known = [row for row in rows if row["data"] not in RAW or row["noise"] != "none"]
    below = [row for row in known if row["rate"] < 0.5]
    close = [row for row in below if abs(row["estimate"] - row["rate"]) <= max(0.02, row["rate"] / 4)]
    covered = [row for row in below if row["low"] - 0.0005 <= row["rate"] <= row["high"] + 0.0005]
    loss = sum(row["best"] - row["after"] for row in known) / len(known)
    paired = [row for row in known if row.get("cleanlab_after") is not None]
    ranked = [row for row in paired if row["auroc"] is not None]
    counts = {
        "fewer labels right than given, by more than 0.3 points or three labels": (sum(map(is_worse, known)), known),
        "estimate within two points or a quarter of the truth, if below 50 %": (len(close), below),
        "interval covers the truth, if below 50 %": (len(covered), below),
        "ECE at most 0.05": (sum(row["ece"] <= 0.05 for row in known), known),
        "more labels right than after cleanlab": (sum(row["after"] > row["cleanlab_after"] for row in paired), paired),
        "fewer": (sum(row["after"] < row["cleanlab_after"] for row in paired), paired),
        "after cleanlab: fewer labels right than given": (
            sum(is_worse(row, "cleanlab_after") for row in paired),
            paired,
        ),
        "higher AUROC than cleanlab": (sum(row["auroc"] > row["cleanlab_auroc"] for row in ranked), ranked),
    }
    yield "| | rows |"
    yield "| --- | --- |"
    yield from (f"| {what} | {count} of {len(all_rows)} |" for what, (count, all_rows) in counts.items())
    yield ""
    yield f"Over all rows, {100 * loss:.1f} points fewer labels are right on average than after the best cut."


def is_worse(row: dict[str, Any], name: str = "after") -> bool:
    return bool(row[name] < row["given"] - max(TOLERANCE, 3 / row["count"]))


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def fill(page: str, results: list[dict[str, Any]]) -> str:
    return marked.fill(page, "noise rate", lambda words: summary(results) if words == "summary" else tables(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args()
    lines = options.results.read_text("utf-8").splitlines() if options.results.exists() else []
    results = [json.loads(line) for line in lines]
    done = {(line["data"], line["noise"], line["seed"]) for line in results}
    for cell in cells(range(options.seeds)):
        if tuple(cell.values()) in done or (options.only and cell["data"] not in options.only):
            continue
        if (figures := run(cell)) is not None:
            results.append(figures)
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(figures) + "\n")
            print(figures, flush=True)
    if options.page:
        order = {data: place for place, data in enumerate((*SMALL, *RAW, *FEATURES, *WEAK))}
        results.sort(key=lambda line: (order[line["data"]], NOISES.index(line["noise"]), line["seed"]))
        options.page.write_text(fill(options.page.read_text("utf-8"), results), "utf-8")


if __name__ == "__main__":
    main()
