"""The handwritten digits that come with scikit-learn: 8x8 pixels, ten classes, clean labels."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from unflip.data.arrays import Array
from unflip.data.dataset import Dataset, Split
from unflip.data.loaders import FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.options import Options
from unflip.seeding import generator

_TEST = 450  # of 1,797; a fixed draw, the same for every seed of a run


class Digits(Loader):
    """1,347 training and 450 test images as rows of 64 pixels."""

    built_in = True
    uses = FOR_ROWS

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """Return all digits; they come with scikit-learn, and ``path`` is not used."""
        digits = _digits()
        images, labels = digits.data.astype(np.float32), digits.target
        train, test = _split(len(labels))
        return Dataset(
            train=Split(images[train], labels[train], ids=np.array([f"digit-{i}" for i in train])),
            tests={"test": Split(images[test], labels[test])},
            class_names=tuple(str(digit) for digit in range(10)),
            class_map="mnist",
            as_pixels=_as_pixels,
        )


def _as_pixels(row: Array) -> Array:
    """Return a digit as dark on white pixels; its 64 values go from 0 to 16."""
    pixels: Array = (255 - row.reshape(8, 8) * (255 / 16)).astype(np.uint8)
    return pixels


def _digits() -> Any:
    from sklearn.datasets import load_digits  # takes seconds, and every loader is asked about a folder

    return load_digits()


def training_images() -> Array:
    """Return the training images (1347, 8, 8) in the order in which they are loaded."""
    images: Array = _digits().images
    return images[_split(len(images))[0]]


def training_labels() -> Array:
    """Return their true labels (1347,)."""
    labels: Array = _digits().target
    return labels[_split(len(labels))[0]]


def _split(count: int) -> tuple[Array, Array]:
    order = torch.randperm(count, generator=generator(0, "digits")).numpy()
    return np.sort(order[_TEST:]), np.sort(order[:_TEST])


digits = Digits()
