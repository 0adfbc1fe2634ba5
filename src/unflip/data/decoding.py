"""Decoding and augmentation of images: which files are broken, what the network sees of the others.

All of it runs in a pool of threads, since reading, decoding and scaling release Python's global lock. Results do not
depend on the number of threads.
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


_TRIES = 10  # draws of a crop's shape before the largest central one is taken
_CHUNK = 4096  # images in progress at once when all are read
_NOTES = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")  # where Pillow finds an orientation
_TRANSPOSE = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""How an image becomes upright, by the orientation that its EXIF notes hold."""
_TURNED = 5  # from this orientation on, width and height are exchanged
_Result = TypeVar("_Result")


def make_pool(workers: int | None) -> Executor:
    """Return threads that read images, by default one per core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(workers or cores, thread_name_prefix="images")


def find_broken(files: ImageFiles, pool: Executor, *, decode: bool, track: Track = untracked) -> dict[int, str]:
    """Return the broken images, with reasons: those whose file is missing or, with ``decode``, cannot be decoded."""

    def examine(index: int) -> str | None:
        try:
            if decode:
                image = _open(files, index)
                image.draft("RGB", (1, 1))  # a JPEG is read to its end, but decoded at an eighth of its size only
                to_rgb(image)
            else:
                files.path(index).stat()
        except Exception as error:  # as in _naming
            return reason_of(error)
        return None

    title = "checking images" if decode else "looking for images"
    reasons = track(_each(pool, examine, range(len(files))), title, len(files))
    return {index: reason for index, reason in enumerate(reasons) if reason is not None}


def open_images(files: ImageFiles, rows: Sequence[int], pool: Executor) -> list["Image"]:
    """Return the images at ``rows`` with their sizes, read but not decoded."""

    def read(index: int) -> "Image":
        with _naming(files, index):
            return _open(files, index)

    return list(pool.map(read, rows))


def sizes_of(images: Sequence["Image"]) -> Tensor:
    """Return the heights and widths (2, n) of images, once they are upright."""
    return torch.tensor([upright_size(image)[::-1] for image in images], dtype=torch.float32).reshape(-1, 2).T


def cut_images(
    files: ImageFiles, rows: Sequence[int], images: Sequence["Image"], boxes: Tensor, frame: ResizeCrop, pool: Executor
) -> Tensor:
    """Crop a box out of each image and scale it to bytes (n, 3, size, size).

    Args:
        files: where the images come from, for errors.
        rows: which of the files they are.
        images: opened by :func:`open_images`.
        boxes: (n, 4), top, left, height and width in the upright images.
        frame: the size to scale to, and how.
        pool: threads that do the work.
    """
    pixels = np.empty((len(images), frame.size, frame.size, 3), np.uint8)  # the memory layout that convolutions prefer

    def cut(place: int, box: list[float]) -> None:
        with _naming(files, rows[place]):
            pixels[place] = _cut(images[place], box, frame)

    list(pool.map(cut, range(len(images)), boxes.tolist()))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def read_all(files: ImageFiles, frame: ResizeCrop | None, pool: Executor, track: Track = untracked) -> Array:
    """Return all images as bytes (n, 3, h, w): cropped to the frame, or whole, if they have the same size."""
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
                    f"to bring all to one size: --set data.image_size={min(width, height)}"
                )
            pixels[index] = content.transpose(2, 0, 1)

    for _ in track(_each(pool, read, range(len(files))), "reading images", len(files)):
        pass
    return pixels


class OtherSizeError(InputError):
    """An image that has another size than the first, where all must have the same."""


class BrokenImageError(InputError):
    """An image that cannot be used."""

    def __init__(self, files: ImageFiles, index: int, reason: str, more: int = 0) -> None:
        others = f" (and {more} more)" if more else ""
        super().__init__(f"{files.where(index)}: {reason}{others}; to leave such images out: --skip-broken")
        self.reason = reason


@contextmanager
def _naming(files: ImageFiles, index: int) -> Iterator[None]:
    """Name the image in errors."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # image libraries raise all kinds of errors for broken files
        raise BrokenImageError(files, index, reason_of(error)) from error


def _each(pool: Executor, call: Callable[[int], _Result], items: range) -> Iterator[_Result]:
    """Yield ``call`` of each item, in order, with a bounded number in progress."""
    for start in range(0, len(items), _CHUNK):
        yield from pool.map(call, items[start : start + _CHUNK])


def _open(files: ImageFiles, index: int) -> "Image":
    """Read a whole file, so that none stays open, and parse its header."""
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
    """Return the width and height of an image once it is upright, without decoding it."""
    return (image.height, image.width) if _orientation(image) >= _TURNED else image.size


def to_upright_rgb(image: "Image") -> "Image":
    """Decode to RGB, turned and mirrored as its EXIF notes say: as every viewer shows it."""
    from PIL.Image import Transpose

    orientation = _orientation(image)
    image = to_rgb(image)
    return image if orientation == 1 else image.transpose(Transpose[_TRANSPOSE[orientation]])


def _orientation(image: "Image") -> int:
    """Return the orientation that an image's header notes, from 1 (upright) to 8; without decoding the image."""
    from PIL.ExifTags import Base
    from PIL.Image import Image

    if image.format == "TIFF" or not any(key in image.info for key in _NOTES):  # Pillow turns a TIFF itself
        return 1
    try:
        found = Image.getexif(image).get(Base.Orientation, 1)  # that of a PNG's own class would decode it
    except Exception:  # notes may be broken where the image is not
        return 1
    return found if found in _TRANSPOSE else 1


def to_rgb(image: "Image") -> "Image":
    """Decode to RGB; a palette with transparency goes through RGBA, as Pillow recommends.

    Of 16 bits the upper eight are used: Pillow itself would clip all above 255 to white. What brightness other numbers
    stand for, as in TIFF files of 32 bits, nobody says.
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
    """Return what an image library's error says, in a few words."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(f"not a readable image ({error})")


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


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
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
