"""Files as examples: how they are found in folders and lists, and how images are read and decoded.

Images are read and decoded in a pool of threads: all of it releases Python's global lock. Results do not depend on the
number of threads.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from PIL.ExifTags import Base
from torch import Tensor

from unflip.data.arrays import Array
from unflip.data.options import Resample
from unflip.errors import InputError, check_text, one_line
from unflip.progress import Track, untracked

_CHUNK = 4096  # images in progress at once when all are read
_EXIF = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")  # where Pillow finds an orientation
_UPRIGHT = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
"""How an image becomes upright, by its EXIF orientation from 2 on."""
_TURNED = 5  # from this orientation on, width and height are swapped
_Result = TypeVar("_Result")


class FileKind(NamedTuple):
    """A kind of file, by its suffixes."""

    noun: str
    suffixes: tuple[str, ...]

    def fits(self, name: str) -> bool:
        """Whether a file name has one of the suffixes and is not hidden."""
        return name.lower().endswith(self.suffixes) and not name.startswith(".")

    def __str__(self) -> str:
        return ", ".join(self.suffixes)


IMAGES = FileKind("images", (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))


@dataclass(frozen=True)
class ResizeCrop:
    """An image is scaled until its shorter side is ``resize``; the network sees the central ``size`` x ``size``."""

    size: int
    resize: int
    resample: Resample = "bilinear"


@dataclass(frozen=True)
class ImageFiles:
    """Images that are read when they are needed.

    Attributes:
        names: paths relative to ``root``, or absolute ones: strings (n,).
        listed_in: the file that lists them; None if they were found in a folder.
        rows: their rows in that file (n,).
        frame: how an image is resized and cropped; chosen once the files are opened.
    """

    root: Path
    names: Array
    listed_in: Path | None = None
    rows: Array | None = None
    frame: ResizeCrop | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: slice | Array) -> "ImageFiles":
        return replace(self, names=self.names[rows], rows=None if self.rows is None else self.rows[rows])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all images after resizing and cropping, (n, 3, size, size)."""
        assert self.frame is not None
        return (len(self), 3, self.frame.size, self.frame.size)

    def path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root.joinpath(self.names[index])

    def where(self, index: int) -> str:
        """Return the name of an image in errors: its path, after the row that lists it."""
        listed = "" if self.listed_in is None or self.rows is None else f"{self.listed_in}, row {self.rows[index]}: "
        return f"{listed}{self.path(index)}"


class Skipped(NamedTuple):
    """An image that was skipped."""

    part: str
    id: str
    reason: str


def as_names(names: list[str]) -> Array:
    """Return names as an array of objects: a single long name would widen an array of strings."""
    for name in names:
        check_text(name, "image")
    array = np.empty(len(names), object)
    array[:] = names
    return array


def is_image(path: str) -> bool:
    """Whether a path ends like that of an image."""
    return IMAGES.fits(PurePath(path).name)


def read_text(path: Path, what: str = "") -> str:
    """Return the content of a text file in UTF-8; errors call it ``what``, by default by its path."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what or path}: not a text file in UTF-8 ({error.reason})") from error
    except OSError as error:
        raise InputError(f"{what or path}: {error.strerror}") from error


def find_files(folder: Path, kind: FileKind) -> list[str]:
    """Return the files of a kind in ``folder`` and below, relative to it and sorted; hidden folders are skipped.

    Links to folders are followed, but no folder is entered twice. A folder that cannot be read is an error.
    """

    def fail(error: OSError) -> None:
        raise error

    paths: list[str] = []
    entered: set[Path] = set()
    for where, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        if (place := Path(where).resolve()) in entered:
            folders.clear()
            continue
        entered.add(place)
        visible = (name for name in folders if not name.startswith("."))
        folders[:] = sorted(visible, key=lambda name: (Path(where, name).is_symlink(), name))
        paths += [Path(where, name).relative_to(folder).as_posix() for name in files if kind.fits(name)]
    return sorted(paths)


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


def open_images(files: ImageFiles, rows: Sequence[int], pool: Executor) -> list[Image.Image]:
    """Read the images at ``rows``, without decoding them."""

    def read(index: int) -> Image.Image:
        with _naming(files, index):
            return _open(files, index)

    return list(pool.map(read, rows))


def sizes_of(images: Sequence[Image.Image]) -> Tensor:
    """Return the heights and widths (2, n) of upright images."""
    return torch.tensor([upright_size(image)[::-1] for image in images], dtype=torch.float32).reshape(-1, 2).T


def cut_images(
    files: ImageFiles, rows: Sequence[int], images: list[Image.Image], boxes: Tensor, frame: ResizeCrop, pool: Executor
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
                boxes = squares(sizes_of([image]), frame.size / frame.resize)
                content = _cut(image, boxes[0].tolist(), frame)
            elif (size := upright_size(image)) == (width, height):
                content = np.asarray(to_upright_rgb(image))
            else:
                sizes = f"{size[0]}x{size[1]} pixels, {files.path(0)} has {width}x{height}"
                how = f"to resize all of them: --set data.image_size={min(width, height)}"
                raise OtherSizeError(f"{files.where(index)}: {sizes}; {how}")
            pixels[index] = content.transpose(2, 0, 1)

    for _ in track(_each(pool, read, len(files)), "reading images", len(files)):
        pass
    return pixels


def squares(sizes: Tensor, share: float, generator: torch.Generator | None = None) -> Tensor:
    """Return squares (n, 4), as top, left, height and width, in images of ``sizes`` (2, n): central or random ones.

    Their sides are ``share`` of the images' shorter sides.
    """
    side = sizes.amin(0) * share
    where = 0.5 if generator is None else torch.rand(sizes.shape, generator=generator)
    return torch.stack([*(where * (sizes - side)), side, side], 1)


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


def _open(files: ImageFiles, index: int) -> Image.Image:
    """Read a whole file, so that none stays open, and parse the header."""
    return Image.open(io.BytesIO(files.path(index).read_bytes()))


def _cut(image: Image.Image, box: list[float], frame: ResizeCrop) -> Array:
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
    return np.asarray(image.resize((size, size), Image.Resampling[frame.resample.upper()], box=corners))


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the width and height of the upright image, without decoding it."""
    return (image.height, image.width) if _orientation(image) >= _TURNED else image.size


def to_upright_rgb(image: Image.Image) -> Image.Image:
    """Decode to RGB, rotated and mirrored by its EXIF orientation."""
    orientation = _orientation(image)
    image = to_rgb(image)
    return image if orientation == 1 else image.transpose(Image.Transpose[_UPRIGHT[orientation - 2]])


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an image, from 1 (upright) to 8, without decoding it."""
    if image.format == "TIFF" or not any(key in image.info for key in _EXIF):  # Pillow turns a TIFF itself
        return 1
    try:
        orientation = Image.Image.getexif(image).get(Base.Orientation, 1)  # a PNG's own method would decode it
    except Exception:  # EXIF data may be broken where the image is not
        return 1
    return orientation if orientation in range(2, 9) else 1


def to_rgb(image: Image.Image) -> Image.Image:
    """Decode to RGB; transparent pixels show a white ground, as in most viewers.

    Of 16 bits the upper eight are used, since Pillow itself would clip values above 255. Images of 32 bits have no
    defined range and are refused.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode}, 32 bits; convert it to 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def reason_of(error: Exception) -> str:
    """Return the error of an image library in a few words."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(f"not a readable image ({error})")
