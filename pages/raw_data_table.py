"""Raw texts, photos and mixed tables with default encoders, against cleanlab on the same features.

    UNFLIP_DATA=FOLDER python pages/raw_data_table.py docs/results/raw-data.jsonl --page docs/results/raw-data.md

Data: BANKING77 (its own split), TrashNet (a quarter to test), and three tables made of scikit-learn's data, in which
columns have become categories, dates, booleans and an identifier, and every column has empty cells. `similar:0.2` gives
a fifth of the labels of each class that of the most similar one: the nearest class mean of the clean features; on
TrashNet glass, plastic and metal turn into each other. Figures and columns as in own_data_table.py.
"""

import argparse
import json
import os
import sys
import tarfile
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import own_data
import own_data_table

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

SETS = ("BANKING77", "TrashNet", "mixed wine", "mixed breast cancer", "mixed digits")
NOISES = ("sym:0.2", "similar:0.2")
WAYS = ("unflip", "cleanlab, logistic regression")
WASTE = {"glass": "plastic", "plastic": "metal", "metal": "glass"}


@cache
def texts() -> own_data.Problem:
    from unflip.data.options import DataOptions

    parts = []
    for part in ("train", "test"):
        path = Path(os.environ["UNFLIP_DATA"]) / "text" / "banking77" / f"{part}.csv"
        parts.append(_raw(DataOptions(path=str(path), text_column=("text",), label_column="category")))
    encoder = _fit(parts[0])
    names, clean = np.unique(parts[0].train.labels, return_inverse=True)
    train, test = (encoder.encode(part.train.inputs).features for part in parts)
    return own_data.Problem(train, clean, test, np.searchsorted(names, parts[1].train.labels))


@cache
def photos() -> own_data.Problem:
    from unflip import embed

    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(Path(os.environ["UNFLIP_DATA"]) / "photos" / "trashnet.tar") as archive:
            archive.extractall(name, filter="data")
        folder = next(path.parent.parent for path in sorted(Path(name).rglob("*.jpg")))
        raw = embed(folder, Path(name) / "features.npz", quiet=True).features
    assert raw.train.labels is not None
    names, labels = np.unique(raw.train.labels, return_inverse=True)
    assert names.tolist() == ["cardboard", "glass", "metal", "paper", "plastic", "trash"]
    features: Any = raw.train.inputs
    return own_data.Problem(features.astype(np.float32), labels, features[:0], labels[:0])


def mixed(name: str, seed: int) -> own_data.Problem:
    """Return a data set of scikit-learn as an encoded table of mixed column types with missing values."""
    import pyarrow as pa

    from unflip.data.columns import Table
    from unflip.encoders.table import TableEncoder

    plain = own_data.load(name, seed)
    rows = np.concatenate([plain.train, plain.test])
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {"customer": [f"c-{i}" for i in random.permutation(len(rows))]}
    for place, values in enumerate(rows.T):
        cells: Any = values
        if place % 4 == 1:  # names of quarters
            cells = np.array(["low", "middle", "high", "top"])[
                np.searchsorted(np.quantile(values, (0.25, 0.5, 0.75)), values)
            ]
        elif place % 4 == 2 and len(np.unique(values)) > 2:  # days
            scaled = (values - values.min()) / (np.ptp(values) or 1)
            cells = np.datetime64("2020-01-01") + (1000 * scaled).astype("timedelta64[D]")
        elif place % 8 == 3:
            cells = values > np.median(values)
        columns[f"column {place}"] = pa.array(cells, mask=random.random(len(rows)) < 0.1)
    table, count = Table(pa.table(columns)), len(plain.train)
    encoder = TableEncoder.fit(table[:count])
    features = encoder.encode(table).features
    return own_data.Problem(features[:count], plain.clean, features[count:], plain.test_labels)


def load(name: str, seed: int) -> own_data.Problem:
    from sklearn.model_selection import train_test_split

    if name == "BANKING77":
        return texts()
    if name == "TrashNet":
        whole = photos()
        parts = train_test_split(whole.train, whole.clean, test_size=0.25, stratify=whole.clean, random_state=seed)
        return own_data.Problem(parts[0], parts[2], parts[1], parts[3])
    return mixed(name.removeprefix("mixed "), seed)


def make_noisy(name: str, problem: own_data.Problem, noise: str, seed: int) -> Any:
    if noise.startswith("sym"):
        return own_data.make_noisy("", problem, noise, seed)
    clean, random = problem.clean, np.random.default_rng(seed)
    means = np.stack([problem.train[clean == label].mean(0) for label in range(clean.max() + 1)])
    apart = ((means[:, None] - means) ** 2).sum(2) + np.diag(np.full(len(means), np.inf))
    target = apart.argmin(1)
    if name == "TrashNet":
        names = ["cardboard", "glass", "metal", "paper", "plastic", "trash"]
        target = np.array([names.index(WASTE.get(label, label)) for label in names])
    flips = random.random(len(clean)) < 0.2
    return np.where(flips, target[clean], clean)


@cache
def choose_strength(name: str, noise: str) -> float:
    """Return the C that is used for a data set and noise."""
    seed = own_data_table.SEEDS[0]
    problem = load(name, seed)
    return own_data.choose_strength(problem.train, make_noisy(name, problem, noise, seed))


def _raw(options: Any) -> Any:
    from unflip.data.loaders import load_raw

    return load_raw(options)


def _fit(raw: Any) -> Any:
    from unflip.encoders.columns import ColumnChoices
    from unflip.encoders.table import TableEncoder

    return TableEncoder.fit(raw.train.inputs, ColumnChoices(text_column=("text",)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    done = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    for name in reversed(SETS):
        for seed in own_data_table.SEEDS:
            for noise in NOISES:
                for way in WAYS:
                    task = {"data": name, "noise": noise, "seed": seed, "way": way}
                    if any(task.items() <= line.items() for line in done):
                        continue
                    problem = load(name, seed)
                    given = make_noisy(name, problem, noise, seed)
                    choose = partial(choose_strength, name, noise)
                    figures = own_data_table.run(way, problem, given, seed, choose)
                    done.append(task | {"wrong": float((given != problem.clean).mean())} | figures)
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(done[-1]) + "\n")
                    print(done[-1], file=sys.stderr)
    if arguments.page is None:
        print("\n".join(own_data_table.tables(done, SETS, NOISES, WAYS)))
        return
    arguments.page.write_text(fill(arguments.page.read_text("utf-8"), done), "utf-8")


def fill(page: str, results: list[dict[str, Any]]) -> str:
    """Return the page with its tables filled from the results."""
    return own_data_table.fill(page, results, SETS, NOISES, WAYS)


if __name__ == "__main__":
    main()
