"""The handwritten digits that come with scikit-learn: 8x8 pixels, ten classes, clean labels."""

from pathlib import Path

import numpy as np

from unflip.data.dataset import DataOptions, LabelledSet, Loaded
from unflip.seeding import generator

_TEST = 450  # of 1,797; a fixed draw, the same for every seed of a run


def load(path: Path, options: DataOptions) -> Loaded:
    """Return 1,347 training and 450 test images as rows of 64 pixels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32)
    import torch

    order = torch.randperm(len(labels), generator=generator(0, "digits")).numpy()
    test, train = np.sort(order[:_TEST]), np.sort(order[_TEST:])
    return Loaded(
        train=LabelledSet(images[train], labels[train]),
        val=None,
        tests={"test": LabelledSet(images[test], labels[test])},
        class_names=tuple(str(digit) for digit in range(10)),
        ids=tuple(f"digit-{i}" for i in train),
    )
