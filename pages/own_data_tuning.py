"""Defaults of UnflipClassifier on few examples, chosen by noisy labels alone: a third of them is held out.

    python pages/own_data_tuning.py docs/results/own-data-tuning.jsonl

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
    "400 steps, 256 units, a tenth held out, last epoch": trial(),
    "200 steps": trial(steps=200),
    "64 units": trial(hidden=(64,)),
    "200 steps, 64 units": trial(steps=200, hidden=(64,)),
    "64 units, batches of half the size": trial(hidden=(64,), batch=32),
    "200 steps, 64 units, learning rate 0.03": trial(steps=200, hidden=(64,), learning_rate=0.03),
    "800 steps": trial(steps=800),
    "the epoch by noisy validation": trial(settings={"select": "noisy-val"}),
}
NOISES = ("pmd1:0.2", "sym:0.4", "asym:0.4")


@lru_cache
def noisy(name: str, recipe: str) -> tuple[Any, Any]:
    problem = own_data.load(name, SEED)
    return problem, own_data.make_noisy(name, problem, recipe, SEED)


def score(name: str, recipe: str, parameters: dict[str, Any]) -> dict[str, Any]:
    import torch
    from sklearn.model_selection import train_test_split

    from unflip import UnflipClassifier

    torch.set_num_threads(1)
    problem, labels = noisy(name, recipe)
    inputs, held_out, given, wanted = train_test_split(
        problem.train, labels, test_size=1 / 3, stratify=labels, random_state=SEED
    )
    options = dict(parameters)
    steps, share = options.pop("steps"), options.pop("batch")
    batch = min(128, max(256 // share, 2 ** round(math.log2(len(inputs) / share))))
    epochs = min(100, max(15, round(steps * batch / len(inputs))))
    started = time.process_time()
    model = UnflipClassifier(epochs=epochs, batch_size=batch, random_state=SEED, **options).fit(inputs, given)
    return {"noisy": float(model.score(held_out, wanted)), "seconds": time.process_time() - started}


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
        print(f"| {what} | " + " | ".join(cells) + f" | {statistics.mean(x['seconds'] for x in lines):.2f} |")


if __name__ == "__main__":
    main()
