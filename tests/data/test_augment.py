"""Augmentation of whole batches against one image at a time, with the same draws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from unflip.data.augment import (
    centre_crop,
    flip_crop,
    normalise,
    random_boxes,
    random_resized_crop,
    resample,
    resize,
)

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.randint(0, 256, shape, generator=seeded(1), dtype=torch.uint8).to(dtype)


def slow_flip_crop(images: Tensor, generator: torch.Generator, size: int, pad: int) -> Tensor:
    """Pad, cut and mirror one image after the other."""
    count, _, height, width = images.shape
    tops = torch.randint(0, height + 2 * pad - size + 1, (count,), generator=generator)
    lefts = torch.randint(0, width + 2 * pad - size + 1, (count,), generator=generator)
    flips = torch.randint(0, 2, (count,), generator=generator)
    done = []
    for image, top, left, flip in zip(images, tops.tolist(), lefts.tolist(), flips.tolist(), strict=True):
        padded = torch.zeros(image.shape[0], height + 2 * pad, width + 2 * pad, dtype=image.dtype)
        padded[:, pad : pad + height, pad : pad + width] = image
        cut = padded[:, top : top + size, left : left + size]
        done.append(cut.flip(2) if flip else cut)
    return torch.stack(done)


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(4, 9),
    st.integers(0, 4),
    st.integers(1, 4),
    st.sampled_from([torch.uint8, torch.float32]),
    st.integers(0, 5),
)
def test_flip_and_crop_are_those_of_each_image(
    count: int, channels: int, side: int, pad: int, size: int, dtype: torch.dtype, seed: int
) -> None:
    images = random_images(count, channels, side, side + 1, dtype=dtype)
    found = flip_crop(images, seeded(seed), size=size, pad=pad)
    assert found.dtype == dtype
    assert torch.equal(found, slow_flip_crop(images, seeded(seed), size, pad))


def test_by_default_a_crop_is_as_large_as_the_image_and_padded_by_four() -> None:
    images = random_images(20, 3, 32, 32)
    kept = images.clone()
    assert torch.equal(flip_crop(images, seeded()), slow_flip_crop(images, seeded(), 32, 4))
    assert torch.equal(images, kept)
    assert flip_crop(random_images(2, 3, 8, 6), seeded()).shape == (2, 3, 8, 6)


def test_every_place_and_both_directions_are_drawn_equally_often() -> None:
    image = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4)
    views = flip_crop(image.expand(9000, -1, -1, -1), seeded(), pad=1)
    found, counts = views.flatten(1).unique(dim=0, return_counts=True)
    assert len(found) == 9 * 2  # tops and lefts, each as is or mirrored
    assert (counts - 500).abs().max() < 5 * 500**0.5


def test_the_same_seed_gives_the_same_views_and_another_does_not() -> None:
    images = random_images(8, 3, 32, 32)
    one, same, other = (flip_crop(images, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_normalised_values_are_less_the_mean_in_deviations(dtype: torch.dtype) -> None:
    images = random_images(5, 3, 4, 4, dtype=dtype)
    mean, std = torch.tensor([125.0, 120.0, 110.0]).view(3, 1, 1), torch.tensor([60.0, 61.0, 66.0]).view(3, 1, 1)
    kept = images.clone()
    found = normalise(images, mean, std)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, ((images.double() - mean) / std).float())
    assert torch.equal(images, kept)


@pytest.mark.parametrize(("height", "width", "size"), [(7, 9, 4), (8, 8, 8), (6, 5, 5)])
def test_a_centre_crop_leaves_as_much_on_either_side(height: int, width: int, size: int) -> None:
    images = random_images(2, 3, height, width)
    found = centre_crop(images, size)
    assert found.shape == (2, 3, size, size)
    top, left = (height - size) // 2, (width - size) // 2
    assert torch.equal(found, images[:, :, top:, left:][:, :, :size, :size])
    assert 0 <= height - size - 2 * top <= 1


def pillow_resize(image: Tensor, tall: int, wide: int) -> Tensor:
    """Scale one image (c, h, w), a channel at a time, as the usual pipelines do."""
    channels = [Image.fromarray(channel.numpy()).resize((wide, tall), Image.Resampling.BILINEAR) for channel in image]
    return torch.stack([torch.from_numpy(np.array(channel)) for channel in channels])


BOX = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 12), st.integers(1, 14))


@given(st.lists(BOX, min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 20))
def test_resampling_is_that_of_each_part_alone(boxes: list[tuple[int, int, int, int]], tall: int, wide: int) -> None:
    images = random_images(len(boxes), 2, 17, 19, dtype=torch.float32)
    found = resample(images, torch.tensor(boxes), (tall, wide))
    for image, (top, left, height, width), part in zip(images, boxes, found, strict=True):
        cut = image[:, top : top + height, left : left + width]
        torch.testing.assert_close(part, pillow_resize(cut, tall, wide), atol=1e-3, rtol=1e-5)


def test_resampling_mirrors_where_told() -> None:
    images = random_images(3, 2, 9, 9)
    boxes = torch.tensor([[0, 1, 8, 7]] * 3)
    plain = resample(images, boxes, (5, 6))
    some = resample(images, boxes, (5, 6), torch.tensor([True, False, True]))
    torch.testing.assert_close(some, torch.stack([plain[0].flip(2), plain[1], plain[2].flip(2)]))


@pytest.mark.parametrize(("height", "width", "shape"), [(20, 30, (10, 15)), (30, 20, (15, 10)), (5, 5, (10, 10))])
def test_resizing_makes_the_shorter_side_so_long(height: int, width: int, shape: tuple[int, int]) -> None:
    images = random_images(2, 3, height, width)
    found = resize(images, 10)
    expected = torch.stack([pillow_resize(image, *shape) for image in images.float()])
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-5)


def test_images_of_the_right_size_are_not_resized() -> None:
    images = random_images(2, 3, 10, 12)
    assert resize(images, 10) is images


@pytest.mark.parametrize(("height", "width"), [(64, 64), (50, 80), (80, 50)])
def test_boxes_lie_within_the_image_and_have_the_asked_areas_and_ratios(height: int, width: int) -> None:
    top, left, tall, wide = random_boxes(4000, height, width, seeded(), SCALE, RATIO).T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    area, ratio = tall * wide / (height * width), wide / tall
    assert area.min() > 0.07
    assert area.max() > 0.75
    assert 0.7 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.45
    assert abs(float((ratio.log() > 0).float().mean()) - 0.5) < 0.15
    assert len(top.unique()) > height / 2


@pytest.mark.parametrize(("height", "width"), [(4, 40), (40, 4)])
def test_where_no_shape_fits_the_largest_central_one_is_taken(height: int, width: int) -> None:
    boxes = random_boxes(5, height, width, seeded(), (0.9, 1.0), RATIO)
    expected = [0, 18, 4, 5] if height < width else [18, 0, 5, 4]
    assert boxes.tolist() == [expected] * 5


def test_random_resized_crops_are_the_parts_that_were_drawn() -> None:
    images = random_images(6, 3, 40, 48)
    found = random_resized_crop(images, 16, seeded())
    draws = seeded()
    boxes = random_boxes(6, 40, 48, draws, SCALE, RATIO)
    flips = torch.randint(0, 2, (6,), generator=draws).bool()
    assert 0 < int(flips.sum()) < 6
    torch.testing.assert_close(found, resample(images, boxes, (16, 16), flips))
