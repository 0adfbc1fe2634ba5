"""Sources of images: small ones as one tensor of bytes, large ones decoded when a batch asks for them."""

from typing import Self

import numpy as np
import torch
from torch import Tensor

from unflip.data.files.arrays import Array
from unflip.data.images.augment import central_boxes, flip_crop, mirror, normalise, random_boxes, random_squares
from unflip.data.images.decoding import cut_images, make_pool, open_images, sizes_of
from unflip.data.images.files import ImageFiles
from unflip.data.options import Crop
from unflip.data.sources import Standardisation


class ImageSource:
    """Images (n, c, h, w) of bytes. A view is mirrored at random, and moved by up to ``shift`` pixels at random."""

    ahead, host_indices = 0, False

    def __init__(self, images: Array, standardise: Standardisation, *, augment: bool = True, shift: int = 4) -> None:
        self.shape = images.shape[1:]
        self._shift = shift
        self.augments = augment
        self._images = torch.from_numpy(np.require(images, np.uint8, ["C", "W"]))
        self._standardise = standardise
        self.sizes = np.tile(np.array([images.shape[3], images.shape[2]], np.float32), (len(images), 1))
        """Width and height of each image (n, 2)."""

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices``, normalised."""
        return self._normalise(self._bytes(indices))

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of the images at ``indices``, normalised."""
        images = self._bytes(indices)
        return self._normalise(flip_crop(images, generator, pad=self._shift) if self.augments else images)

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


class FileSource:
    """Images of any size, of which the network sees a square.

    :meth:`fetch` returns the centre of the image (see :class:`unflip.data.images.files.Frame`), :meth:`view` a random
    part of it, mirrored at random. Parts are drawn for the whole batch at once, in the calling thread, so a view does
    not depend on the number of ``workers``.

    Args:
        files: the images, with a frame.
        standardise: mean and standard deviation per channel.
        augment: whether views are random.
        crop: `resized` takes 8 to 100 % of the area (Szegedy et al. 2015), `random` a square of the central one's size.
        workers: threads that read images; by default one per core.
    """

    ahead, host_indices = 2, True

    def __init__(
        self,
        files: ImageFiles,
        standardise: Standardisation,
        *,
        augment: bool = True,
        crop: Crop = "resized",
        workers: int | None = None,
    ) -> None:
        assert files.frame is not None
        self.shape = files.shape[1:]
        self.augments = augment
        self._files = files
        self._frame = files.frame
        self._share = files.frame.size / files.frame.resize
        self._crop = crop
        self._standardise = standardise
        self._device = torch.device("cpu")
        self._pool = make_pool(workers)
        self.sizes = np.zeros((len(files), 2), np.float32)
        """Width and height of each image that was read so far (n, 2), once it is upright."""

    def __len__(self) -> int:
        return len(self._files)

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the centres of the images at ``indices``, normalised."""
        return self._normalise(self._read(indices, None))

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return random parts of the images at ``indices``, normalised."""
        if not self.augments:
            return self.fetch(indices)
        return self._normalise(mirror(self._read(indices, generator), generator))

    def to(self, device: torch.device) -> Self:
        """Move batches, as bytes, to ``device``."""
        self._device = device
        mean, std = self._standardise.mean.to(device), self._standardise.std.to(device)
        self._standardise = Standardisation(mean, std)
        return self

    def _read(self, indices: Tensor, generator: torch.Generator | None) -> Tensor:
        rows = indices.tolist()
        images = open_images(self._files, rows, self._pool)
        sizes = sizes_of(images)
        self.sizes[rows] = sizes.flip(0).T.numpy()
        if generator is None:
            boxes = central_boxes(sizes, self._share)
        elif self._crop == "random":
            boxes = random_squares(sizes, self._share, generator)
        else:
            boxes = random_boxes(sizes, generator)
        return cut_images(self._files, rows, images, boxes, self._frame, self._pool).to(self._device)

    def _normalise(self, images: Tensor) -> Tensor:
        return normalise(images, self._standardise.mean, self._standardise.std)


def byte_normalisation(mean: tuple[float, ...], std: tuple[float, ...]) -> Standardisation:
    """Turn mean and standard deviation per channel, for values from 0 to 1, into those of bytes (c, 1, 1)."""
    shape = (-1, 1, 1)
    return Standardisation(255 * torch.tensor(mean).view(shape), 255 * torch.tensor(std).view(shape))


IMAGENET = byte_normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Of ImageNet's training images, which most pretrained networks expect."""
