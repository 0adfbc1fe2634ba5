"""The frozen CIFAR features that benchmarks use: where UNFLIP_DATA points, else made up in the same shape."""

import os
import tempfile
from pathlib import Path

import numpy as np

from unflip.data.dataset import Dataset
from unflip.data.labeling import label_data
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.data.split import split

NUM_EXAMPLES = 45_000


def folder() -> Path | None:
    path = os.environ.get("UNFLIP_DATA")
    return Path(path) if path else None


def features(name: str = "cifar10", into: Path | None = None) -> tuple[Path, Path]:
    """Return a feature file and a file of noisy labels; random ones under ``into`` where there are no real ones."""
    data = folder()
    if data is not None:
        return data / "features" / f"{name}.npz", data / "pmd" / f"{name}-1-0.35.npy"
    assert into is not None
    rng = np.random.default_rng(0)
    classes = 10 if name == "cifar10" else 100
    labels = rng.integers(0, classes, NUM_EXAMPLES)
    centers = rng.normal(size=(classes, 256))
    inputs = (centers[labels] + 4 * rng.normal(size=(NUM_EXAMPLES, 256))).astype(np.float16)
    wrong = rng.random(NUM_EXAMPLES) < 0.35
    noisy = np.where(wrong, rng.integers(0, classes, NUM_EXAMPLES), labels)
    path, label_path = into / f"{name}.npz", into / f"{name}-noisy.npy"
    np.savez(path, train=inputs, train_labels=labels, test=inputs[:5000], test_labels=labels[:5000])
    np.save(label_path, noisy)
    print("UNFLIP_DATA is not set: random features of the same shape")
    return path, label_path


def dataset(*, jitter: float = 0.0) -> Dataset:
    """Return the features of CIFAR-10 with their noisy labels as a trainer takes them, none held out."""
    with tempfile.TemporaryDirectory() as temporary:
        path, labels = features(into=Path(temporary))
        options = DataOptions(path=str(path), labels=str(labels), limit=NUM_EXAMPLES, val_fraction=0.0, jitter=jitter)
        return split(label_data(load_raw(options), options), options.val_fraction, seed=0)
