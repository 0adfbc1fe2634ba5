"""Images as a source: bytes in memory, network-ready batches out."""

import numpy as np
import pytest
import torch

from unflip.data.images import ImageSource, byte_normalization, flip_crop
from unflip.data.sources import JoinedSource

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
ROWS = torch.tensor([3, 0, 3, 11])


def source(**options: bool) -> ImageSource:
    return ImageSource(IMAGES, byte_normalization(MEAN, STD), **options)


def by_hand(images: torch.Tensor) -> torch.Tensor:
    """What torchvision's ToTensor and Normalize make of bytes."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (images.float() / 255 - mean) / std


def test_fetched_images_are_normalized_by_channel() -> None:
    images = source()
    assert (images.shape, len(images), images.augments) == ((3, 8, 8), 12, True)
    found = images.fetch(ROWS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, by_hand(torch.from_numpy(IMAGES)[ROWS]))


def test_a_view_is_cropped_and_mirrored_before_it_is_normalized() -> None:
    found = source().view(ROWS, torch.Generator().manual_seed(5))
    cropped = flip_crop(torch.from_numpy(IMAGES)[ROWS], torch.Generator().manual_seed(5))
    torch.testing.assert_close(found, by_hand(cropped))  # so the padding is black, not the mean


def test_images_that_are_not_shifted_are_mirrored_or_not() -> None:
    images = ImageSource(IMAGES, byte_normalization(MEAN, STD), shift=0)
    views, originals = images.view(torch.arange(12), torch.Generator().manual_seed(0)), images.fetch(torch.arange(12))
    mirrored = [torch.equal(view, image.flip(2)) for view, image in zip(views, originals, strict=True)]
    kept = [torch.equal(view, image) for view, image in zip(views, originals, strict=True)]
    assert [one != other for one, other in zip(mirrored, kept, strict=True)] == [True] * 12
    assert 0 < sum(mirrored) < 12


def test_without_augmentation_a_view_is_what_is_fetched() -> None:
    images = source(augment=False)
    assert not images.augments
    assert torch.equal(images.view(ROWS, torch.Generator()), images.fetch(ROWS))


def test_the_images_stay_as_they_came() -> None:
    kept = IMAGES.copy()
    images = source().to(torch.device("cpu"))
    images.view(torch.arange(12), torch.Generator())
    images.fetch(torch.arange(12))
    np.testing.assert_array_equal(IMAGES, kept)


def test_an_array_that_may_not_be_written_is_taken_too() -> None:
    locked = IMAGES.copy()
    locked.flags.writeable = False
    assert torch.equal(ImageSource(locked, byte_normalization(MEAN, STD)).fetch(ROWS), source().fetch(ROWS))


@pytest.mark.parametrize("rows", [[0, 5, 2], [13, 1, 20, 0]])
def test_joined_images_are_augmented_part_by_part(rows: list[int]) -> None:
    joined = JoinedSource([source(), source()])
    assert joined.augments
    torch.testing.assert_close(joined.fetch(torch.tensor(rows)), source().fetch(torch.tensor(rows) % 12))
    draws = torch.Generator().manual_seed(0)
    expected = torch.empty(len(rows), 3, 8, 8)
    for part in (0, 1):
        places = [i for i, row in enumerate(rows) if row // 12 == part]
        if places:
            expected[places] = source().view(torch.tensor(rows)[places] % 12, draws)
    assert torch.equal(joined.view(torch.tensor(rows), torch.Generator().manual_seed(0)), expected)
