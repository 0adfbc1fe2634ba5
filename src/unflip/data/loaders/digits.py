"""The handwritten digits that come with scikit-learn: 8x8 pixels, ten classes, clean labels."""

from pathlib import Path

import numpy as np
import torch

from unflip.compute import generator
from unflip.data.arrays import Array
from unflip.data.dataset import Dataset, Split
from unflip.data.loaders import FOR_ROWS, Loader
from unflip.data.options import DataOptions

_COUNT, _TEST = 1797, 450  # a fixed split, the same for every seed


class Digits(Loader):
    """1,347 training and 450 test images as rows of 64 pixels."""

    built_in = True
    uses = FOR_ROWS

    def load(self, path: Path, options: DataOptions) -> Dataset:
        """Return all digits; ``path`` is not used."""
        from sklearn.datasets import load_digits  # a slow import, and every loader is asked about a folder

        order = torch.randperm(_COUNT, generator=generator(0, "digits")).numpy()
        train, test = np.sort(order[_TEST:]), np.sort(order[:_TEST])
        images, labels = load_digits(return_X_y=True)
        images = images.astype(np.float32)
        return Dataset(
            train=Split(images[train], labels[train], ids=np.array([f"digit-{i}" for i in train])),
            tests={"test": Split(images[test], labels[test])},
            class_names=tuple(str(digit) for digit in range(10)),
            class_map="mnist",
            as_pixels=_as_pixels,
        )


def _as_pixels(row: Array) -> Array:
    """Return a digit, 64 values from 0 to 16, as dark on white pixels (8, 8)."""
    return (255 - row.reshape(8, 8) * (255 / 16)).astype(np.uint8)


digits = Digits()
