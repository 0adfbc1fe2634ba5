"""Outliers: examples of other classes mixed into data, found by unflip and by cleanlab's Datalab on the same features.

    UNFLIP_DATA=FOLDER UNFLIP_CIFAR=FOLDER python pages/outliers_table.py docs/results/outliers.jsonl \
      --page docs/audit.md --keep FOLDER

- `CIFAR-10 + things`, `CIFAR-10 + animals`: 5,000 training images of CIFAR-10, and 250 of 20 or 15 classes of CIFAR-100
  that have no counterpart there, embedded together by efficientnet-lite0 at 112 pixels
- `BANKING77 + other intents`: ten of the 77 intents are held out; of their training texts as many as make 5 % of the
  rest are mixed in; features by wordllama

Foreign examples get random labels; `sym:0.2` then gives a fifth of all labels a random class. `unflip` is the check
`outlier` with these labels, `corrected` the same with labels corrected by UnflipClassifier; `Datalab` is cleanlab's
outlier score with its defaults. A line of the file is one setting and seed: areas under the ROC curve, the number of
foreign and of other examples that each flags, and `false_alone`, the number of examples that `unflip` flags without any
foreign ones. Lines in the file are not computed again. `--keep` caches image features in a folder; UNFLIP_CIFAR
contains cifar-10-batches-bin and cifar-100-binary.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

import marked
from features_trials import run_missing

Array = np.ndarray[Any, Any]
SEEDS = (0, 1, 2)
NOISES = ("none", "sym:0.2")
IMAGES, FOREIGN = 5_000, 250
HELD_OUT, SHARE = 10, 0.05
CLASSES = {
    "CIFAR-10 + things": "apple orange pear sunflower rose tulip bottle bowl can cup plate chair couch table wardrobe "
    "clock keyboard lamp telephone television",
    "CIFAR-10 + animals": "aquarium_fish flatfish shark trout ray bee beetle butterfly caterpillar cockroach crab "
    "lobster snail spider worm",
}
ROWS = (*CLASSES, "BANKING77 + other intents")


class Problem(NamedTuple):
    """Features (n, d), labels (n,) of k classes, and which examples are foreign; these come last."""

    features: Array
    labels: Array
    foreign: Array
    num_classes: int


def images(row: str, seed: int, keep: Path) -> Problem:
    """Return images of CIFAR-10 and foreign ones of CIFAR-100."""
    file = keep / f"cifar-{seed}.npz"
    if not file.exists():
        features, labels = _embed(seed)
        np.savez(file, features=features, labels=labels)
    with np.load(file) as found:
        features, labels = found["features"].astype(np.float32), found["labels"]
    start = IMAGES + FOREIGN * [*CLASSES].index(row)
    rows = np.r_[0:IMAGES, start : start + FOREIGN]
    random = np.random.default_rng(seed)
    given = np.r_[labels, random.integers(10, size=FOREIGN)]
    return Problem(features[rows], given, np.arange(len(rows)) >= IMAGES, 10)


def _embed(seed: int) -> tuple[Array, Array]:
    import torch

    from unflip.data.loaders import load_raw
    from unflip.data.options import DataOptions
    from unflip.encoders.image import ImageEncoder

    torch.set_num_threads(1)
    root, random = Path(os.environ["UNFLIP_CIFAR"]), np.random.default_rng(seed)
    options = DataOptions(path=str(root / "cifar-10-batches-bin"))
    own, other = load_raw(options), load_raw(DataOptions(path=str(root / "cifar-100-binary")))
    assert isinstance(own.train.inputs, np.ndarray)
    assert isinstance(other.train.inputs, np.ndarray)
    assert own.train.labels is not None
    names = np.array(other.class_names)[other.train.labels]
    rows = random.choice(len(own.train.inputs), IMAGES, replace=False)
    parts = [own.train.inputs[rows]]
    for classes in CLASSES.values():
        among = np.flatnonzero(np.isin(names, classes.split()))
        parts.append(other.train.inputs[random.choice(among, FOREIGN, replace=False)])
    encoder = ImageEncoder.choose("efficientnet-lite0", own.train.inputs, options, None)
    features = encoder.to(torch.device("cpu")).encode(np.concatenate(parts)).features
    return features, own.train.labels[rows]


def texts(seed: int) -> Problem:
    """Return questions of some intents of BANKING77, and foreign ones of the others."""
    from unflip.data.loaders import load_raw
    from unflip.data.options import DataOptions
    from unflip.encoders.table import encode_raw

    path = Path(os.environ["UNFLIP_DATA"]) / "text" / "banking77" / "train.csv"
    options = DataOptions(path=str(path), text_column=("text",), label_column="category")
    raw = encode_raw(load_raw(options), options)
    random = np.random.default_rng(seed)
    assert raw.train.labels is not None
    names, labels = np.unique(raw.train.labels, return_inverse=True)
    out = random.choice(len(names), HELD_OUT, replace=False)
    own, others = np.flatnonzero(~np.isin(labels, out)), np.flatnonzero(np.isin(labels, out))
    mixed = random.choice(others, round(SHARE * len(own)), replace=False)
    classes = np.setdiff1d(np.arange(len(names)), out)
    given = np.r_[np.searchsorted(classes, labels[own]), random.integers(len(classes), size=len(mixed))]
    rows = np.r_[own, mixed]
    features: Array = np.asarray(raw.train.inputs[rows])
    return Problem(features, given, np.arange(len(rows)) >= len(own), len(classes))


def find(features: Array, given: Array, num_classes: int) -> Any:
    """Run the check `outlier`."""
    import pyarrow as pa
    import torch

    from unflip.data.dataset import Dataset, Split
    from unflip.issues.audit import AuditInput
    from unflip.issues.outlier import find_outliers

    torch.set_num_threads(1)
    names = [str(number) for number in range(num_classes)]
    table = pa.table({"given_label": given, "current_label": given, "reviewed": np.zeros(len(given), bool)})
    return find_outliers(AuditInput(table, names, Dataset(Split(features, given))))


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    from cleanlab import Datalab
    from sklearn.metrics import roc_auc_score

    from unflip import UnflipClassifier

    seed, keep = task["seed"], Path(os.environ["OUTLIERS_KEPT"])
    problem = images(task["row"], seed, keep) if task["row"] in CLASSES else texts(seed)
    given, foreign = problem.labels.copy(), problem.foreign
    if task["noise"] != "none":
        random = np.random.default_rng(100 + seed)
        wrong = random.random(len(given)) < float(task["noise"].removeprefix("sym:"))
        given[wrong] = random.integers(problem.num_classes, size=int(wrong.sum()))
    found = find(problem.features, given, problem.num_classes)
    corrected = UnflipClassifier(random_state=seed).fit(problem.features, given).labels_
    by_corrected = find(problem.features, corrected, problem.num_classes)
    alone = find(problem.features[~foreign], given[~foreign], problem.num_classes)
    lab = Datalab(data={"labels": given}, label_name="labels", verbosity=0)
    lab.find_issues(features=problem.features, issue_types={"outlier": {}})
    issues = lab.get_issues("outlier")
    theirs, flags = -issues["outlier_score"].to_numpy(), issues["is_outlier_issue"].to_numpy()
    return task | {
        "unflip": float(roc_auc_score(foreign, found.scores)),
        "corrected": float(roc_auc_score(foreign, by_corrected.scores)),
        "datalab": float(roc_auc_score(foreign, theirs)),
        "foreign": int(foreign.sum()),
        "others": int((~foreign).sum()),
        "unflip_flags": [int((found.flags & foreign).sum()), int((found.flags & ~foreign).sum())],
        "datalab_flags": [int((flags & foreign).sum()), int((flags & ~foreign).sum())],
        "false_alone": int(alone.flags.sum()),
    }


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "| data | noise | unflip, seed 0 (seen) | unflip, seeds 1 and 2 | if labels were corrected first | Datalab, "
        "all seeds | foreign | flagged | of them foreign | flagged where nothing is foreign |"
    )
    yield "| --- |" + " --- |" * 9
    for row in ROWS:
        for noise in NOISES:
            here = [line for line in lines if (line["row"], line["noise"]) == (row, noise)]
            if not here:
                continue
            unseen = [line for line in here if line["seed"] != 0]
            aurocs = [[line["unflip"] for line in here if line["seed"] == 0]]
            aurocs += [[line[name] for line in unseen] for name in ("unflip", "corrected")]
            aurocs += [[line["datalab"] for line in here]]
            counts = [statistics.mean(line["foreign"] for line in here)]
            counts += [statistics.mean(sum(line["unflip_flags"]) for line in here)]
            counts += [statistics.mean(line["unflip_flags"][0] for line in here)]
            alone = statistics.mean(line["false_alone"] for line in here)
            others = statistics.mean(line["others"] for line in here)
            cells = [*map(_mean, aurocs), *(f"{count:.0f}" for count in counts), f"{alone:.0f} of {others:,.0f}"]
            yield f"| {row} | {noise} | " + " | ".join(cells) + " |"


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f}" if values else ""


def fill(page: str, lines: list[dict[str, Any]]) -> str:
    """Return a page with its table as the lines say it."""
    return marked.fill(page, "outliers", lambda _: table(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--keep", type=Path, help="keep features of images in this folder")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--as-it-is", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    tasks = [{"row": row, "noise": noise, "seed": seed} for seed in SEEDS for row in ROWS for noise in NOISES]
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["OUTLIERS_KEPT"] = str(arguments.keep or temporary)
        if not arguments.as_it_is:
            run_missing(arguments.out, tasks, run_one, arguments.jobs)
    lines = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    if arguments.page is not None:
        arguments.page.write_text(fill(arguments.page.read_text("utf-8"), lines), "utf-8")
    else:
        print("\n".join(table(lines)))


if __name__ == "__main__":
    main()
