"""The embedded digits."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from helpers import open_dataset
from unflip.data.options import DataOptions


def test_all_digits_are_there_once_in_train_or_test() -> None:
    dataset = open_dataset(DataOptions(path="digits", standardize="off"), seed=0)
    test = dataset.tests["test"]
    assert (len(dataset.source), len(test.source)) == (1347, 450)
    assert dataset.name == "digits"
    assert dataset.num_classes == 10
    assert dataset.class_names == tuple(str(digit) for digit in range(10))
    together = torch.cat([dataset.source.fetch(torch.arange(1347)), test.source.fetch(torch.arange(450))]).numpy()
    images, labels = load_digits(return_X_y=True)
    known = [*dataset.given, *test.class_numbers]
    found = {image.tobytes(): label for image, label in zip(together, known, strict=True)}
    expected = {image.tobytes(): label for image, label in zip(images.astype(np.float32), labels, strict=True)}
    assert len(together) == len(images)
    assert found == expected


def test_an_id_leads_back_to_the_picture() -> None:
    dataset = open_dataset(DataOptions(path="digits", standardize="off", limit=20), seed=0)
    assert dataset.ids is not None
    images, _ = load_digits(return_X_y=True)
    for row, name in enumerate(dataset.ids):
        original = images[int(name.removeprefix("digit-"))]
        np.testing.assert_array_equal(dataset.source.fetch(torch.tensor([row]))[0].numpy(), original)


def test_the_test_set_is_the_same_for_every_seed() -> None:
    one, other = (open_dataset(DataOptions(path="digits"), seed).tests["test"] for seed in (0, 1))
    assert torch.equal(one.class_numbers, other.class_numbers)
    assert torch.equal(one.source.fetch(torch.arange(450)), other.source.fetch(torch.arange(450)))
