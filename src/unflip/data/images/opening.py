"""Opening image files: broken ones are found, small ones are read into memory, large ones batch by batch."""

from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from unflip.data.files.arrays import Array
from unflip.data.images.decoding import BrokenImageError, find_broken, make_pool, open_images, read_all
from unflip.data.images.files import Frame, ImageFiles, Skipped
from unflip.data.options import ImageOptions
from unflip.errors import ConfigError, InputError
from unflip.progress import Track, untracked

_SMALL = 64  # images up to this side, in pixels, are kept in memory
_LARGE = 224  # default side of what the network sees of larger ones

SIZED = frozenset({"image_resize", "resample", "crop", "shift"})
"""Options that matter for images of some sizes only."""


class OpenedImages(NamedTuple):
    """Image files that are ready to be used."""

    inputs: dict[str, Array | ImageFiles]
    """By part: bytes (n, 3, h, w) of small images, files with a frame of large ones."""
    kept: dict[str, Array]
    """By part: which images can be read."""
    skipped: tuple[Skipped, ...]
    frame: Frame | None
    """None where images are used in their own size."""


def open_files(parts: Mapping[str, ImageFiles], options: ImageOptions, track: Track = untracked) -> OpenedImages:
    """Find broken images, choose what the network sees, and read small images.

    Missing files of a list are reported before anything else. With ``skip_broken`` every image is decoded once here, to
    the end of its file, and left out if that fails, so that training meets no broken image later, unless a file breaks
    during training. Without it, an image is decoded when it is first needed, in the first epoch, and a broken one stops
    the run there.
    """
    with make_pool(options.workers) as pool:
        kept, skipped = {}, []
        for part, files in parts.items():
            wrong = {}
            if options.skip_broken or files.listed_in is not None:
                wrong = find_broken(files, pool, decode=options.skip_broken, track=track)
            check_broken(part, files, wrong, options)
            kept[part] = np.ones(len(files), bool)
            kept[part][list(wrong)] = False
            skipped += [Skipped(part, str(files.names[index]), reason) for index, reason in wrong.items()]
        readable = {part: files[kept[part]] for part, files in parts.items()}
        frame = _choose_frame(next(iter(readable.values())), options, pool)
        inputs: dict[str, Array | ImageFiles] = {}
        for part, files in readable.items():
            if frame is None or frame.size <= _SMALL:
                inputs[part] = read_all(files, frame, pool, track)
            else:
                inputs[part] = replace(files, frame=frame)
    return OpenedImages(inputs, kept, tuple(skipped), frame)


def check_sizes_used(images: ImageFiles, options: ImageOptions, typed: Collection[str]) -> None:
    """Refuse options that a person typed although nothing reads them for images of this size."""
    as_they_are = options.image_size is None and are_small(images)
    if as_they_are or (options.image_size or _LARGE) <= _SMALL:
        unused = {"crop": f"images of at most {_SMALL} x {_SMALL} are shifted instead (data.shift)"}
    else:
        unused = {"shift": f"it is for images of at most {_SMALL} x {_SMALL}, larger ones are cropped (data.crop)"}
    if as_they_are:
        why = "images that small are used as they are without data.image_size"
        unused |= {"image_resize": why, "resample": why}
    for key, why in unused.items():
        if key in typed:
            raise ConfigError(f"data.{key} is not used: {why}; leave it out")


def check_broken(part: str, files: ImageFiles, wrong: Mapping[int, str], options: ImageOptions) -> None:
    """Refuse images that cannot be read: any, or with ``skip_broken`` if they are too many of the part called so."""
    if not wrong:
        return
    index, reason = next(iter(wrong.items()))
    if not options.skip_broken:
        raise BrokenImageError(files, index, reason, len(wrong) - 1)
    if len(wrong) == len(files):
        raise InputError(
            f"'{part}': none of its {len(files)} images can be read, the first: {files.where(index)}: {reason}"
        )
    if len(wrong) >= options.most_broken * len(files):
        raise InputError(
            f"'{part}': {len(wrong)} of its {len(files)} images cannot be read, the first: {files.where(index)}: "
            f"{reason}; fix or remove them (data.most_broken = {options.most_broken:g})"
        )


def _choose_frame(files: ImageFiles, options: ImageOptions, pool: Executor) -> Frame | None:
    size = options.image_size
    if size is None:
        first = open_images(files, [0], pool)[0]
        if max(first.size) <= _SMALL:
            return None
        size = _LARGE
    resize = options.image_resize or (size if size <= _SMALL else with_margin(size))
    if resize < size:
        raise ConfigError(f"data.image_resize = {resize}: must be at least data.image_size, {size}")
    return Frame(size, resize, options.resample)


def with_margin(size: int) -> int:
    """Return the shorter side to scale an image to before cropping its central ``size`` pixels: 8/7 of ``size``."""
    return round(size * 256 / 224)


def are_small(images: Array | ImageFiles) -> bool:
    """Whether the first image that can be opened is small enough to be kept in memory."""
    if not isinstance(images, ImageFiles):
        return max(map(int, images.shape[2:])) <= _SMALL
    with make_pool(1) as pool:
        for index in range(len(images)):
            with suppress(InputError):
                return max(open_images(images, [index], pool)[0].size) <= _SMALL
    return False
