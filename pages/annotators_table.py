"""Labels of several simulated annotators: what is the right one, how sure is that, and how good is everyone?

    UNFLIP_DATA=FOLDER python pages/annotators_table.py docs/results/annotators.jsonl --page docs/results/annotators.md

Data: digits as a whole, the first 10,000 frozen training features of CIFAR, TrashNet and BANKING77 with the default
encoders. 30 annotators, of whom 2, 3 or 5 label an example. `good` ones are right with a probability between 60 and
90 %, else they name any other class. `biased`: half of them are good, the others also give half of the classes a
certain wrong label 60 % of the time. `lazy`: 9 give a class of their own 80 % of the time. `random`: 9 draw any class.
`copying`: 6 are asked beside another one and give the same label. `features`: all draw labels from a cross-fitted
posterior, tempered so that they are right as often as good ones, as far as that goes. `mixture`: some of each.

Methods on the same annotations: majority vote (ties at random), Dawid-Skene of crowd-kit (if it can be imported; up to
5,000 rows) and of `fit_annotators` without features, CROWDLAB (cleanlab) and `fit_annotators` on the same out-of-fold
probabilities, those of logistic regression on the majority's labels, C by their likelihood; and `UnflipClassifier` from
features to the end.

- `accuracy`: fraction of consensus labels that are right
- `auroc`: how well their quality tells right ones from wrong ones; null if all are right
- `ece`: expected calibration error of that quality, in ten bins
- `error`: mean absolute error of estimated accuracies, against those of the labels that an annotator gave

A line of the file is one run; runs in the file are not repeated. --page fills the tables of that page; --only runs some
data sets, --kinds some kinds of annotators, --ways one of `shared` and `end to end`.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import marked
import noise_rate_table

DATA = ("digits", "cifar10, 10,000", "TrashNet", "BANKING77", "cifar100, 10,000")
LABELS = (2, 3, 5)
POOLS = {
    "good": {"good": 30},
    "biased": {"good": 15, "biased": 15},
    "lazy": {"good": 21, "lazy": 9},
    "random": {"good": 21, "random": 9},
    "copying": {"good": 24, "copying": 6},
    "features": {"features": 30},
    "mixture": {"good": 11, "biased": 5, "lazy": 3, "random": 3, "features": 5, "copying": 3},
}
WAYS = ("shared", "end to end")
MAJORITY, CROWD_KIT, OWN_DS, CROWDLAB = "majority", "Dawid-Skene, crowd-kit", "Dawid-Skene", "CROWDLAB"
OURS, END_TO_END = "fit_annotators", "UnflipClassifier"
METHODS = (MAJORITY, CROWD_KIT, OWN_DS, CROWDLAB, OURS, END_TO_END)
FIGURES = ("accuracy", "auroc", "ece", "error")
STRENGTHS = (0.003, 0.03)
TEMPERATURES = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
TOLERANCE = 0.002  # by which a row may be below majority vote
MAX_CROWD_KIT = 5_000  # rows
LEAD = 0.003  # over CROWDLAB at two labels


def cells(seeds: Sequence[int], ways: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield every run, cheap ones first."""
    for way, seed, data, kind, labels in product(ways, seeds, DATA, POOLS, LABELS):
        yield {"data": data, "kind": kind, "labels": labels, "seed": seed, "way": way}


def run(cell: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the methods of a run."""
    data, way = cell["data"], cell["way"]
    table = annotate(data, cell["kind"], cell["labels"], cell["seed"])
    method_runs = shared if way == "shared" else end_to_end
    return cell | {
        "count": len(table),
        "methods": dict(method_runs(data, table, cell["seed"])),
    }


def annotate(data: str, kind: str, labels: int, seed: int) -> Any:
    """Return class numbers (n, annotators), -1 where someone was not asked."""
    import numpy as np

    clean = noise_rate_table.load(data)[1]
    random, count, classes = np.random.default_rng([seed, labels, *kind.encode()]), len(clean), int(clean.max()) + 1
    people = [name for name, size in POOLS[kind].items() for _ in range(size)]
    originals = [number for number, name in enumerate(people) if name != "copying"]
    answers = np.empty((count, len(people)), np.int64)
    asked = np.argsort(random.random((count, len(originals))), 1)[:, :labels]
    for number, name in enumerate(people):
        accuracy = random.uniform(0.6, 0.9)
        other = (clean + random.integers(1, classes, count)) % classes
        own = np.where(random.random(count) < accuracy, clean, other)
        if name == "biased":
            confused, target = random.random(classes) < 0.5, random.permutation(classes)
            own = np.where(confused[clean] & (random.random(count) < 0.6), target[clean], own)
        elif name == "lazy":
            own = np.where(random.random(count) < 0.8, random.integers(classes), own)
        elif name == "random":
            own = random.integers(0, classes, count)
        elif name == "features":
            probs, reached = posterior(data)
            own = draw(probs ** np.interp(accuracy, reached, TEMPERATURES), random)
        elif name == "copying":
            source = number - len(originals)  # the first ones are good
            own = answers[:, source]
            rows, places = np.nonzero(asked == source)
            chosen = random.random(len(rows)) < 0.8
            asked[rows[chosen], (places[chosen] + 1) % labels] = number
        answers[:, number] = own
    table = np.full_like(answers, -1)
    np.put_along_axis(table, asked, np.take_along_axis(answers, asked, 1), 1)
    return table


def draw(weights: Any, random: Any) -> Any:
    """Return a class for each row of weights (n, k)."""
    sums = weights.cumsum(1)
    return (sums < random.random((len(sums), 1)) * sums[:, -1:]).sum(1)


@cache
def posterior(data: str) -> tuple[Any, list[float]]:
    """Return class probabilities (n, k) of clean labels, and how often draws are right at each temperature."""
    inputs, clean = noise_rate_table.load(data)
    probs = out_of_fold(inputs, clean, int(clean.max()) + 1)
    powers = [probs**power for power in TEMPERATURES]
    rows = range(len(clean))
    return probs, [float((power[rows, clean] / power.sum(1)).mean()) for power in powers]


def out_of_fold(inputs: Any, labels: Any, classes: int) -> Any:
    """Return out-of-fold probabilities (n, k) by logistic regression, C by the likelihood of the labels."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known, codes = np.unique(labels, return_inverse=True)
    candidates = []
    for strength in STRENGTHS:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=100))
        probs = cross_val_predict(model, inputs, codes, cv=3, method="predict_proba")
        candidates.append((float(np.log(probs[range(len(codes)), codes] + 1e-12).mean()), probs))
    result = np.full((len(labels), classes), 1e-6)
    result[:, known] += max(candidates, key=lambda pair: pair[0])[1]
    return result / result.sum(1, keepdims=True)


def shared(data: str, table: Any, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of the methods that take out-of-fold probabilities, or none."""
    import numpy as np
    import torch
    from cleanlab.multiannotator import get_label_quality_multiannotator

    from unflip.stats.annotators import Annotations, fit_annotators

    inputs, clean = noise_rate_table.load(data)
    pandas = import_module("pandas")
    count, classes = len(clean), int(clean.max()) + 1
    example, by = np.nonzero(table >= 0)
    label = table[example, by]
    counts = np.zeros((count, classes))
    np.add.at(counts, (example, label), 1)
    majority = (counts + 0.5 * np.random.default_rng(seed).random(counts.shape)).argmax(1)
    shares = counts / counts.sum(1, keepdims=True)
    yield MAJORITY, score(clean, table, majority, shares[range(count), majority], agreement(table, majority))
    if count <= MAX_CROWD_KIT and find_spec("crowdkit"):
        long = pandas.DataFrame({"task": example, "worker": by, "label": label})
        model = import_module("crowdkit.aggregation").DawidSkene(n_iter=30)
        probs = model.fit_predict_proba(long).reindex(index=range(count), columns=range(classes)).fillna(0).to_numpy()
        yield CROWD_KIT, by_posterior(clean, table, probs)
    probs = out_of_fold(inputs, majority, classes)
    wide = pandas.DataFrame(table).where(table >= 0).loc[:, (table >= 0).any(0)]
    found = get_label_quality_multiannotator(wide, probs, verbose=False, return_detailed_quality=False)
    quality, people = found["label_quality"], found["annotator_stats"].sort_index()
    estimates = people["annotator_quality"].reindex(range(table.shape[1])).to_numpy()
    consensus = quality["consensus_label"].to_numpy()
    yield CROWDLAB, score(clean, table, consensus, quality["consensus_quality_score"].to_numpy(), estimates)
    names = tuple(map(str, range(table.shape[1])))
    annotations = Annotations(torch.from_numpy(example), torch.from_numpy(by), torch.from_numpy(label), names)
    for name, prior in ((OWN_DS, np.ones_like(probs) / classes), (OURS, probs)):
        started = time.process_time()
        fit = fit_annotators(annotations, torch.from_numpy(np.log(prior)).float(), of_prior=name == OWN_DS)
        seconds = time.process_time() - started
        figures = by_posterior(clean, table, fit.log_probs.double().exp().numpy()) | {"seconds": round(seconds, 2)}
        yield name, figures | {"sharpness": round(fit.sharpness, 2), "label_weight": fit.label_weight}


def end_to_end(data: str, table: Any, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of UnflipClassifier with its defaults."""
    import numpy as np

    from unflip import UnflipClassifier
    from unflip.data.dataset import Dataset, Split
    from unflip.engine.distributed import Distributed
    from unflip.engine.run import train_in_memory

    inputs, clean = noise_rate_table.load(data)
    people = tuple(map(str, range(table.shape[1])))
    raw = Dataset(
        Split(inputs, None, annotations=table.astype(np.int32)),
        name="X, y",
        annotators=people,
        class_names=tuple(map(str, range(int(clean.max()) + 1))),
    )
    config = UnflipClassifier(random_state=seed)._configure(len(clean), {"path": "X, y"})
    started = time.process_time()
    done = train_in_memory(config, raw, Distributed("cpu", "float32", 1))
    seconds = time.process_time() - started
    consensus, quality = (done.labels[name].to_numpy() for name in ("current_label", "prob_current"))
    assert done.annotators is not None
    rows = dict(zip(*(done.annotators.annotators[name].to_pylist() for name in ("annotator", "accuracy")), strict=True))
    estimates = np.array([rows.get(name, np.nan) for name in people])
    yield END_TO_END, score(clean, table, consensus, quality, estimates) | {"seconds": round(seconds, 1)}


def by_posterior(clean: Any, table: Any, probs: Any) -> dict[str, Any]:
    """Return the figures of posterior probabilities (n, k); accuracies are the mean probability of the labels given."""
    import numpy as np

    given = table >= 0
    right = np.take_along_axis(probs, table.clip(0), 1) * given
    return score(clean, table, probs.argmax(1), probs.max(1), right.sum(0) / np.maximum(1, given.sum(0)))


def agreement(table: Any, labels: Any) -> Any:
    """Return the fraction of labels (n, annotators) of each annotator that agree with some (n,)."""
    given = table >= 0
    return ((table == labels[:, None]) & given).sum(0) / given.sum(0).clip(1)


def score(clean: Any, table: Any, consensus: Any, quality: Any, estimates: Any) -> dict[str, Any]:
    """Return what is shown of consensus labels (n,), their quality (n,) and accuracies of annotators (a,)."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    right, asked = consensus == clean, (table >= 0).any(0)
    bins = np.minimum((10 * quality).astype(int), 9)
    parts = [bins == number for number in range(10) if (bins == number).any()]
    figures = {
        "accuracy": right.mean(),
        "auroc": np.nan if right.all() else roc_auc_score(right, quality),
        "ece": sum(abs(quality[part].mean() - right[part].mean()) * part.mean() for part in parts),
        "error": np.abs(estimates - agreement(table, clean))[asked].mean(),
    }
    return {name: None if np.isnan(value) else round(float(value), 5) for name, value in figures.items()}


Row = dict[str, Any]


def averaged(results: Iterable[Row]) -> list[Row]:
    """Return the figures of each data set, kind and number of labels, averaged over seeds, by method."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for line in results:
        groups.setdefault((line["data"], line["kind"], line["labels"]), []).append(line)
    order = sorted(groups, key=lambda key: (DATA.index(key[0]), [*POOLS].index(key[1]), key[2]))
    return [{"data": key[0], "kind": key[1], "labels": key[2]} | _means(groups[key]) for key in order]


def _means(lines: list[Row]) -> Row:
    methods: Row = {}
    for method in METHODS:
        found = [line["methods"][method] for line in lines if method in line["methods"]]
        if found:
            methods[method] = {name: mean(one[name] for one in found) for name in FIGURES}
    seeds = {way: len({line["seed"] for line in lines if line["way"] == way}) for way in WAYS}
    return {"methods": methods, "seeds": seeds}


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def of_rows(rows: list[Row], method: str, figure: str = "accuracy") -> float | None:
    return mean(row["methods"][method][figure] for row in rows if method in row["methods"])


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "| --- " * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def means(results: list[Row], *, complete: bool) -> Iterator[str]:
    """Yield the means of each method, of all rows or of those that UnflipClassifier has."""
    rows = averaged(results)
    body = []
    for labels, method in product(LABELS, METHODS if complete else METHODS[:-1]):
        part = [row for row in rows if row["labels"] == labels and (not complete or END_TO_END in row["methods"])]
        figures = [percent(of_rows(part, method, figure)) for figure in FIGURES]
        body.append([str(labels), str(sum(method in row["methods"] for row in part)), method, *figures])
    return _table(["labels", "rows", "method", "consensus right", "AUROC", "ECE", "error of accuracies"], body)


def parts(results: list[Row], name: str) -> Iterator[str]:
    """Yield consensus accuracy by data set or kind, and number of labels."""
    rows = averaged(results)
    body = []
    for value in DATA if name == "data" else POOLS:
        for labels in LABELS:
            part = [row for row in rows if row[name] == value and row["labels"] == labels]
            if part:
                body.append([value, str(labels), *(percent(of_rows(part, method)) for method in METHODS)])
    return _table([name, "labels", *METHODS], body)


def bars(results: list[Row]) -> Iterator[str]:
    """Yield what was wanted, and what came out."""
    rows = averaged(results)
    body = []
    for method in (OURS, END_TO_END):
        own = [row for row in rows if method in row["methods"]]

        def leads_over(other: str, some: list[Row], method: str = method) -> list[float]:
            return [
                row["methods"][method]["accuracy"] - row["methods"][other]["accuracy"]
                for row in some
                if other in row["methods"]
            ]

        wanted: list[tuple[str, float, Callable[[list[float]], float | None], list[float]]] = [
            (f"ahead of {other} in the mean", 0.0, mean, leads_over(other, own)) for other in METHODS[:3]
        ]
        wanted.append(("no row more than 0.2 below majority", -TOLERANCE, min, leads_over(MAJORITY, own)))
        for labels in LABELS:
            limit, words = (LEAD, "at least 0.3 ahead") if labels == 2 else (0.0, "not behind")
            leads = leads_over(CROWDLAB, [row for row in own if row["labels"] == labels])
            wanted.append((f"CROWDLAB, {labels} labels: {words} in the mean", limit, mean, leads))
        body += [[method, words, *_outcome(of(leads), limit, leads)] for words, limit, of, leads in wanted if leads]
    return _table(["method", "wanted", "points", "", "rows ahead", "worst row"], body)


def _outcome(value: float | None, limit: float, leads: list[float]) -> list[str]:
    assert value is not None
    ahead = f"{sum(lead > 0 for lead in leads)} of {len(leads)}"
    return [f"{100 * value:+.2f}", "met" if value >= limit else "**missed**", ahead, f"{100 * min(leads):+.1f}"]


def rows_of(results: list[Row]) -> Iterator[str]:
    """Yield every row: consensus accuracy, then AUROC and error of accuracies of CROWDLAB and ours."""
    compared = (CROWDLAB, OURS, END_TO_END)
    body = []
    for row in averaged(results):
        found = row["methods"]
        figures = [percent(found.get(method, {}).get("accuracy")) for method in METHODS]
        figures += [percent(found.get(one, {}).get(figure)) for figure in ("auroc", "ece", "error") for one in compared]
        seeds = ", ".join(str(row["seeds"][way]) for way in WAYS)
        body.append([row["data"], row["kind"], str(row["labels"]), seeds, *figures])
    titles = [f"{title}: {one}" for title in ("AUROC", "ECE", "error") for one in ("CROWDLAB", "fit", "Unflip")]
    return _table(["data", "kind", "labels", "seeds", *METHODS, *titles], body)


def fill(page: str, results: list[Row]) -> str:
    makers: dict[str, Callable[[list[Row]], Iterator[str]]] = {
        "means": partial(means, complete=False),
        "means, end to end": partial(means, complete=True),
        "bars": bars,
        "data": partial(parts, name="data"),
        "kind": partial(parts, name="kind"),
        "rows": rows_of,
    }
    return marked.fill(page, "annotators", lambda words: makers[words](results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=DATA)
    parser.add_argument("--kinds", nargs="*", default=POOLS)
    parser.add_argument("--ways", nargs="*", default=WAYS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # of few labels in a class
    lines = options.results.read_text("utf-8").splitlines() if options.results.exists() else []
    results = [json.loads(line) for line in lines]
    keys = ("data", "kind", "labels", "seed", "way")
    done = {tuple(line[key] for key in keys) for line in results}
    for cell in cells(range(options.seeds), options.ways):
        if tuple(cell.values()) in done or cell["data"] not in options.only or cell["kind"] not in options.kinds:
            continue
        results.append(run(cell))
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(results[-1]) + "\n")
        print(cell, {name: one["accuracy"] for name, one in results[-1]["methods"].items()}, flush=True)
    if options.page:
        options.page.write_text(fill(options.page.read_text("utf-8"), results), "utf-8")


if __name__ == "__main__":
    main()
