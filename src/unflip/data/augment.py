"""Augmentation of whole batches of images; draws come from a processor generator, so every device sees the same."""

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

_TRIES = 10  # draws of a crop's shape before the largest central one is taken


def flip_crop(images: Tensor, generator: torch.Generator, *, size: int | None = None, pad: int = 4) -> Tensor:
    """Crop each image (n, c, h, w) at random from its zero-padded self, and mirror every second one on average.

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

    Converting first and then working in place is several times faster on bytes than what promotes types as it goes.
    """
    return images.to(torch.float32, copy=True).sub_(mean).div_(std)


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Return the central squares (n, c, size, size) of images (n, c, h, w)."""
    top, left = (images.shape[2] - size) // 2, (images.shape[3] - size) // 2
    return images[:, :, top : top + size, left : left + size]


def resize(images: Tensor, size: int) -> Tensor:
    """Scale images (n, c, h, w) so that their shorter side is ``size``."""
    height, width = images.shape[2:]
    short = min(height, width)
    if short == size:
        return images
    box = torch.tensor([[0, 0, height, width]], device=images.device)
    return resample(images, box.expand(len(images), -1), (height * size // short, width * size // short))


def random_resized_crop(
    images: Tensor,
    size: int,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Cut a random part of each image, scale it to ``size`` x ``size``, and mirror every second one on average.

    ``scale`` is the part's share of the area, ``ratio`` its width over its height (Szegedy et al. 2015).
    """
    count, _, height, width = images.shape
    boxes = random_boxes(count, height, width, generator, scale, ratio)
    flips = _integers(count, 1, generator).bool()
    return resample(images, boxes.to(images.device), (size, size), flips.to(images.device))


def random_boxes(
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Draw boxes (count, 4) of top, left, height, width; a shape that does not fit is drawn anew."""
    area = height * width * _uniform((count, _TRIES), *scale, generator)
    aspect = _uniform((count, _TRIES), log(ratio[0]), log(ratio[1]), generator).exp()
    tall, wide = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (tall >= 1) & (tall <= height) & (wide >= 1) & (wide <= width)
    first = fits.int().argmax(1, keepdim=True)
    tall, wide, fits = (values.gather(1, first)[:, 0] for values in (tall, wide, fits))
    nearest = min(max(width / height, ratio[0]), ratio[1])
    tall = torch.where(fits, tall, float(min(height, round(width / nearest))))
    wide = torch.where(fits, wide, float(min(width, round(height * nearest))))
    where = _uniform((2, count), 0.0, 1.0, generator)
    where = torch.where(fits, where, 0.5)
    top = (where[0] * (height - tall + 1)).floor().clamp(max=height - tall)
    left = (where[1] * (width - wide + 1)).floor().clamp(max=width - wide)
    return torch.stack([top, left, tall, wide], 1).long()


def resample(images: Tensor, boxes: Tensor, size: tuple[int, int], flips: Tensor | None = None) -> Tensor:
    """Scale the part of each image (n, c, h, w) that its box (n, 4) names to ``size``; float32.

    Linear interpolation over as many pixels as fall together, so that shrinking does not alias. Both axes are a
    product with a small matrix, one for each image.
    """
    rows = _weights(boxes[:, 0], boxes[:, 2], images.shape[2], size[0])  # (n, tall, h)
    columns = _weights(boxes[:, 1], boxes[:, 3], images.shape[3], size[1])  # (n, wide, w)
    if flips is not None:
        columns = torch.where(flips[:, None, None], columns.flip(1), columns)
    return rows[:, None] @ images.float() @ columns[:, None].mT


def _weights(starts: Tensor, lengths: Tensor, pixels: int, size: int) -> Tensor:
    """How much each of ``pixels`` counts in each of ``size`` new ones (n, size, pixels): triangles within the part."""
    starts, lengths = starts[:, None, None].float(), lengths[:, None, None].float()
    places = torch.arange(pixels, device=starts.device) + 0.5
    step = lengths / size
    centres = starts + (torch.arange(size, device=starts.device)[:, None] + 0.5) * step  # (n, size, 1)
    weights = (1 - (places - centres).abs() / step.clamp(min=1.0)).clamp(min=0.0)
    weights = weights * ((places > starts) & (places < starts + lengths))
    return weights / weights.sum(2, keepdim=True)


def _integers(count: int, most: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, most + 1, (count,), generator=generator)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)
