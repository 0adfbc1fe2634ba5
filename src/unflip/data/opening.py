"""Opening image files: broken ones are found, small ones are read into memory, large ones are read by batch."""

from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field, PositiveInt

from unflip.data.array_files import Array
from unflip.data.decoding import Track, broken, find_broken, make_pool, open_images, read_all, untracked
from unflip.data.image_files import Frame, ImageFiles, Resample, Skipped
from unflip.errors import ConfigError, InputError
from unflip.options import Options

_SMALL = 64  # pixels of a side up to which images are kept in memory
_LARGE = 224  # what the network sees of others, if nothing else is said
_MARGIN = 256 / 224  # of the shorter side to what is seen, likewise


class ImageOptions(Options):
    """How images in files are read."""

    image_size: int | None = Field(None, ge=8)
    """Side of the square that the network sees; by default the images' own size where the first is at most 64 x 64, and
    224 otherwise. Up to 64 all images are read once and kept in memory, above that they are read by batch."""
    image_resize: PositiveInt | None = None
    """Shorter side to which an image is scaled before its centre is cut out; by default 8/7 of `image_size`, or
    `image_size` itself up to 64."""
    resample: Resample = "bilinear"
    """How images are scaled to these sizes."""
    crop: Literal["resized", "random"] = "resized"
    """What training sees of large images: a random 8 to 100 % of the area, or a square of `image_size` at a random
    place after scaling to `image_resize`. Small ones are shifted by up to 4 pixels."""
    workers: PositiveInt | None = None
    """Threads that read images; by default one a core. Results do not depend on it."""
    skip_broken: bool = False
    """Leave out images that cannot be read; `skipped.csv` in the run folder lists them."""
    most_broken: float = Field(0.2, ge=0.0, le=1.0)
    """Share of a part's images from which on `skip_broken` gives up: so many mean that something else is wrong."""


class Opened(NamedTuple):
    """Image files that are ready to be used."""

    inputs: dict[str, Array | ImageFiles]
    """By part: bytes (n, 3, h, w) of small images, files with a frame of large ones."""
    kept: dict[str, Array]
    """By part: which images can be read."""
    skipped: tuple[Skipped, ...]
    frame: Frame | None
    """None where images are used in their own size."""


def open_files(parts: Mapping[str, ImageFiles], options: ImageOptions, track: Track = untracked) -> Opened:
    """Find broken images, choose what the network sees, and read what is small.

    Listed files are looked for before anything else. With ``skip_broken`` every image is decoded once, here, to the
    end of its file, and left out if that fails: so nothing that training meets later is broken, unless it breaks while
    training goes on. Without it an image is decoded when it is first needed, in the first epoch, and a broken one
    stops the run there.
    """
    with make_pool(options.workers) as pool:
        kept, skipped = {}, []
        for part, files in parts.items():
            wrong = {}
            if options.skip_broken or files.listed_in is not None:
                wrong = find_broken(files, pool, decode=options.skip_broken, track=track)
            if wrong and not options.skip_broken:
                raise broken(files, *next(iter(wrong.items())))
            kept[part] = np.ones(len(files), bool)
            kept[part][list(wrong)] = False
            skipped += [Skipped(part, str(files.names[index]), reason) for index, reason in wrong.items()]
            if wrong and not kept[part].any():
                raise InputError(f"'{part}': none of its {len(files)} images can be read; {skipped[-1].reason}")
            if wrong and len(wrong) >= options.most_broken * len(files):
                index, reason = next(iter(wrong.items()))
                raise InputError(
                    f"'{part}': {len(wrong)} of its {len(files)} images cannot be read, the first: "
                    f"{files.where(index)}: {reason}; mend or remove them (data.most_broken = {options.most_broken:g})"
                )
        readable = {part: files[kept[part]] for part, files in parts.items()}
        frame = _choose_frame(next(iter(readable.values())), options, pool)
        inputs: dict[str, Array | ImageFiles] = {}
        for part, files in readable.items():
            if frame is None or frame.size <= _SMALL:
                inputs[part] = read_all(files, frame, pool, track)
            else:
                inputs[part] = replace(files, frame=frame)
    return Opened(inputs, kept, tuple(skipped), frame)


def _choose_frame(files: ImageFiles, options: ImageOptions, pool: Executor) -> Frame | None:
    size = options.image_size
    if size is None:
        first = open_images(files, [0], pool)[0]
        if max(first.size) <= _SMALL:
            return None
        size = _LARGE
    resize = options.image_resize or (size if size <= _SMALL else round(size * _MARGIN))
    if resize < size:
        raise ConfigError(f"data.image_resize = {resize}: must be at least what is cut out of it, {size}")
    return Frame(size, resize, options.resample)


def are_small(images: Array | ImageFiles) -> bool:
    """Whether the first image that can be opened is one of those that are kept in memory."""
    if not isinstance(images, ImageFiles):
        return max(map(int, images.shape[2:])) <= _SMALL
    with make_pool(1) as pool:
        for index in range(len(images)):
            with suppress(InputError):
                return max(open_images(images, [index], pool)[0].size) <= _SMALL
    return False
