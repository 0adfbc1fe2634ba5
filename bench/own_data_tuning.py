"""Defaults of UnflipClassifier on few examples, by noisy labels alone: 3-fold cross-validation within them.

    python bench/own_data_tuning.py docs/results/own-data-tuning.jsonl

The score is the accuracy on the noisy labels of what was held out; no clean label and no test example is looked at.
Splits and noise are those of seed 100, which own_data_table.py does not use. What is in the file is not run again.
"""

import json
import math
import statistics
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import own_data

SEED = 100


def trial(steps: int = 400, batch: int = 16, **parameters: Any) -> dict[str, Any]:
    return {"steps": steps, "batch": batch} | parameters


TRIALS = {
    "400 steps, 256 units, learning rate 0.01, last epoch": trial(),
    "200 steps": trial(steps=200),
    "800 steps": trial(steps=800),
    "64 units": trial(hidden=(64,)),
    "200 steps, 64 units": trial(steps=200, hidden=(64,)),
    "learning rate 0.03": trial(learning_rate=0.03),
    "the epoch by noisy validation": trial(settings={"select": "noisy-val"}),
    "nothing held out": trial(val_fraction=0.0),
    "weight decay 0.05": trial(settings={"optimizer.weight_decay": 5e-2}),
}
NOISES = ("pmd1:0.2", "sym:0.4", "asym:0.4")


@lru_cache
def noisy(name: str, recipe: str) -> tuple[Any, Any]:
    problem = own_data.load(name, SEED)
    return problem, own_data.make_noisy(name, problem, recipe, SEED)


def score(name: str, recipe: str, parameters: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch
    from sklearn.model_selection import StratifiedKFold

    from unflip import UnflipClassifier

    torch.set_num_threads(1)
    problem, labels = noisy(name, recipe)
    right, seconds = [], 0.0
    for rows, held_out in StratifiedKFold(3, shuffle=True, random_state=SEED).split(problem.train, labels):
        options = dict(parameters)
        steps, share = options.pop("steps"), options.pop("batch")
        batch = min(128, max(16, 2 ** round(math.log2(len(rows) / share))))
        epochs = min(100, max(15, round(steps * batch / len(rows))))
        model = UnflipClassifier(epochs=epochs, batch_size=batch, random_state=SEED, **options)
        started = time.process_time()
        model.fit(problem.train[rows], labels[rows])
        seconds += time.process_time() - started
        right.append(model.predict(problem.train[held_out]) == labels[held_out])
    return {"noisy": float(np.concatenate(right).mean()), "seconds": seconds}


def main() -> None:
    path = Path(sys.argv[1])
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for what, parameters in TRIALS.items():
        for name in own_data.SETS[:3]:
            for recipe in NOISES:
                task = {"trial": what, "data": name, "noise": recipe}
                if not any(task.items() <= line.items() for line in done):
                    done.append(task | score(name, recipe, parameters))
                    with path.open("a") as file:
                        file.write(json.dumps(done[-1]) + "\n")
    print("| trial | " + " | ".join(own_data.SETS[:3]) + " | mean | seconds a fit |")
    for what in TRIALS:
        lines = [line for line in done if line["trial"] == what]
        means = [100 * statistics.mean(x["noisy"] for x in lines if x["data"] == name) for name in own_data.SETS[:3]]
        cells = [f"{mean:.2f}" for mean in [*means, statistics.mean(means)]]
        print(f"| {what} | " + " | ".join(cells) + f" | {statistics.mean(x['seconds'] for x in lines) / 3:.2f} |")


if __name__ == "__main__":
    main()
