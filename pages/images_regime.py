"""Curves of `standard` alone on real CIFAR images: in which setup does it memorize wrong labels?

    UNFLIP_DATA=FOLDER python pages/images_regime.py OUT.jsonl SETUP ...

The folder holds CIFAR in an official layout as cifar10/ and cifar100/, and the published labels as pmd/*.npy. Of the
first 12,000 images, 2,000 are held out; `clean_val` is the accuracy on their clean labels, by epoch. The test set
decides nothing and is not written down. One seed, one thread.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

NARROW = {"preact_resnet18.blocks": [1, 1, 1, 1], "preact_resnet18.width": 16}
FALLING = {"optimizer.lr": 0.05, "optimizer.gamma": 0.1}
FLIPS = NARROW | FALLING | {"epochs": 30, "optimizer.milestones": [12], "data.shift": 0}
SHIFTS = NARROW | FALLING | {"epochs": 40, "optimizer.milestones": [15]}
SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "narrow, flips and shifts": ("cifar10-1-0.35", SHIFTS),
    "narrow, flips": ("cifar10-1-0.35", FLIPS),
    "CIFAR-100, narrow, flips": ("cifar100-1-0.35", FLIPS),
    "CIFAR-100, narrow, flips, with 30% symmetric noise": ("cifar100-1-0.35", FLIPS | {"noise.recipe": "sym:0.30"}),
    "CIFAR-100, narrow, flips, with 70% PMD noise": ("cifar100-1-0.70", FLIPS),
    "CIFAR-100, narrow, flips, higher rate": ("cifar100-1-0.35", FLIPS | {"optimizer.gamma": 0.4}),
}
"""The published labels and the settings of each setup."""


def run_one(name: str) -> dict[str, Any]:
    import unflip

    folder = Path(os.environ["UNFLIP_DATA"])
    labels, settings = SETUPS[name]
    with tempfile.TemporaryDirectory() as out:
        run = unflip.train(
            folder / labels.split("-")[0],
            out,
            labels=folder / "pmd" / f"{labels}.npy",
            limit=12_000,
            method="standard",
            network="preact_resnet18",
            seed=0,
            select="last",
            settings={"data.val_fraction": 1 / 6, "precision": "bfloat16"} | settings,
            force=True,
            device="cpu",
            threads=1,
        )
        lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
        seconds = run.result["seconds"]
    curve = [round(line["clean_val_accuracy"], 4) for line in lines]
    return {
        "best_minus_last": round(max(curve) - curve[-1], 4),
        "clean_val": curve,
        "noisy_val": [round(line["val_accuracy"], 4) for line in lines],
        "loss": [round(sum(line["loss"].values()), 4) for line in lines],
        "seconds": round(seconds),
        "settings": settings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("setups", nargs="*", default=list(SETUPS))
    arguments = parser.parse_args()
    done = {json.loads(line)["setup"] for line in arguments.out.open()} if arguments.out.exists() else set()
    for name in arguments.setups:
        if name not in done:
            line = {"setup": name} | run_one(name)
            with arguments.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(name, line["best_minus_last"], f"{line['seconds']} s", file=sys.stderr)


if __name__ == "__main__":
    main()
