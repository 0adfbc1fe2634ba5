"""Decoding and augmentation of images.

Files are read and decoded in a pool of threads: all of it releases Python's global lock. Results do not depend on the
number of threads.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from math import log
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.data.arrays import Array
from unflip.data.files import ImageFiles, ResizeCrop
from unflip.errors import InputError, one_line
from unflip.progress import Track, untracked

if TYPE_CHECKING:
    from PIL.Image import Image


_TRIES = 10  # draws of a crop's shape, before the largest central one is used
_CHUNK = 4096  # images in progress at once when all are read
_EXIF = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")  # where Pillow finds an orientation
_UPRIGHT = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
"""How an image becomes upright, by its EXIF orientation from 2 on."""
_TURNED = 5  # from this orientation on, width and height are swapped
_Result = TypeVar("_Result")


def make_pool(workers: int | None) -> Executor:
    """Return a pool of threads, by default one per core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(workers or cores, thread_name_prefix="images")


def find_broken(files: ImageFiles, pool: Executor, *, decode: bool, track: Track = untracked) -> dict[int, str]:
    """Return the reasons why images are broken, by index: a missing file or, with ``decode``, an undecodable one."""

    def check(index: int) -> str | None:
        try:
            if decode:
                image = _open(files, index)
                image.draft("RGB", (1, 1))  # a JPEG is decoded at an eighth of its size
                to_rgb(image)
            else:
                files.path(index).stat()
        except Exception as error:  # as in _naming
            return reason_of(error)
        return None

    reasons = track(_each(pool, check, len(files)), "checking images", len(files))
    return {index: reason for index, reason in enumerate(reasons) if reason is not None}


def open_images(files: ImageFiles, rows: Sequence[int], pool: Executor) -> list["Image"]:
    """Read the images at ``rows``, without decoding them."""

    def read(index: int) -> "Image":
        with _naming(files, index):
            return _open(files, index)

    return list(pool.map(read, rows))


def sizes_of(images: Sequence["Image"]) -> Tensor:
    """Return the heights and widths (2, n) of upright images."""
    return torch.tensor([upright_size(image)[::-1] for image in images], dtype=torch.float32).reshape(-1, 2).T


def cut_images(
    files: ImageFiles, rows: Sequence[int], images: Sequence["Image"], boxes: Tensor, frame: ResizeCrop, pool: Executor
) -> Tensor:
    """Crop a box out of each image and scale it to bytes (n, 3, size, size).

    Args:
        files: the files of the images, for errors.
        rows: their indices among the files.
        images: from :func:`open_images`.
        boxes: (n, 4), top, left, height and width in the upright images.
        frame: the size to scale to, and the interpolation.
        pool: of threads.
    """
    pixels = np.empty((len(images), frame.size, frame.size, 3), np.uint8)  # the memory layout that convolutions prefer

    def cut(place: int, box: list[float]) -> None:
        with _naming(files, rows[place]):
            pixels[place] = _cut(images[place], box, frame)

    list(pool.map(cut, range(len(images)), boxes.tolist()))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def read_all(files: ImageFiles, frame: ResizeCrop | None, pool: Executor, track: Track = untracked) -> Array:
    """Return all images as bytes (n, 3, h, w): resized and cropped, or unchanged if they all have the same size."""
    width, height = (frame.size, frame.size) if frame else upright_size(open_images(files, [0], pool)[0])
    pixels = np.empty((len(files), 3, height, width), np.uint8)

    def read(index: int) -> None:
        with _naming(files, index):
            image = _open(files, index)
            if frame is not None:
                boxes = central_boxes(sizes_of([image]), frame.size / frame.resize)
                content = _cut(image, boxes[0].tolist(), frame)
            elif (size := upright_size(image)) == (width, height):
                content = np.asarray(to_upright_rgb(image))
            else:
                raise OtherSizeError(
                    f"{files.where(index)}: {size[0]}x{size[1]} pixels, {files.path(0)} has {width}x{height}; "
                    f"to resize all of them: --set data.image_size={min(width, height)}"
                )
            pixels[index] = content.transpose(2, 0, 1)

    for _ in track(_each(pool, read, len(files)), "reading images", len(files)):
        pass
    return pixels


class OtherSizeError(InputError):
    """An image of another size than the first one."""


class BrokenImageError(InputError):
    """An image that cannot be decoded."""

    def __init__(self, files: ImageFiles, index: int, reason: str, more: int = 0) -> None:
        others = f" (and {more} more)" if more else ""
        super().__init__(f"{files.where(index)}: {reason}{others}; to leave such images out: --skip-broken")
        self.reason = reason


@contextmanager
def _naming(files: ImageFiles, index: int) -> Iterator[None]:
    """Add the path of the image to errors."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # image libraries raise all kinds of errors for broken files
        raise BrokenImageError(files, index, reason_of(error)) from error


def _each(pool: Executor, call: Callable[[int], _Result], count: int) -> Iterator[_Result]:
    """Yield ``call`` of 0 to ``count - 1``, in order, with a bounded number in progress."""
    for start in range(0, count, _CHUNK):
        yield from pool.map(call, range(start, min(count, start + _CHUNK)))


def _open(files: ImageFiles, index: int) -> "Image":
    """Read a whole file, so that none stays open, and parse the header."""
    from PIL import Image

    return Image.open(BytesIO(files.path(index).read_bytes()))


def _cut(image: "Image", box: list[float], frame: ResizeCrop) -> Array:
    from PIL.Image import Resampling

    top, left, tall, wide = box
    size = frame.size
    width, height = upright_size(image)
    # A JPEG can be decoded at a half, a quarter or an eighth of its size, if that is enough for the box.
    enough = (max(1, int(width * size / wide)), max(1, int(height * size / tall)))
    image.draft("RGB", enough if image.size == (width, height) else enough[::-1])
    image = to_upright_rgb(image)
    across, down = image.width / width, image.height / height
    right, bottom = min((left + wide) * across, image.width), min((top + tall) * down, image.height)
    corners = (left * across, top * down, right, bottom)
    return np.asarray(image.resize((size, size), Resampling[frame.resample.upper()], box=corners))


def upright_size(image: "Image") -> tuple[int, int]:
    """Return the width and height of the upright image, without decoding it."""
    return (image.height, image.width) if _orientation(image) >= _TURNED else image.size


def to_upright_rgb(image: "Image") -> "Image":
    """Decode to RGB, rotated and mirrored by its EXIF orientation."""
    from PIL.Image import Transpose

    orientation = _orientation(image)
    image = to_rgb(image)
    return image if orientation == 1 else image.transpose(Transpose[_UPRIGHT[orientation - 2]])


def _orientation(image: "Image") -> int:
    """Return the EXIF orientation of an image, from 1 (upright) to 8, without decoding it."""
    from PIL.ExifTags import Base
    from PIL.Image import Image

    if image.format == "TIFF" or not any(key in image.info for key in _EXIF):  # Pillow turns a TIFF itself
        return 1
    try:
        orientation = Image.getexif(image).get(Base.Orientation, 1)  # a PNG's own method would decode it
    except Exception:  # EXIF data may be broken where the image is not
        return 1
    return orientation if orientation in range(2, 9) else 1


def to_rgb(image: "Image") -> "Image":
    """Decode to RGB; a palette with transparency goes through RGBA, as Pillow recommends.

    Of 16 bits the upper eight are used, since Pillow itself would clip values above 255. Images of 32 bits have no
    defined range and are refused.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        from PIL import Image

        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode}, 32 bits; convert it to 8 or 16 bits")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def reason_of(error: Exception) -> str:
    """Return the error of an image library in a few words."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(f"not a readable image ({error})")


def flip_crop(images: Tensor, generator: torch.Generator, *, size: int | None = None, pad: int = 4) -> Tensor:
    """Pad each image (n, c, h, w) with zeros, crop it at random, and mirror it with probability 1/2.

    ``size`` is the side of the crop, by default the images' own. One gather does both: a mirrored crop reads its
    columns in reverse.
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


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return ``(images - mean) / std`` as float32; mean and std, (c, 1, 1), are in the images' own units.

    For bytes, converting first and working in place is several times faster than type promotion; so is, for
    channels-last images, broadcasting over whole rows instead of three channels.
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
    """Return central squares (n, 4), as top, left, height and width, of images of ``sizes`` (2, n).

    Their sides are ``share`` of the images' shorter sides.
    """
    heights, widths = sizes
    side = torch.minimum(heights, widths) * share
    return torch.stack([(heights - side) / 2, (widths - side) / 2, side, side], 1)


def random_squares(sizes: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Draw squares (n, 4) of the size of the central ones, at random positions."""
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
    """Draw boxes (n, 4) of whole pixels in images of ``sizes`` (2, n), as in Szegedy et al. (2015).

    Args:
        sizes: heights and widths (2, n).
        generator: of random numbers.
        scale: range of a box's share of the area.
        ratio: range of its width over its height; a shape that does not fit is drawn again.
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


def _integers(count: int, high: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, high + 1, (count,), generator=generator)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)
