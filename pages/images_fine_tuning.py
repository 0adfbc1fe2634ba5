"""A fine-tuned network against its frozen features on CIFAR-10 at 112 pixels; fills docs/results/images.md.

    python pages/images_fine_tuning.py --prepare DATA  # write DATA/cifar10-1500 and DATA/cifar10-5000 from DATA/cifar10
                                                       # (binary) and DATA/pmd
    python pages/images_fine_tuning.py --sweep SWEEP   # take over what `unflip paper sweep images/fine-tuning` finished
    python pages/images_fine_tuning.py                 # the table, from docs/results/images-fine-tuning.jsonl

The first 1,500 or 5,000 training images, under the first published labels, and the first 2,000 test images, as PNG
files of 32 x 32 pixels with a manifest of clean labels; and what the frozen network makes of them at 112 pixels.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import marked
from images_results import PAGE, Line, percent, read, results_of, table, take_over

RESULTS = results_of("fine-tuning")
GRID = "images/fine-tuning"
TRAIN, TEST = (1500, 5000), 2000
TRAIN_NAMES = [f"{size:,}" for size in TRAIN]
LABELS = "pmd/cifar10-1-0.35.npy"
NETWORKS = {"mlp": "frozen features", "efficientnet-lite0": "fine-tuned"}


def prepare(root: Path) -> None:
    """Write the images, their manifest, the noisy labels and the frozen features, for each number of images."""
    import numpy as np
    from PIL import Image

    import unflip
    from unflip.data.loaders.cifar import CIFAR10

    for size in TRAIN:
        out = root / f"cifar10-{size}"
        for folder in ("images", "pmd"):
            (out / folder).mkdir(parents=True)
        rows = []
        for split, file, count in (("train", "data_batch_1", size), ("test", "test_batch", TEST)):
            records = np.fromfile(root / "cifar10" / f"{file}.bin", np.uint8).reshape(-1, 3073)[:count]
            for number, record in enumerate(records):
                name = f"images/{split}-{number:04}.png"
                Image.fromarray(record[1:].reshape(3, 32, 32).transpose(1, 2, 0).copy()).save(out / name)
                rows.append((name, CIFAR10.class_names[record[0]], split))
        with (out / "images.csv").open("w", newline="", encoding="utf-8") as file_:
            csv.writer(file_).writerows([("path", "label", "split"), *rows])
        np.save(out / LABELS, np.load(root / LABELS)[:size])
        unflip.embed(out / "images.csv", out / "features.npz", threads=1)


def results_table(lines: Sequence[Line]) -> str:
    """Return a row for each number of images, network and method."""
    head = ["images", "network", "method", "last epoch", "selected epoch", "labels right (given)", "AUROC", "min"]
    rows = [
        [
            line["axes"]["images"],
            NETWORKS[line["axes"]["network"]],
            f"`{line['axes']['method']}`",
            *(percent(line["test_accuracy"][key]) for key in ("last", "selected")),
            f"{percent(line['label_accuracy']['current'])} ({percent(line['label_accuracy']['given'])})",
            f"{line['quality_auroc']:.3f}",
            f"{line['seconds'] / 60:.1f}",
        ]
        for line in sorted(lines, key=lambda line: TRAIN_NAMES.index(line["axes"]["images"]))
    ]
    return table(head, rows)


def fill(page: str, lines: Sequence[Line]) -> str:
    """Return the page with its table filled from the results."""
    return marked.fill(page, "images fine-tuning", lambda _: results_table(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--sweep", type=Path)
    arguments = parser.parse_args()
    if arguments.prepare is not None:
        prepare(arguments.prepare)
        return
    if arguments.sweep is not None:
        take_over(arguments.sweep, GRID, RESULTS)
    PAGE.write_text(fill(PAGE.read_text("utf-8"), read(RESULTS)), "utf-8")


if __name__ == "__main__":
    main()
