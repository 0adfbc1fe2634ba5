"""Decoding image files: which are broken, and what the network sees of the others.

All of it runs in a pool of threads, since reading, decoding and scaling release Python's global lock. Results do not
depend on the number of threads.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from unflip.data.files.arrays import Array
from unflip.data.images.augment import central_boxes
from unflip.data.images.files import Frame, ImageFiles
from unflip.errors import InputError, one_line
from unflip.progress import Track, untracked

if TYPE_CHECKING:
    from PIL.Image import Image

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
            return _reason(files, index, error)
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
    files: ImageFiles, rows: Sequence[int], images: Sequence["Image"], boxes: Tensor, frame: Frame, pool: Executor
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


def read_all(files: ImageFiles, frame: Frame | None, pool: Executor, track: Track = untracked) -> Array:
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
        raise BrokenImageError(files, index, _reason(files, index, error)) from error


def _each(pool: Executor, call: Callable[[int], _Result], items: range) -> Iterator[_Result]:
    """Yield ``call`` of each item, in order, with a bounded number in progress."""
    for start in range(0, len(items), _CHUNK):
        yield from pool.map(call, items[start : start + _CHUNK])


def _open(files: ImageFiles, index: int) -> "Image":
    """Read a whole file, so that none stays open, and parse its header."""
    from PIL import Image

    return Image.open(BytesIO(files.path(index).read_bytes()))


def _cut(image: "Image", box: list[float], frame: Frame) -> Array:
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


def _reason(files: ImageFiles, index: int, error: Exception) -> str:
    by_backslash = isinstance(error, FileNotFoundError) and "\\" in str(files.names[index])
    return reason_of(error) + (" (write its path with / in place of \\)" if by_backslash else "")


def reason_of(error: Exception) -> str:
    """Return what an image library's error says, in a few words."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(f"not a readable image ({error})")
