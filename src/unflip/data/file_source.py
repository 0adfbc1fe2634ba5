"""FileSource: large images, read and decoded when a batch asks for them."""

from typing import Literal, Self

import torch
from torch import Tensor

from unflip.data.augment import central_boxes, mirror, normalise, random_boxes, random_squares
from unflip.data.decoding import cut_images, make_pool, open_images, sizes_of
from unflip.data.image_files import ImageFiles
from unflip.data.source import Standardisation

Crop = Literal["resized", "random"]


class FileSource:
    """Images of any size, of which the network sees a square.

    Fetched, it is the centre of the image (see :class:`unflip.data.image_files.Frame`). A view is mirrored or not,
    and with ``crop`` `resized` a random part of 8 to 100 % of the area (Szegedy et al. 2015), with `random` a square
    as large as the central one at a random place. Parts are drawn for the whole batch at once, in the thread that
    asks, so a view does not depend on the number of ``workers``.
    """

    ahead = 2

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
        if generator is None:
            boxes = central_boxes(sizes_of(images), self._share)
        elif self._crop == "random":
            boxes = random_squares(sizes_of(images), self._share, generator)
        else:
            boxes = random_boxes(sizes_of(images), generator)
        return cut_images(self._files, rows, images, boxes, self._frame, self._pool).to(self._device)

    def _normalise(self, images: Tensor) -> Tensor:
        return normalise(images, self._standardise.mean, self._standardise.std)
