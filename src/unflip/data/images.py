"""Images as inputs: small ones are kept in memory, large ones are decoded batch by batch."""

from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from unflip.data import decoding
from unflip.data.arrays import Array
from unflip.data.decoding import BrokenImageError
from unflip.data.files import ImageFiles, ResizeCrop, Skipped
from unflip.data.options import Crop, ImageOptions
from unflip.data.sources import Standardization
from unflip.errors import ConfigError, InputError
from unflip.progress import Track, untracked

_SMALL = 64  # images up to this side, in pixels, are kept in memory
_LARGE = 224  # default side of the crops of larger ones


class OpenedImages(NamedTuple):
    """Image files after checking, and small images after reading.

    Attributes:
        inputs: by split: bytes (n, 3, h, w) of small images, files with a frame of large ones.
        kept: by split: mask of the images that can be decoded.
        skipped: the others.
        frame: None if images keep their own size.
    """

    inputs: dict[str, Array | ImageFiles]
    kept: dict[str, Array]
    skipped: tuple[Skipped, ...]
    frame: ResizeCrop | None


def open_files(parts: Mapping[str, ImageFiles], options: ImageOptions, track: Track = untracked) -> OpenedImages:
    """Find broken images, choose the size, and read small images.

    With ``skip_broken`` every image is decoded once here, and skipped if that fails. Without it, missing files of a
    list are an error here, and an undecodable image stops the run in the first epoch.
    """
    with decoding.make_pool(options.workers) as pool:
        kept, skipped = {}, []
        for part, files in parts.items():
            wrong = {}
            if options.skip_broken or files.listed_in is not None:
                wrong = decoding.find_broken(files, pool, decode=options.skip_broken, track=track)
            check_broken(part, files, wrong, options)
            kept[part] = np.ones(len(files), bool)
            kept[part][list(wrong)] = False
            skipped += [Skipped(part, str(files.names[index]), reason) for index, reason in wrong.items()]
        readable = {part: files[kept[part]] for part, files in parts.items()}
        frame = _choose_frame(next(iter(readable.values())), options, pool)
        inputs: dict[str, Array | ImageFiles] = {}
        for part, files in readable.items():
            if frame is None or frame.size <= _SMALL:
                inputs[part] = decoding.read_all(files, frame, pool, track)
            else:
                inputs[part] = replace(files, frame=frame)
    return OpenedImages(inputs, kept, tuple(skipped), frame)


def check_broken(part: str, files: ImageFiles, wrong: Mapping[int, str], options: ImageOptions) -> None:
    """Raise InputError for broken images: for any, or with ``skip_broken`` if they are too many."""
    if not wrong:
        return
    index, reason = next(iter(wrong.items()))
    if not options.skip_broken:
        raise BrokenImageError(files, index, reason, len(wrong) - 1)
    if len(wrong) == len(files) or len(wrong) >= options.max_broken * len(files):
        raise InputError(
            f"'{part}': {len(wrong)} of its {len(files)} images cannot be read, the first: {files.where(index)}: "
            f"{reason}; fix or remove them (data.max_broken = {options.max_broken:g})"
        )


def _choose_frame(files: ImageFiles, options: ImageOptions, pool: Executor) -> ResizeCrop | None:
    size = options.image_size
    if size is None:
        first = decoding.open_images(files, [0], pool)[0]
        if max(first.size) <= _SMALL:
            return None
        size = _LARGE
    resize = options.image_resize or (size if size <= _SMALL else with_margin(size))
    if resize < size:
        raise ConfigError(f"data.image_resize = {resize}: must be at least data.image_size, {size}")
    return ResizeCrop(size, resize, options.resample)


def with_margin(size: int) -> int:
    """Return the shorter side of an image before its central ``size`` pixels are cropped: 8/7 of ``size``."""
    return round(size * 256 / 224)


def are_small(images: Array | ImageFiles) -> bool:
    """Whether the first readable image is small enough to be kept in memory."""
    if not isinstance(images, ImageFiles):
        return max(map(int, images.shape[2:])) <= _SMALL
    with decoding.make_pool(1) as pool:
        for index in range(len(images)):
            with suppress(InputError):
                return max(decoding.open_images(images, [index], pool)[0].size) <= _SMALL
    return False


class ImageSource:
    """Images (n, c, h, w) of bytes; a view is mirrored at random and shifted by up to ``shift`` pixels."""

    prefetch, host_indices = 0, False

    def __init__(self, images: Array, standardize: Standardization, *, augment: bool = True, shift: int = 4) -> None:
        self.shape = images.shape[1:]
        self._shift = shift
        self.augments = augment
        self._images = torch.from_numpy(np.require(images, np.uint8, ["C", "W"]))
        self._standardize = standardize
        self.sizes = np.tile(np.array([images.shape[3], images.shape[2]], np.float32), (len(images), 1))
        """Width and height of each image (n, 2)."""

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices``, normalized."""
        return _normalize(self._bytes(indices), self._standardize)

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of the images at ``indices``, normalized."""
        images = self._bytes(indices)
        images = decoding.flip_crop(images, generator, pad=self._shift) if self.augments else images
        return _normalize(images, self._standardize)

    def to(self, device: torch.device) -> Self:
        """Move the images, as bytes, to ``device``."""
        self._images = self._images.to(device)
        self._standardize = self._standardize.to(device)
        return self

    def _bytes(self, indices: Tensor) -> Tensor:
        return self._images.index_select(0, indices.to(self._images.device))


class FileSource:
    """Image files of any size, resized and cropped to squares.

    :meth:`fetch` returns the central crop (see :class:`unflip.data.files.ResizeCrop`), :meth:`view` a random crop,
    mirrored at random. Crops are drawn for the whole batch in the calling thread, so that a view does not depend on the
    number of ``workers``.

    Args:
        files: the images, with a frame.
        standardize: mean and standard deviation per channel.
        augment: whether views are random.
        crop: `resized` takes 8 to 100 % of the area (Szegedy et al. 2015), `random` a square at a random position.
        workers: threads that read images; by default one per core.
    """

    prefetch, host_indices = 2, True

    def __init__(
        self,
        files: ImageFiles,
        standardize: Standardization,
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
        self._standardize = standardize
        self._device = torch.device("cpu")
        self._pool = decoding.make_pool(workers)
        self.sizes = np.zeros((len(files), 2), np.float32)
        """Width and height of each upright image that was read so far (n, 2)."""

    def __len__(self) -> int:
        return len(self._files)

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the central crops of the images at ``indices``, normalized."""
        return _normalize(self._read(indices, None), self._standardize)

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return random crops of the images at ``indices``, normalized."""
        if not self.augments:
            return self.fetch(indices)
        return _normalize(decoding.mirror(self._read(indices, generator), generator), self._standardize)

    def to(self, device: torch.device) -> Self:
        """Move batches, as bytes, to ``device``."""
        self._device = device
        self._standardize = self._standardize.to(device)
        return self

    def _read(self, indices: Tensor, generator: torch.Generator | None) -> Tensor:
        rows = indices.tolist()
        images = decoding.open_images(self._files, rows, self._pool)
        sizes = decoding.sizes_of(images)
        self.sizes[rows] = sizes.flip(0).T.numpy()
        if generator is None:
            boxes = decoding.central_boxes(sizes, self._share)
        elif self._crop == "random":
            boxes = decoding.random_squares(sizes, self._share, generator)
        else:
            boxes = decoding.random_boxes(sizes, generator)
        return decoding.cut_images(self._files, rows, images, boxes, self._frame, self._pool).to(self._device)


def _normalize(images: Tensor, by: Standardization) -> Tensor:
    return decoding.normalize(images, by.mean, by.std)


def byte_normalization(mean: tuple[float, ...], std: tuple[float, ...]) -> Standardization:
    """Convert mean and standard deviation per channel of values from 0 to 1 to those of bytes (c, 1, 1)."""
    shape = (-1, 1, 1)
    return Standardization(255 * torch.tensor(mean).view(shape), 255 * torch.tensor(std).view(shape))


IMAGENET = byte_normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's training images, which most pretrained networks expect."""
