"""Augmentation of whole batches against one image at a time, with the same draws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.data.files import squares
from unflip.data.images import flip_crop, mirror, normalize, random_boxes
from unflip.data.sources import Standardization


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.randint(0, 256, shape, generator=seeded(1), dtype=torch.uint8).to(dtype)


def slow_flip_crop(images: Tensor, generator: torch.Generator, pad: int) -> Tensor:
    """Pad, cut and mirror one image after the other."""
    count, _, height, width = images.shape
    tops = torch.randint(0, 2 * pad + 1, (count,), generator=generator)
    lefts = torch.randint(0, 2 * pad + 1, (count,), generator=generator)
    flips = torch.randint(0, 2, (count,), generator=generator)
    done = []
    for image, top, left, flip in zip(images, tops.tolist(), lefts.tolist(), flips.tolist(), strict=True):
        padded = torch.zeros(image.shape[0], height + 2 * pad, width + 2 * pad, dtype=image.dtype)
        padded[:, pad : pad + height, pad : pad + width] = image
        cut = padded[:, top : top + height, left : left + width]
        done.append(cut.flip(2) if flip else cut)
    return torch.stack(done)


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(4, 9),
    st.integers(0, 4),
    st.sampled_from([torch.uint8, torch.float32]),
    st.integers(0, 5),
)
def test_flip_and_crop_are_those_of_each_image(
    count: int, channels: int, side: int, pad: int, dtype: torch.dtype, seed: int
) -> None:
    images = random_images(count, channels, side, side + 1, dtype=dtype)
    found = flip_crop(images, seeded(seed), pad=pad)
    assert found.dtype == dtype
    assert torch.equal(found, slow_flip_crop(images, seeded(seed), pad))


def test_by_default_a_crop_is_as_large_as_the_image_and_padded_by_four() -> None:
    images = random_images(20, 3, 32, 32)
    kept = images.clone()
    assert torch.equal(flip_crop(images, seeded()), slow_flip_crop(images, seeded(), 4))
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
def test_normalized_values_are_less_the_mean_in_deviations(dtype: torch.dtype) -> None:
    images = random_images(5, 3, 4, 4, dtype=dtype)
    mean, std = torch.tensor([125.0, 120.0, 110.0]).view(3, 1, 1), torch.tensor([60.0, 61.0, 66.0]).view(3, 1, 1)
    kept = images.clone()
    found = normalize(images, Standardization(mean, std))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, ((images.double() - mean) / std).float())
    assert torch.equal(images, kept)


def test_normalized_values_do_not_depend_on_how_images_lie_in_memory() -> None:
    images = random_images(5, 3, 4, 6)
    last = images.contiguous(memory_format=torch.channels_last)
    mean, std = torch.tensor([125.0, 120.0, 110.0]).view(3, 1, 1), torch.tensor([60.0, 61.0, 66.0]).view(3, 1, 1)
    found = normalize(last, Standardization(mean, std))
    assert torch.equal(found, normalize(images, Standardization(mean, std)))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert normalize(last[:0], Standardization(mean, std)).shape == (0, 3, 4, 6)


def sizes(count: int, height: int, width: int) -> Tensor:
    return torch.tensor([[height], [width]]).float().expand(-1, count)


def test_mirrored_images_are_about_every_second_one_and_the_others_stay() -> None:
    images = random_images(400, 3, 4, 5)
    kept = images.clone()
    found = mirror(images, seeded())
    same, turned = (found == images).flatten(1).all(1), (found == images.flip(3)).flatten(1).all(1)
    assert (same | turned).all()
    assert 150 < int(turned.sum()) < 250
    assert torch.equal(images, kept)


def test_the_central_box_leaves_as_much_on_either_side() -> None:
    boxes = squares(torch.tensor([[100.0, 60.0], [60.0, 80.0]]), 0.5)
    assert boxes.tolist() == [[35, 15, 30, 30], [15, 25, 30, 30]]


def test_random_squares_are_as_large_as_the_central_one_and_reach_every_edge() -> None:
    top, left, tall, wide = squares(sizes(4000, 90, 60), 0.8, seeded()).T
    assert (tall == wide).all()
    assert torch.allclose(tall, torch.tensor(48.0))
    for start, most in ((top, 42.0), (left, 12.0)):
        assert 0 <= start.min() < 0.01 * most
        assert 0.99 * most < start.max() <= most
        assert abs(float(start.mean()) / most - 0.5) < 0.03


@pytest.mark.parametrize(("height", "width"), [(64, 64), (50, 80), (80, 50)])
def test_boxes_lie_within_the_image_and_have_the_asked_areas_and_ratios(height: int, width: int) -> None:
    top, left, tall, wide = random_boxes(sizes(4000, height, width), seeded()).T
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


def test_each_image_has_boxes_of_its_own_size() -> None:
    heights, widths = torch.tensor([10.0, 1000.0] * 50), torch.tensor([2000.0, 12.0] * 50)
    top, left, tall, wide = random_boxes(torch.stack([heights, widths]), seeded()).T
    assert (top + tall <= heights).all()
    assert (left + wide <= widths).all()
    assert (tall >= 1).all()
    assert (wide >= 1).all()


@pytest.mark.parametrize(("height", "width"), [(4, 40), (40, 4)])
def test_where_no_shape_fits_the_largest_central_one_is_taken(height: int, width: int) -> None:
    boxes = random_boxes(sizes(5, height, width), seeded(), (0.9, 1.0))
    expected = [0, 18, 4, 5] if height < width else [18, 0, 5, 4]
    assert boxes.tolist() == [expected] * 5
