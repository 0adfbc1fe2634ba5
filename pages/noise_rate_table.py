"""How many labels are wrong, and are they better or worse after correction? By UnflipClassifier with its defaults.

    UNFLIP_DATA=FOLDER python pages/noise_rate_table.py docs/results/noise-rate.jsonl --page docs/noise-rate.md

Small data of scikit-learn as a whole, and the first 2,000 or 10,000 frozen training features of CIFAR. Noise: none,
symmetric, each class to the next (`pair`), PMD type I with cross-fitted posteriors, and the published PMD labels.

- `given`, `after`: fraction of labels that are right
- `rate`: fraction of wrong labels; `estimate`, `low`, `high`: what is said of it
- `auroc`: how well the label quality tells right given labels from wrong ones; null without wrong ones
- `ece`: expected calibration error of the label quality, in ten bins

A line of the file is one run; runs in the file are not repeated. --page fills the tables of that page.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import marked
import own_data

SMALL = ("digits", "breast cancer", "wine")
FEATURES = tuple((name, size) for name in ("cifar10", "cifar100") for size in (2_000, 10_000))
NOISES = ("none", "sym:0.01", "sym:0.05", "sym:0.2", "sym:0.4", "pair:0.1")
PUBLISHED = ("1-0.35", "2-0.35", "3-0.35", "1-0.70")
TOLERANCE = 0.003  # or three labels: what "worse" means


def cells(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield data, noise and seed of every run."""
    for seed in seeds:
        for name in SMALL:
            yield from ({"data": name, "noise": noise, "seed": seed} for noise in (*NOISES, "pmd1:0.1", "pmd1:0.2"))
        for name, size in FEATURES:
            noises = [*NOISES, *(f"published {labels}" for labels in PUBLISHED)]
            yield from ({"data": f"{name}, {size:,}", "noise": noise, "seed": seed} for noise in noises)


def run(cell: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    from sklearn.metrics import roc_auc_score

    from unflip import UnflipClassifier

    inputs, clean, given = load(**cell)
    model = UnflipClassifier(random_state=cell["seed"]).fit(inputs, given)
    right, quality = given == clean, np.nan_to_num(model.label_quality_, nan=1.0)
    bins = np.minimum((10 * quality).astype(int), 9)
    parts = [bins == number for number in range(10) if (bins == number).any()]
    low, high = model.noise_rate_interval_
    return cell | {
        "count": len(clean),
        "given": float(right.mean()),
        "after": float((model.labels_ == clean).mean()),
        "rate": float(1 - right.mean()),
        "estimate": model.noise_rate_,
        "low": low,
        "high": high,
        "issues": int(model.label_issues_.sum()),
        "auroc": None if right.all() else float(roc_auc_score(right, np.nan_to_num(model.label_log_odds_, nan=99.0))),
        "ece": float(sum(abs(quality[part].mean() - right[part].mean()) * part.mean() for part in parts)),
    }


def load(data: str, noise: str, seed: int) -> tuple[Any, Any, Any]:
    """Return inputs, clean labels and given labels."""
    import numpy as np
    from sklearn import datasets

    if data in SMALL:
        inputs, clean = getattr(datasets, f"load_{data.replace(' ', '_')}")(return_X_y=True)
    else:
        name, size = data.replace(",", "", 1).split()
        count = int(size.replace(",", ""))
        arrays = np.load(Path(os.environ["UNFLIP_DATA"]) / "features" / f"{name}.npz")
        inputs, clean = arrays["train"][:count].astype(np.float32), arrays["train_labels"][:count].astype(np.int64)
        if noise.startswith("published"):
            labels = np.load(Path(os.environ["UNFLIP_DATA"]) / "pmd" / f"{name}-{noise.split()[1]}.npy")
            return inputs, clean, labels[:count].astype(np.int64)
    if noise == "none":
        return inputs, clean, clean
    problem = own_data.Problem(inputs, clean, inputs[:0], clean[:0])
    return inputs, clean, own_data.make_noisy(data, problem, noise, seed)


def tables(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one table, a row for each data set and noise, averaged over seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in results:
        groups.setdefault((line["data"], line["noise"]), []).append(line)
    yield "| data | noise | right, given | right, after | wrong | estimated | label issues | AUROC | ECE |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for (data, noise), lines in groups.items():
        mean = {key: sum(line[key] for line in lines) / len(lines) for key in lines[0] if type(lines[0][key]) is float}
        worse = mean["after"] < mean["given"] - max(TOLERANCE, 3 / lines[0]["count"])
        after = f"**{100 * mean['after']:.1f}**" if worse else f"{100 * mean['after']:.1f}"
        auroc = "" if lines[0]["auroc"] is None else f"{100 * mean['auroc']:.1f}"
        issues = sum(line["issues"] for line in lines) / len(lines)
        yield (
            f"| {data} | {noise} | {100 * mean['given']:.1f} | {after} | {100 * mean['rate']:.1f} "
            f"| {100 * mean['estimate']:.1f} ({100 * mean['low']:.1f} to {100 * mean['high']:.1f}) "
            f"| {issues:.0f} | {auroc} | {mean['ece']:.3f} |"
        )


def fill(page: str, results: list[dict[str, Any]]) -> str:
    return marked.fill(page, "noise rate", lambda _: tables(results))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    lines = options.results.read_text("utf-8").splitlines() if options.results.exists() else []
    results = [json.loads(line) for line in lines]
    done = {(line["data"], line["noise"], line["seed"]) for line in results}
    for cell in cells(range(options.seeds)):
        if tuple(cell.values()) not in done:
            results.append(run(cell))
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(results[-1], flush=True)
    if options.page:
        options.page.write_text(fill(options.page.read_text("utf-8"), results), "utf-8")


if __name__ == "__main__":
    main()
