"""Methods on real CIFAR-10 images under the published labels, small enough for a processor: run what is missing.

    UNFLIP_DATA=FOLDER UNFLIP_CIFAR=FOLDER python pages/images_table.py OUT.jsonl

UNFLIP_CIFAR holds CIFAR-10 in one of its official layouts, UNFLIP_DATA the published labels as `pmd/*.npy`. The first
20,000 images, PMD type I 35 %, `preact_resnet8`, 15 epochs, one seed, one thread, last epoch. The preset `cifar10` is
for GPUs. So few epochs ask for a higher learning rate that falls, and for a warm-up that lasts beyond the fall; chosen
by noisy validation (docs/results/images.md). All else is the methods' defaults.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

METHODS = ("standard", "plc", "mddc", "cddc")
OPTIMIZER = {"optimizer.lr": 0.05, "optimizer.milestones": [8], "optimizer.gamma": 0.1}
WARMUP = {"plc.warmup": 10}


def run_one(method: str) -> dict[str, Any]:
    import unflip

    with tempfile.TemporaryDirectory() as out:
        run = unflip.train(
            Path(os.environ["UNFLIP_CIFAR"]),
            out,
            labels=Path(os.environ["UNFLIP_DATA"]) / "pmd" / "cifar10-1-0.35.npy",
            limit=20_000,
            method=method,
            network="preact_resnet8",
            epochs=15,
            seed=0,
            select="last",
            settings=OPTIMIZER | ({} if method == "standard" else WARMUP),
            force=True,
            device="cpu",
            threads=1,
        )
        result = run.result
    return {
        "method": method,
        "seed": 0,
        "test": result["test_accuracy"]["last"],
        "labels_given": result["label_accuracy"]["given"],
        "labels": result["label_accuracy"]["current"],
        "val": result["val_accuracy"],
        "seconds": result["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    results = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for method in METHODS:
        if method not in [result["method"] for result in results]:
            results.append(run_one(method))
            with out.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(method, "done", file=sys.stderr)
    print("| method | test | training labels right (given) | training labels right (now) |")
    print("| --- | --- | --- | --- |")
    for result in results:
        cells = [f"{100 * result[key]:.2f}" for key in ("test", "labels_given", "labels")]
        print(f"| {result['method']} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
