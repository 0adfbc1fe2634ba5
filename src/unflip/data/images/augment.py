"""Augmentation of whole batches of images; draws come from a CPU generator, so every device sees the same."""

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

_TRIES = 10  # draws of a crop's shape before the largest central one is taken


def flip_crop(images: Tensor, generator: torch.Generator, *, size: int | None = None, pad: int = 4) -> Tensor:
    """Pad each image (n, c, h, w) with zeros, crop it at random, and mirror it with probability 1/2.

    ``size`` is the side of the crop, by default the images' own. One gather does both: a mirrored crop reads its
    columns backwards.
    """
    count, channels, height, width = images.shape
    tall, wide = size or height, size or width
    tops = _integers(count, height + 2 * pad - tall, generator).to(images.device)
    lefts = _integers(count, width + 2 * pad - wide, generator).to(images.device)
    flips = _integers(count, 1, generator).bool().to(images.device)
    rows = tops[:, None] + torch.arange(tall, device=images.device)  # (n, tall)
    columns = torch.arange(wide, device=images.device)
    columns = lefts[:, None] + torch.where(flips[:, None], wide - 1 - columns, columns)  # (n, wide)
    places = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]  # (n, tall, wide)
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)
    places = places.view(count, 1, -1).expand(-1, channels, -1)
    return padded.gather(2, places).view(count, channels, tall, wide)


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return ``(images - mean) / std`` as float32; mean and std, (c, 1, 1), are in the images' own units.

    For bytes, converting first and then working in place is several times faster than implicit type promotion. So are,
    where channels come last in memory, whole rows at once: steps of three numbers are too short for a processor.
    """
    result = images.to(torch.float32, copy=True)
    if result.is_contiguous() or not result.is_contiguous(memory_format=torch.channels_last):
        return result.sub_(mean).div_(std)
    count, channels, height, width = result.shape
    mean, std = (value.flatten().expand(channels).repeat(width) for value in (mean, std))
    result.permute(0, 2, 3, 1).view(count, height, width * channels).sub_(mean).div_(std)
    return result


def mirror(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image (n, c, h, w) with probability 1/2."""
    flips = _integers(len(images), 1, generator).bool().to(images.device)
    return torch.where(flips[:, None, None, None], images.flip(3), images)


def central_boxes(sizes: Tensor, share: float) -> Tensor:
    """Return the central squares of images with heights and widths ``sizes`` (2, n); their sides are ``share`` of the
    images' shorter ones. Boxes (n, 4) are top, left, height, width.
    """
    heights, widths = sizes
    side = torch.minimum(heights, widths) * share
    return torch.stack([(heights - side) / 2, (widths - side) / 2, side, side], 1)


def random_squares(sizes: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Draw boxes (n, 4) as large as the central ones, at random places."""
    heights, widths = sizes
    side = torch.minimum(heights, widths) * share
    where = _uniform((2, len(heights)), 0.0, 1.0, generator)
    return torch.stack([where[0] * (heights - side), where[1] * (widths - side), side, side], 1)


def random_boxes(
    sizes: Tensor,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Draw boxes (n, 4) of whole pixels in images of ``sizes`` (2, n); a shape that does not fit is redrawn.

    ``scale`` is a box's share of the area, ``ratio`` its width over its height (Szegedy et al. 2015).
    """
    heights, widths = sizes
    count = len(heights)
    area = (heights * widths)[:, None] * _uniform((count, _TRIES), *scale, generator)
    aspect = _uniform((count, _TRIES), log(ratio[0]), log(ratio[1]), generator).exp()
    tall, wide = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (tall >= 1) & (tall <= heights[:, None]) & (wide >= 1) & (wide <= widths[:, None])
    first = fits.int().argmax(1, keepdim=True)
    tall, wide, fits = (values.gather(1, first)[:, 0] for values in (tall, wide, fits))
    nearest = (widths / heights).clamp(*ratio)
    tall = torch.where(fits, tall, torch.minimum(heights, (widths / nearest).round()))
    wide = torch.where(fits, wide, torch.minimum(widths, (heights * nearest).round()))
    where = torch.where(fits, _uniform((2, count), 0.0, 1.0, generator), 0.5)
    top = (where[0] * (heights - tall + 1)).floor().minimum(heights - tall)
    left = (where[1] * (widths - wide + 1)).floor().minimum(widths - wide)
    return torch.stack([top, left, tall, wide], 1)


def _integers(count: int, most: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, most + 1, (count,), generator=generator)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)
