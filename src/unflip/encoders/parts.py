"""Images become features part by part, on this machine or on a cluster; images that cannot be read are noted."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unflip.compute.ahead import prepared
from unflip.compute.cluster import Cluster
from unflip.compute.processes import start_processes
from unflip.data.encoding import Encoding
from unflip.data.files.arrays import Array
from unflip.data.images.decoding import BrokenImageError
from unflip.data.images.files import ImageFiles
from unflip.data.sources import Source
from unflip.encoders.images import ImageEncoder
from unflip.errors import RunFolderError, UnflipError, described

Advance = Callable[[int], None]
"""Told how many more images are done; 0 now and then while there is nothing to tell, so that it may stop the work."""
_LOST = 3  # how often a part begins again whose process or machine is lost
_LOOK_EVERY = 0.5  # seconds between looks at a cluster


class Readable(NamedTuple):
    """A batch of images without those that cannot be read."""

    images: Tensor
    broken: dict[int, str]
    """Reasons by row."""


class Embedded(NamedTuple):
    """What became of a part."""

    features: Array
    """Of the images that could be read (m, d)."""
    digests: Array
    """Of their pixels (m,), equal for equal images."""
    image_stats: Array
    """What is noted of them (m, 4): see :class:`unflip.data.raw.LabelledSet`."""
    broken: dict[int, str]
    """Why the others could not, by their number within the part."""


@dataclass(frozen=True)
class Workplace:
    """How a machine computes a part."""

    device: str
    threads: int | None
    workers: int | None
    """Threads that decode images."""
    batch_size: int | None


def read_batches(source: Source, rows: Iterable[Tensor]) -> Iterator[Readable]:
    """Yield the images at ``rows``, batch by batch, prepared ahead."""
    return prepared((partial(_read, source, batch) for batch in rows), source.ahead)


def embed_part(encoder: ImageEncoder, images: Array | ImageFiles, workers: int | None, advance: Advance) -> Embedded:
    """Compute the features of ``images``, batch by batch."""
    features, digests, broken, brightness = [], [], {}, [np.empty((0, 2), np.float32)]
    source = encoder.source(images, workers)
    rows = torch.arange(len(images)).split(encoder.batch_size)
    for batch, found in zip(rows, read_batches(source, rows), strict=True):
        broken.update(found.broken)
        if len(found.images):
            digests += [_digest(image) for image in found.images.numpy()]
            brightness.append(encoder.brightness(found.images))
            features.append(encoder.encode_batch(found.images))
        advance(len(batch))
    sizes = np.delete(source.sizes, [*broken], axis=0)
    none = np.empty((0, 0), np.float16)
    return Embedded(
        np.concatenate(features) if features else none,
        np.array(digests, np.uint64),
        np.hstack([np.concatenate(brightness), sizes]),
        broken,
    )


def embed_on(
    cluster: Cluster,
    encoding: Encoding,
    parts: Iterable[Array | ImageFiles],
    place: Workplace,
    advance: Advance,
) -> Iterator[tuple[int, Embedded]]:
    """Yield the number of each part and what became of it, as parts come back; lost ones begin again elsewhere.

    A machine needs what the parts name, at the same paths, and the backbone; nothing is written there.
    """
    task, ray = cluster.task(_embed_there, retries=_LOST), cluster.ray
    todo = enumerate(parts)
    waiting: dict[Any, tuple[int, Array | ImageFiles]] = {}
    settings = json.dumps(dict(encoding.settings))
    try:
        while True:
            while len(waiting) < 2 * cluster.jobs and (following := next(todo, None)) is not None:
                waiting[task.remote(settings, following[1], place)] = following
            if not waiting:
                return
            ready, _ = ray.wait([*waiting], timeout=_LOOK_EVERY)
            advance(0)
            for done in ready:
                number, images = waiting.pop(done)
                try:
                    embedded: Embedded = ray.get(done)
                except ray.exceptions.RayError as error:
                    why = getattr(error, "cause", None)
                    if isinstance(why, UnflipError):
                        raise why from error
                    raise RunFolderError(f"a part failed on the Ray cluster: {described(why or error)}") from error
                advance(len(images))
                yield number, embedded
    finally:
        for left in waiting:
            ray.cancel(left, force=True)


def _embed_there(settings: str, images: Array | ImageFiles, place: Workplace) -> Embedded:
    return embed_part(_encoder(settings, place), images, place.workers, lambda count: None)


@cache
def _encoder(settings: str, place: Workplace) -> ImageEncoder:
    """Return the encoder of this process, which it keeps for the next part."""
    device = start_processes(place.device, place.threads).device
    return ImageEncoder.restore(Encoding("images", json.loads(settings))).to(device, place.batch_size)


def _read(source: Source, rows: Tensor) -> Readable:
    try:
        return Readable(source.fetch(rows), {})
    except BrokenImageError:
        return _read_one_by_one(source, rows)


def _read_one_by_one(source: Source, rows: Tensor) -> Readable:
    images, broken = [torch.empty(0, *source.shape)], {}
    for row in rows.tolist():
        try:
            images.append(source.fetch(torch.tensor([row])))
        except BrokenImageError as error:
            broken[row] = error.reason
    return Readable(torch.cat(images), broken)


def _digest(image: Array) -> int:
    return int.from_bytes(blake2b(np.ascontiguousarray(image).data, digest_size=8).digest())
