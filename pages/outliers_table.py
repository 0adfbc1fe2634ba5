"""Outliers: what is flagged in data without any, and found where foreign examples are mixed in; Datalab's beside it.

    UNFLIP_DATA=FOLDER UNFLIP_CIFAR=FOLDER python pages/outliers_table.py docs/results/outliers.jsonl \
      --page docs/results/outliers.md --keep FOLDER

Eight data sets as they are, and eleven mixtures (`ROWS`). Mixtures of CIFAR and TrashNet are embedded by
efficientnet-lite0, texts by wordllama, tables by unflip's encoder of tables; both checks get the same features. A line
of the file is one row and seed: how many examples each check flags; of mixtures also the area under the ROC curve, the
share of foreign examples among those flagged, and the share found by each ranking where it flags 1 % of the others.
Lines in the file are not computed again. Seeds 0 and 1 were used when choosing the check. `--keep` caches the features
of images in a folder. UNFLIP_DATA contains features/, text/banking77/ and photos/trashnet.tar, UNFLIP_CIFAR
cifar-10-batches-bin and cifar-100-binary.
"""

import argparse
import json
import os
import re
import statistics
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

import marked
from features_trials import run_missing

Array = np.ndarray[Any, Any]
SEEDS = (2, 3, 4)
CHECKS = ("unflip", "datalab")
IMAGES, FOREIGN, PHOTOS = 5_000, 250, 60
CLASSES = {
    "things": "apple orange pear sunflower rose tulip bottle bowl can cup plate chair couch table wardrobe clock "
    "keyboard lamp telephone television",
    "animals": "aquarium_fish flatfish shark trout ray bee beetle butterfly caterpillar cockroach crab lobster snail "
    "spider worm",
}


class Problem(NamedTuple):
    """Features (n, d), which examples are foreign, and how the features were made."""

    features: Array
    foreign: Array
    encoding: Any = None


def _joined(own: Array, foreign: Array, encoding: Any = None) -> Problem:
    return Problem(np.concatenate([own, foreign]), np.arange(len(own) + len(foreign)) >= len(own), encoding)


def _alone(features: Array, count: int | None, seed: int, encoding: Any = None) -> Problem:
    rows = np.random.default_rng(seed).permutation(len(features))[:count]
    return Problem(features[rows], np.zeros(len(rows), bool), encoding)


def _measured(name: str) -> tuple[Array, Array]:
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    return found.data.astype(np.float32), found.target


def _frozen(name: str, seed: int) -> Problem:
    with np.load(Path(os.environ["UNFLIP_DATA"]) / "features" / f"{name}.npz") as found:
        return _alone(found["train"][:20_000].astype(np.float32), 4_000, seed)


def _scrambled_digits(seed: int) -> Problem:
    random, (own, _) = np.random.default_rng(100 + seed), _measured("digits")
    return _joined(own, random.permuted(own[random.choice(len(own), 54, replace=False)], axis=1))


def _scaled_rows(seed: int) -> Problem:
    """Return wines, and rows of breast cancer with the mean size of each column of the wines."""
    random, (own, _), (other, _) = np.random.default_rng(100 + seed), _measured("wine"), _measured("breast_cancer")
    rows = other[random.choice(len(other), 9, replace=False)][:, : own.shape[1]]
    return _joined(own, rows * np.abs(own).mean(0) / np.abs(rows).mean(0))


def _independent_columns(seed: int) -> Problem:
    random, (own, _) = np.random.default_rng(100 + seed), _measured("breast_cancer")
    return _joined(own, np.take_along_axis(own, random.integers(len(own), size=(28, own.shape[1])), 0))


def _customers(count: int, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    tenure, charge = random.exponential(30, count).round(), np.exp(random.normal(3.5, 0.7, count)).round(2)
    balance = np.where(random.random(count) < 0.06, np.nan, 500 * random.standard_t(4, count) + 800)
    countries = random.choice(
        ["DE", "FR", "IT", "ES", "PL", "NL", "AT", "CH"], count, p=[0.35, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02]
    )
    return {
        "age": random.normal(45, 14, count).clip(18, 95).round(),
        "tenure": tenure,
        "charge": charge,
        "total": (charge * tenure * np.exp(random.normal(0, 0.1, count))).round(2),
        "calls": random.poisson(np.exp(random.normal(0.3, 0.8, count))).astype(float),
        "visits": random.negative_binomial(1, 0.05, count).astype(float),
        "balance": balance,
        "plan": random.choice(["basic", "plus", "pro", "team"], count, p=[0.5, 0.3, 0.15, 0.05]),
        "country": countries,
        "payment": random.choice(["card", "transfer", "cash", "paypal"], count, p=[0.6, 0.25, 0.12, 0.03]),
        "automatic": random.random(count) < 0.3,
    }


def _encoded(columns: dict[str, Array], foreign: Array) -> Problem:
    import pyarrow as pa

    from unflip.data.columns import Table
    from unflip.encoders.table import TableEncoder

    cells = Table(pa.table({name: pa.array(column, from_pandas=True) for name, column in columns.items()}))
    encoder = TableEncoder.fit(cells)
    return Problem(encoder.encode(cells).features, foreign, encoder.encoding())


def _swapped_cells(seed: int) -> Problem:
    """Return customers, and some more whose numbers are in columns at random."""
    own, other, random = _customers(2400, seed), _customers(120, 50 + seed), np.random.default_rng(100 + seed)
    numbers = [name for name, column in other.items() if column.dtype == float]
    other |= zip(numbers, random.permuted(np.stack([other[name] for name in numbers]), axis=0), strict=True)
    return _encoded({name: np.r_[own[name], other[name]] for name in own}, np.arange(2520) >= 2400)


def _wrong_cells(seed: int) -> Problem:
    """Return customers, some of whom have one number that is 10 to 100 times too large."""
    columns, which = _customers(2400, seed), np.random.default_rng(100 + seed).integers(3, size=120)
    for place, (name, factor) in enumerate({"age": 10, "charge": 100, "tenure": 50}.items()):
        rows = 2280 + np.flatnonzero(which == place)
        columns[name][rows] = factor * (columns[name][rows] + 1)
    return _encoded(columns, np.arange(2400) >= 2280)


def _texts(texts: Sequence[str]) -> tuple[Array, Any]:
    import pyarrow as pa

    from unflip.data.columns import Table
    from unflip.encoders.columns import ColumnChoices
    from unflip.encoders.table import TableEncoder

    cells = Table(pa.table({"text": list(texts)}))
    encoder = TableEncoder.fit(cells, ColumnChoices(text_column=("text",)))
    return encoder.encode(cells).features, encoder.encoding()


def _banking() -> tuple[Array, Array, Any]:
    import pyarrow.csv

    path = Path(os.environ["UNFLIP_DATA"]) / "text" / "banking77" / "train.csv"
    table = pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    features, encoding = _texts(table["text"].to_pylist())
    return features, np.array(table["category"].to_pylist()), encoding


def _questions(seed: int) -> Problem:
    features, _, encoding = _banking()
    return _alone(features, 5_000, seed, encoding)


def _other_intents(seed: int) -> Problem:
    random, (features, labels, encoding) = np.random.default_rng(100 + seed), _banking()
    out = np.isin(labels, random.choice(np.unique(labels), 10, replace=False))
    own = random.choice(np.flatnonzero(~out), 5_000, replace=False)
    return _joined(features[own], features[random.choice(np.flatnonzero(out), 200, replace=False)], encoding)


def _other_texts(seed: int) -> Problem:
    """Return questions to a bank, and sentences of Python's manual."""
    from pydoc_data.topics import topics

    random, (features, _, encoding) = np.random.default_rng(100 + seed), _banking()
    text = " ".join("\n".join(topics[name] for name in sorted(topics)).split())
    sentences = {line for line in re.findall(r"(?<=[.?] )[A-Z][A-Za-z ,'-]+[.?]", text) if 6 <= len(line.split()) <= 16}
    own = random.choice(len(features), 3_000, replace=False)
    return _joined(features[own], _texts(random.choice(sorted(sentences), 200, replace=False).tolist())[0], encoding)


def _photos() -> tuple[Array, Array]:
    """Return features and classes of photos, and those of small images for each seed, of class cifar-SEED."""
    from PIL import Image

    import unflip
    from unflip.data.loaders import load_raw
    from unflip.data.options import DataOptions

    file = Path(os.environ["OUTLIERS_KEPT"]) / "trashnet.npz"
    if not file.exists():
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(Path(os.environ["UNFLIP_DATA"]) / "photos" / "trashnet.tar") as tar:
                tar.extractall(folder, filter="data")
            images = load_raw(DataOptions(path=str(Path(os.environ["UNFLIP_CIFAR"]) / "cifar-10-batches-bin")))
            assert isinstance(images.train.inputs, np.ndarray)
            for seed in SEEDS:
                (Path(folder) / "trashnet" / f"cifar-{seed}").mkdir()
                for i in np.random.default_rng(100 + seed).choice(len(images.train.inputs), PHOTOS, replace=False):
                    image = Image.fromarray(np.moveaxis(images.train.inputs[i], 0, -1))
                    image.save(Path(folder) / "trashnet" / f"cifar-{seed}" / f"{i}.png")
            unflip.embed(Path(folder) / "trashnet", file)
    with np.load(file) as found:
        return found["train"].astype(np.float32), found["train_labels"]


def _own_photos() -> tuple[Array, Array]:
    features, classes = _photos()
    own = ~np.char.startswith(classes, "cifar")
    return features[own], classes[own]


def _other_class(seed: int) -> Problem:
    random, (features, classes) = np.random.default_rng(100 + seed), _own_photos()
    out = classes == random.choice(np.unique(classes))
    return _joined(features[~out], features[random.choice(np.flatnonzero(out), PHOTOS, replace=False)])


def _small_images(seed: int) -> Problem:
    """Return photos of waste, and images of CIFAR-10."""
    features, classes = _photos()
    return _joined(_own_photos()[0], features[classes == f"cifar-{seed}"])


def _other_images(kind: str, seed: int) -> Problem:
    file = Path(os.environ["OUTLIERS_KEPT"]) / f"cifar-{seed}.npz"
    if not file.exists():
        np.savez(file, features=_embed(seed))
    with np.load(file) as found:
        features = found["features"].astype(np.float32)
    start = IMAGES + FOREIGN * [*CLASSES].index(kind)
    return _joined(features[:IMAGES], features[start : start + FOREIGN])


def _embed(seed: int) -> Array:
    """Return features of images of CIFAR-10, and of foreign ones of CIFAR-100."""
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
    names = np.array(other.class_names)[other.train.labels]
    parts = [own.train.inputs[random.choice(len(own.train.inputs), IMAGES, replace=False)]]
    for classes in CLASSES.values():
        among = np.flatnonzero(np.isin(names, classes.split()))
        parts.append(other.train.inputs[random.choice(among, FOREIGN, replace=False)])
    encoder = ImageEncoder.choose("efficientnet-lite0", own.train.inputs, options, None)
    return encoder.to(torch.device("cpu")).encode(np.concatenate(parts)).features


ROWS: dict[str, Callable[[int], Problem]] = {
    "digits": partial(_alone, _measured("digits")[0], None),
    "breast cancer": partial(_alone, _measured("breast_cancer")[0], None),
    "wine": partial(_alone, _measured("wine")[0], None),
    "customers": lambda seed: _encoded(_customers(2400, seed), np.zeros(2400, bool)),
    "BANKING77": _questions,
    "TrashNet": lambda seed: _alone(_own_photos()[0], None, seed),
    "CIFAR-10, frozen features": partial(_frozen, "cifar10"),
    "CIFAR-100, frozen features": partial(_frozen, "cifar100"),
    "digits + scrambled digits": _scrambled_digits,
    "CIFAR-10 + things": partial(_other_images, "things"),
    "CIFAR-10 + animals": partial(_other_images, "animals"),
    "TrashNet + CIFAR-10": _small_images,
    "TrashNet + another class": _other_class,
    "BANKING77 + other intents": _other_intents,
    "BANKING77 + a manual": _other_texts,
    "customers + swapped columns": _swapped_cells,
    "customers + wrong cells": _wrong_cells,
    "wine + rows of breast cancer": _scaled_rows,
    "breast cancer + independent columns": _independent_columns,
}


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    import pyarrow as pa
    import torch
    from cleanlab import Datalab
    from sklearn.metrics import roc_auc_score

    from unflip.data.dataset import Dataset, Split
    from unflip.issues.audit import AuditInput
    from unflip.issues.outlier import find_outliers

    torch.set_num_threads(1)
    features, foreign, encoding = ROWS[task["row"]](task["seed"])
    data = Dataset(Split(features, None), encoding=encoding)
    found = find_outliers(AuditInput(pa.table({"id": np.arange(len(foreign))}), (), data))
    lab = Datalab(data={"id": np.arange(len(foreign))}, verbosity=0)
    lab.find_issues(features=features, issue_types={"outlier": {}})
    issues = lab.get_issues("outlier")
    checks = {
        "unflip": (found.scores, found.flags),
        "datalab": (-issues["outlier_score"].to_numpy(), issues["is_outlier_issue"].to_numpy()),
    }
    line: dict[str, Any] = {"foreign": int(foreign.sum()), "others": int((~foreign).sum())}
    for name, (scores, flags) in checks.items():
        line[name] = {"flagged": [int((flags & foreign).sum()), int((flags & ~foreign).sum())]}
        if foreign.any():
            limit = np.quantile(scores[~foreign], 0.99)
            line[name] |= {
                "auroc": float(roc_auc_score(foreign, scores)),
                "recall": float((scores[foreign] > limit).mean()),
            }
    return task | line


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    by_row = {row: [line for line in lines if line["row"] == row] for row in ROWS}
    clean = {row: some for row, some in by_row.items() if some and not some[0]["foreign"]}
    mixed = {row: some for row, some in by_row.items() if some and some[0]["foreign"]}
    yield "| without outliers | examples | flagged | by Datalab |"
    yield "| --- | --- | --- | --- |"
    for row, some in clean.items():
        shares = [100 * _mean(some, name, lambda found: found["flagged"][1]) / some[0]["others"] for name in CHECKS]
        yield f"| {row} | {some[0]['others']:,} | " + " | ".join(f"{share:.2f} %" for share in shares) + " |"
    yield ""
    heads = ("AUROC", "found at 1 %", "flagged, of them foreign")
    yield "| with foreign examples | foreign | " + " | ".join(f"{head} | Datalab" for head in heads) + " |"
    yield "| --- | --- |" + " --- |" * 6
    for row, some in mixed.items():
        cells = [f"{_mean(some, name, lambda found: found['auroc']):.3f}" for name in CHECKS]
        cells += [f"{100 * _mean(some, name, lambda found: found['recall']):.0f} %" for name in CHECKS]
        for name in CHECKS:
            right = _mean(some, name, lambda found: found["flagged"][0])
            cells.append(f"{_mean(some, name, lambda found: sum(found['flagged'])):.0f}, {right:.0f}")
        count = f"{some[0]['foreign']} of {some[0]['foreign'] + some[0]['others']:,}"
        yield f"| {row} | {count} | " + " | ".join(cells) + " |"


def _mean(lines: list[dict[str, Any]], name: str, figure: Callable[[dict[str, Any]], float]) -> float:
    return statistics.mean(figure(line[name]) for line in lines)


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
    tasks = [{"row": row, "seed": seed} for seed in SEEDS for row in ROWS]
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
