"""ImageSource: small images as one tensor of bytes; augmented as bytes, normalised last."""

from typing import Self

import numpy as np
import torch
from torch import Tensor

from unflip.data.array_files import Array
from unflip.data.augment import flip_crop, normalise
from unflip.data.source import Standardisation


class ImageSource:
    """Images (n, c, h, w) of bytes. A view is mirrored or not, and cropped at random after padding by 4 pixels."""

    ahead = 0

    def __init__(self, images: Array, standardise: Standardisation, *, augment: bool = True) -> None:
        self.shape = images.shape[1:]
        self.augments = augment
        self._images = torch.from_numpy(np.require(images, np.uint8, ["C", "W"]))
        self._standardise = standardise

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices``, normalised."""
        return self._normalise(self._bytes(indices))

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of the images at ``indices``, normalised."""
        images = self._bytes(indices)
        return self._normalise(flip_crop(images, generator) if self.augments else images)

    def to(self, device: torch.device) -> Self:
        """Move the images, as bytes, to ``device``."""
        self._images = self._images.to(device)
        mean, std = self._standardise.mean.to(device), self._standardise.std.to(device)
        self._standardise = Standardisation(mean, std)
        return self

    def _bytes(self, indices: Tensor) -> Tensor:
        return self._images.index_select(0, indices.to(self._images.device))

    def _normalise(self, images: Tensor) -> Tensor:
        return normalise(images, self._standardise.mean, self._standardise.std)


def byte_normalisation(mean: tuple[float, ...], std: tuple[float, ...]) -> Standardisation:
    """Turn a mean and standard deviation by channel, of values from 0 to 1, into those of bytes (c, 1, 1)."""
    shape = (-1, 1, 1)
    return Standardisation(255 * torch.tensor(mean).view(shape), 255 * torch.tensor(std).view(shape))


IMAGENET = byte_normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Of ImageNet's training images, which most pretrained networks expect."""
