"""Images: small ones are kept in memory, large ones are decoded batch by batch; augmentation; thumbnails for pages."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from math import atan, degrees, log
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from unflip.compute import import_extra, repair_torchvision
from unflip.data.arrays import Array
from unflip.data.dataset import Split
from unflip.data.files import (
    BrokenImageError,
    ImageFiles,
    ResizeCrop,
    Skipped,
    cut_images,
    find_broken,
    make_pool,
    open_images,
    read_all,
    reason_of,
    sizes_of,
    squares,
    to_upright_rgb,
)
from unflip.data.options import Augment, Crop, ImageOptions
from unflip.data.sources import Standardization
from unflip.errors import ConfigError, InputError
from unflip.progress import Track, untracked

_QUALITY = 85  # of JPEG thumbnails
_SMALL = 64  # images up to this side, in pixels, are kept in memory
_RATIO = (3 / 4, 4 / 3)  # range of a crop's width over its height
_TRIES = 10  # draws of a crop's shape, before the largest central one is used
_LARGE = 224  # default side of the crops of larger ones
_ROUNDS, _MAGNITUDE = 2, 0.3  # of RandAugment: N, and M = 9 of 30, in the paper
Operation = Callable[[Tensor], Tensor]


def open_sets(
    sets: Mapping[str, Split], options: ImageOptions, track: Track = untracked
) -> tuple[dict[str, Split], ResizeCrop | None, tuple[Skipped, ...]]:
    """Open image files: find broken ones, choose the size, and read small images; other inputs are left unchanged.

    With ``skip_broken`` every image is decoded once here, and skipped if that fails. Without it, missing files of a
    list are an error here, and an undecodable image stops the run in the first epoch.

    Returns:
        The splits, with bytes (n, 3, h, w) of small images and files with a frame of large ones; that frame, None if
        images keep their own size; the broken images, which are not in the splits.
    """
    parts = {key: part.inputs for key, part in sets.items() if isinstance(part.inputs, ImageFiles) and len(part.inputs)}
    if not parts:
        return dict(sets), None, ()
    opened, skipped = dict(sets), []
    with make_pool(options.workers) as pool:
        for key, files in parts.items():
            wrong = {}
            if options.skip_broken or files.listed_in is not None:
                wrong = find_broken(files, pool, decode=options.skip_broken, track=track)
            check_broken(key, files, wrong, options)
            kept = np.delete(np.arange(len(files)), list(wrong))
            opened[key] = sets[key][kept]
            skipped += [Skipped(key, str(files.names[index]), reason) for index, reason in wrong.items()]
            parts[key] = files[kept]
        frame = _choose_frame(next(iter(parts.values())), options, pool)
        small = frame is None or frame.size <= _SMALL
        for key, files in parts.items():
            inputs = read_all(files, frame, pool, track) if small else replace(files, frame=frame)
            opened[key] = replace(opened[key], inputs=inputs)
    return opened, frame, tuple(skipped)


def check_broken(part: str, files: ImageFiles, wrong: Mapping[int, str], options: ImageOptions) -> None:
    """Raise InputError for broken images: for any, or with ``skip_broken`` if they are too many."""
    if not wrong:
        return
    index, reason = next(iter(wrong.items()))
    if not options.skip_broken:
        raise BrokenImageError(files, index, reason, len(wrong) - 1)
    if len(wrong) == len(files) or len(wrong) >= options.max_broken * len(files):
        first = f"{files.where(index)}: {reason}; fix or remove them (data.max_broken = {options.max_broken:g})"
        raise InputError(f"'{part}': {len(wrong)} of its {len(files)} images cannot be read, the first: {first}")


def _choose_frame(files: ImageFiles, options: ImageOptions, pool: Executor) -> ResizeCrop | None:
    size = options.image_size
    if size is None:
        first = open_images(files, [0], pool)[0]
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
    with make_pool(1) as pool:
        for index in range(len(images)):
            with suppress(InputError):
                return max(open_images(images, [index], pool)[0].size) <= _SMALL
    return False


class _Images:
    """What both sources of images do: normalize images, and augment views of them.

    With ``augment = "randaugment"`` views also pass through :class:`RandAugment`.
    """

    def __init__(self, shape: tuple[int, ...], standardize: Standardization, augment: Augment) -> None:
        self.shape, self.augments = shape, bool(augment)
        self._distort = RandAugment(shape) if augment == "randaugment" else None
        self._standardize = standardize

    def _read(self, indices: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the images at ``indices`` as bytes; with a generator, cropped and mirrored at random."""
        raise NotImplementedError

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices``, normalized."""
        return normalize(self._read(indices, None), self._standardize)

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of the images at ``indices``, normalized."""
        if not self.augments:
            return self.fetch(indices)
        images = self._read(indices, generator)
        return normalize(self._distort(images, generator) if self._distort else images, self._standardize)


class ImageSource(_Images):
    """Images (n, c, h, w) of bytes; a view is mirrored at random and shifted by up to ``shift`` pixels."""

    prefetch, host_indices = 0, False

    def __init__(self, images: Array, standardize: Standardization, *, augment: Augment = True, shift: int = 4) -> None:
        super().__init__(images.shape[1:], standardize, augment)
        self._shift = shift
        self._images = torch.from_numpy(np.require(images, np.uint8, ["C", "W"]))
        self.sizes = np.tile(np.array([images.shape[3], images.shape[2]], np.float32), (len(images), 1))
        """Width and height of each image (n, 2)."""

    def __len__(self) -> int:
        return len(self._images)

    def to(self, device: torch.device) -> Self:
        """Move the images, as bytes, to ``device``."""
        self._images = self._images.to(device)
        self._standardize = self._standardize.to(device)
        return self

    def _read(self, indices: Tensor, generator: torch.Generator | None) -> Tensor:
        images = self._images.index_select(0, indices.to(self._images.device))
        return images if generator is None else flip_crop(images, generator, pad=self._shift)


class FileSource(_Images):
    """Image files of any size, resized and cropped to squares.

    :meth:`fetch` returns the central crop (see :class:`unflip.data.files.ResizeCrop`), :meth:`view` a random crop,
    mirrored at random. Crops are drawn for the whole batch in the calling thread, so that a view does not depend on the
    number of ``workers``.

    Args:
        files: the images, with a frame.
        standardize: mean and standard deviation per channel.
        augment: whether views are random; ``randaugment`` also distorts them.
        crop: `resized` takes 8 to 100 % of the area (Szegedy et al. 2015), `random` a square at a random position.
        workers: threads that read images; by default one per core.
    """

    prefetch, host_indices = 2, True

    def __init__(
        self,
        files: ImageFiles,
        standardize: Standardization,
        *,
        augment: Augment = True,
        crop: Crop = "resized",
        workers: int | None = None,
    ) -> None:
        assert files.frame is not None
        super().__init__(files.shape[1:], standardize, augment)
        self._files, self._frame = files, files.frame
        self._crop = crop
        self._device = torch.device("cpu")
        self._pool = make_pool(workers)
        self.sizes = np.zeros((len(files), 2), np.float32)
        """Width and height of each upright image that was read so far (n, 2)."""

    def __len__(self) -> int:
        return len(self._files)

    def to(self, device: torch.device) -> Self:
        """Move batches, as bytes, to ``device``."""
        self._device = device
        self._standardize = self._standardize.to(device)
        return self

    def _read(self, indices: Tensor, generator: torch.Generator | None) -> Tensor:
        rows = indices.tolist()
        images = open_images(self._files, rows, self._pool)
        sizes = sizes_of(images)
        self.sizes[rows] = sizes.flip(0).T.numpy()
        if generator is None or self._crop == "random":
            boxes = squares(sizes, self._frame.size / self._frame.resize, generator)
        else:
            boxes = random_boxes(sizes, generator)
        crops = cut_images(self._files, rows, images, boxes, self._frame, self._pool).to(self._device)
        return crops if generator is None else mirror(crops, generator)


def byte_normalization(mean: tuple[float, ...], std: tuple[float, ...]) -> Standardization:
    """Convert mean and standard deviation per channel of values from 0 to 1 to those of bytes (c, 1, 1)."""
    return Standardization(*(255 * torch.tensor(values).view(-1, 1, 1) for values in (mean, std)))


IMAGENET = Standardization(
    255 * torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1), 255 * torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
)
"""Mean and standard deviation of ImageNet's training images, which most pretrained networks expect."""


def flip_crop(images: Tensor, generator: torch.Generator, *, pad: int = 4) -> Tensor:
    """Pad each image (n, c, h, w) with zeros, crop it to its size at random, and mirror it with probability 1/2.

    One gather does both: a mirrored crop reads its columns in reverse.
    """
    count, channels, height, width = images.shape
    tops = _integers(count, 2 * pad, generator).to(images.device)
    lefts = _integers(count, 2 * pad, generator).to(images.device)
    flips = _integers(count, 1, generator).bool().to(images.device)
    rows = tops[:, None] + torch.arange(height, device=images.device)  # (n, h)
    columns = torch.arange(width, device=images.device)
    columns = lefts[:, None] + torch.where(flips[:, None], width - 1 - columns, columns)  # (n, w)
    places = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]  # (n, h, w)
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)
    places = places.view(count, 1, -1).expand(-1, channels, -1)
    return padded.gather(2, places).view(images.shape)


def normalize(images: Tensor, by: Standardization) -> Tensor:
    """Return ``(images - mean) / std`` as float32; mean and std, (c, 1, 1), are in the images' own units.

    For bytes, converting first and working in place is several times faster than type promotion; so is, for
    channels-last images, broadcasting over whole rows instead of three channels.
    """
    result = images.to(torch.float32, copy=True)
    if result.is_contiguous() or not result.is_contiguous(memory_format=torch.channels_last):
        return result.sub_(by.mean).div_(by.std)
    count, channels, height, width = result.shape
    mean, std = (value.flatten().expand(channels).repeat(width) for value in (by.mean, by.std))
    result.permute(0, 2, 3, 1).view(count, height, width * channels).sub_(mean).div_(std)
    return result


def mirror(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image (n, c, h, w) with probability 1/2."""
    flips = _integers(len(images), 1, generator).bool().to(images.device)
    return torch.where(flips[:, None, None, None], images.flip(3), images)


def random_boxes(sizes: Tensor, generator: torch.Generator, scale: tuple[float, float] = (0.08, 1.0)) -> Tensor:
    """Draw boxes (n, 4) of whole pixels in images of ``sizes`` (2, n), as in Szegedy et al. (2015).

    Args:
        sizes: heights and widths (2, n).
        generator: of random numbers.
        scale: range of a box's share of the area; its width is 3/4 to 4/3 of its height. A shape that does not fit is
            drawn again.
    """
    heights, widths = sizes
    count = len(heights)
    area = (heights * widths)[:, None] * _uniform((count, _TRIES), *scale, generator)
    aspect = _uniform((count, _TRIES), log(_RATIO[0]), log(_RATIO[1]), generator).exp()
    tall, wide = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (tall >= 1) & (tall <= heights[:, None]) & (wide >= 1) & (wide <= widths[:, None])
    first = fits.int().argmax(1, keepdim=True)
    tall, wide, fits = (values.gather(1, first)[:, 0] for values in (tall, wide, fits))
    nearest = (widths / heights).clamp(*_RATIO)
    tall = torch.where(fits, tall, torch.minimum(heights, (widths / nearest).round()))
    wide = torch.where(fits, wide, torch.minimum(widths, (heights * nearest).round()))
    where = torch.where(fits, _uniform((2, count), 0.0, 1.0, generator), 0.5)
    top = (where[0] * (heights - tall + 1)).floor().minimum(heights - tall)
    left = (where[1] * (widths - wide + 1)).floor().minimum(widths - wide)
    return torch.stack([top, left, tall, wide], 1)


def _integers(count: int, high: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, high + 1, (count,), generator=generator)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


class RandAugment:
    """Strong augmentation of batches of images (n, c, h, w) of bytes, on their own device (Cubuk et al. 2020).

    In each of two rounds an image draws one of 14 operations, each equally likely, at magnitude 9 of 30; those with a
    direction draw it, too. Images that drew the same one are transformed together, by torchvision. All draws come from
    the caller's generator.

    Args:
        shape: (c, h, w), of one or three channels.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        if shape[0] not in (1, 3):
            raise ConfigError(f"data.augment = 'randaugment': images have {shape[0]} channels; it takes 1 or 3")
        repair_torchvision()
        functional = import_extra("torchvision.transforms.v2.functional", "timm")
        self._operations = _operations(functional, *shape[1:])

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return transformed images."""
        for _ in range(_ROUNDS):
            drawn = torch.randint(len(self._operations), (len(images),), generator=generator)
            images = images.clone()
            for number in drawn.unique().tolist():
                rows = (drawn == number).nonzero()[:, 0].to(images.device)
                images.index_copy_(0, rows, self._operations[number](images.index_select(0, rows)))
        return images


def _operations(functional: Any, height: int, width: int) -> list[Operation]:
    """Return the operations, each twice: in both directions where it has one."""
    size, strength = _MAGNITUDE, 0.9 * _MAGNITUDE

    def affine(shift: tuple[float, float] = (0, 0), shear: tuple[float, float] = (0, 0)) -> Operation:
        moved, slanted = [round(value) for value in shift], [degrees(atan(value)) for value in shear]
        return lambda images: functional.affine(images, angle=0.0, translate=moved, scale=1.0, shear=slanted)

    def signed(sign: int) -> list[Operation]:
        slant, far = sign * 0.3 * size, sign * 150 / 331 * size
        return [
            affine(shear=(slant, 0)),
            affine(shear=(0, slant)),
            affine(shift=(far * width, 0)),
            affine(shift=(0, far * height)),
            lambda images: functional.rotate(images, sign * 30 * size),
            lambda images: functional.adjust_brightness(images, 1 + sign * strength),
            lambda images: functional.adjust_saturation(images, 1 + sign * strength),
            lambda images: functional.adjust_contrast(images, 1 + sign * strength),
            lambda images: functional.adjust_sharpness(images, 1 + sign * strength),
        ]

    plain: list[Operation] = [
        lambda images: images,
        lambda images: functional.posterize(images, 8 - round(4 * size)),
        lambda images: functional.solarize(images, 255 * (1 - size)),
        functional.autocontrast,
        functional.equalize,
    ]
    return [*signed(1), *signed(-1), *plain, *plain]


class Pictures:
    """The pictures of a run's examples, by row of its labels, read on demand.

    Args:
        count: the number of examples.
        media_type: of thumbnails: ``image/jpeg`` for files, ``image/png`` for arrays.
        read: returns the picture of an example; its second argument is the size of the thumbnail.
    """

    def __init__(self, count: int, media_type: str, read: Callable[[int, int], Image.Image]) -> None:
        self._count, self.media_type, self._read = count, media_type, read

    def __len__(self) -> int:
        return self._count

    def thumbnail(self, index: int, size: int) -> bytes:
        """Return the encoded picture of an example, scaled down to sides of at most ``size`` pixels."""
        if not 0 <= index < self._count:
            raise InputError(f"picture {index}: there are {self._count}, counted from 0")
        image = self._read(index, size)
        if max(image.size) > size:
            image.thumbnail((size, size))
        content, form = BytesIO(), self.media_type.removeprefix("image/")
        image.save(content, form, quality=_QUALITY, optimize=form == "png")
        return content.getvalue()


def pictures_of_files(parts: Sequence[ImageFiles], ids: Sequence[str], data: str) -> Pictures:
    """Return the pictures of the files called ``ids``; by name, since a run has no rows for broken files."""
    roots = {str(name): files.root for files in parts for name in files.names.tolist()}
    if (missing := next((name for name in ids if name not in roots), None)) is not None:
        raise InputError(f"data {data}: no image {missing}, which the run had; is it another data set?")

    def read(index: int, size: int) -> Image.Image:
        path = roots[ids[index]].joinpath(ids[index])
        try:
            with path.open("rb") as file:
                image = Image.open(file)
                image.draft("RGB", (size, size))
                return to_upright_rgb(image)
        except Exception as error:  # image libraries raise all kinds of errors for broken files
            raise InputError(f"{path}: {reason_of(error)}") from error

    return Pictures(len(ids), "image/jpeg", read)


def bytes_to_pixels(image: Array) -> Array:
    """Convert (c, h, w) to what Pillow takes: (h, w, 3), or (h, w) for one channel."""
    return np.ascontiguousarray(image.transpose(1, 2, 0).squeeze(2) if len(image) == 1 else image.transpose(1, 2, 0))
