"""Pictures: copies fit on each other whatever was done to them, others do not."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from unflip.issues.similarity import SIDE, image_similarity


def scene(seed: int, side: int = 160) -> Image.Image:
    """Return a picture with structure of all sizes: noise that falls with its frequency."""
    random = np.random.default_rng(seed)
    layers = [
        np.asarray(
            Image.fromarray(random.integers(0, 256, (size, size, 3), dtype=np.uint8)).resize(
                (side, side), Image.Resampling.BICUBIC
            ),
            float,
        )
        / size
        for size in (4, 8, 16, 32)
    ]
    total = np.sum(layers, axis=0)
    return Image.fromarray((255 * (total - total.min()) / np.ptp(total)).astype(np.uint8))


def square(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))).permute(2, 0, 1)


def as_jpeg(image: Image.Image) -> Image.Image:
    content = BytesIO()
    image.save(content, "JPEG", quality=50)
    return Image.open(content).convert("RGB")


COPIES = {
    "itself": lambda image: image,
    "jpeg": as_jpeg,
    "half": lambda image: image.resize((80, 80)),
    "mirrored": ImageOps.mirror,
    "cropped": lambda image: image.crop((13, 25, 141, 153)),
    "cropped and mirrored": lambda image: ImageOps.mirror(image.crop((13, 25, 141, 153))),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
}


@pytest.mark.parametrize("kind", COPIES)
def test_copies_fit_on_their_originals_in_either_order(kind: str) -> None:
    images = [scene(seed) for seed in range(6)]
    first, second = (torch.stack([square(one) for one in some]) for some in (images, map(COPIES[kind], images)))
    assert float(image_similarity(first, second).min()) > 0.96
    assert float(image_similarity(second, first).min()) > 0.96


def test_other_pictures_do_not_fit_nor_do_shifted_details() -> None:
    first = torch.stack([square(scene(seed)) for seed in range(20)])
    assert float(image_similarity(first, first.roll(1, 0)).max()) < 0.8


def test_pictures_without_content_are_like_nothing() -> None:
    blank, other = torch.full((1, 3, SIDE, SIDE), 200, dtype=torch.uint8), square(scene(0))[None]
    assert image_similarity(blank, blank).tolist() == [0]
    assert image_similarity(blank, other).tolist() == [0]
