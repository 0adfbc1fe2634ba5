"""Fit UnflipClassifier to 400,000 labels of 500 annotators; processor time at most twice that of one label each.

100,000 made examples with 64 features in 10 classes, 4 labels each; the single labels are those of the majority.
"""

import time

import numpy as np
import torch

from limits import Limits
from unflip import UnflipClassifier
from unflip.data.arrays import Array
from unflip.stats.annotators import Annotations, fit_annotators

EXAMPLES, FEATURES, CLASSES, ANNOTATORS, LABELS = 100_000, 64, 10, 500, 4
LIMIT = 2.0  # processor time by that of single labels: at most


def make() -> tuple[Array, Array, Array]:
    """Return features, classes, and labels (examples, annotators) with gaps."""
    draw = np.random.default_rng(0)
    clean = draw.integers(0, CLASSES, EXAMPLES)
    features = draw.normal(size=(CLASSES, FEATURES))[clean] + 3 * draw.normal(size=(EXAMPLES, FEATURES))
    asked = draw.integers(0, ANNOTATORS // LABELS, (EXAMPLES, LABELS)) + np.arange(LABELS) * (ANNOTATORS // LABELS)
    accuracy = draw.uniform(0.5, 0.95, ANNOTATORS)
    right = draw.random(asked.shape) < accuracy[asked]
    labels = np.where(right, clean[:, None], draw.integers(0, CLASSES, asked.shape))
    annotations = np.full((EXAMPLES, ANNOTATORS), np.nan)
    np.put_along_axis(annotations, asked, labels.astype(float), 1)
    return features.astype(np.float32), clean, annotations


def main() -> None:
    torch.set_num_threads(1)
    features, clean, annotations = make()
    example, by = np.nonzero(~np.isnan(annotations))
    label = annotations[example, by].astype(np.int64)
    counts = np.zeros((EXAMPLES, CLASSES))
    np.add.at(counts, (example, label), 1)
    majority = counts.argmax(1)
    long = Annotations(
        torch.from_numpy(example), torch.from_numpy(by), torch.from_numpy(label), tuple(map(str, range(ANNOTATORS)))
    )
    started = time.process_time()
    fit_annotators(long, torch.zeros(EXAMPLES, CLASSES).log_softmax(1), of_prior=True)
    print(f"Dawid-Skene alone: {time.process_time() - started:.1f} s", flush=True)
    seconds = []
    for name, labels in (("single labels", majority), ("annotations", annotations)):
        started = time.process_time()
        model = UnflipClassifier(random_state=0).fit(features, labels)
        seconds.append(time.process_time() - started)
        right = (model.labels_ == clean).mean()
        print(
            f"{name}: {seconds[-1]:.1f} s, {right:.4f} of the labels right, majority {(majority == clean).mean():.4f}"
        )
    limits = Limits()
    limits.at_most("processor time by that of single labels", seconds[1] / seconds[0], LIMIT, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main()
