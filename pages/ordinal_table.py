"""Ordered classes: how far suggested labels are from the true ones, with and without `data.ordinal`.

    python pages/ordinal_table.py

Data: a made table (2,000 rows, 12 columns, five ratings cut from a noisy sum of four of them) and the digits of
scikit-learn, 0 to 9 in order. One label in five is wrong: off by one (`near`), or drawn from all classes (`any`). Three
seeds of data, noise and training; defaults of `UnflipClassifier`. Distance is the mean absolute difference of class
numbers.
"""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from unflip import UnflipClassifier

SEEDS = (0, 1, 2)
WRONG = 0.2


def ratings(seed: int) -> tuple[Any, Any]:
    """Return a table and its true classes."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(2000, 12))
    total = rows[:, :4].sum(1) + 0.8 * random.normal(size=2000)
    return rows, np.digitize(total, np.quantile(total, [0.2, 0.4, 0.6, 0.8]))


def corrupt(truth: Any, kind: str, seed: int) -> Any:
    """Return labels of which some are wrong."""
    random, last = np.random.default_rng(seed), int(truth.max())
    chosen = random.random(len(truth)) < WRONG
    near = np.clip(truth + random.choice([-1, 1], len(truth)), 0, last)
    return np.where(chosen, near if kind == "near" else random.integers(0, last + 1, len(truth)), truth)


def main() -> None:
    print("| data | wrong labels | distance, given | after, nominal | after, ordinal | right: nominal | ordinal |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for data in ("ratings", "digits"):
        for kind in ("near", "any"):
            lines = []
            for seed in SEEDS:
                inputs, truth = ratings(seed) if data == "ratings" else load_digits(return_X_y=True)
                given = corrupt(truth, kind, seed)
                labels = [
                    UnflipClassifier(random_state=seed, settings={"data.ordinal": ordinal}).fit(inputs, given).labels_
                    for ordinal in (False, True)
                ]
                distances = [np.abs(found - truth).mean() for found in (given, *labels)]
                lines.append([*distances, *((found == truth).mean() for found in labels)])
            means = np.mean(lines, 0)
            cells = [f"{value:.4f}" for value in means[:3]] + [f"{100 * value:.1f}" for value in means[3:]]
            print(f"| {data} | {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
