"""Images: features by a pretrained backbone, which sees them all in one size.

:class:`ImageEncoder` holds the backbone; below it images become features part by part, on this machine
(:func:`embed_part`) or on a Ray cluster (:func:`embed_on`), and images that cannot be read are noted.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.data.arrays import Array
from unflip.data.dataset import Encoding
from unflip.data.decoding import BrokenImageError
from unflip.data.files import ImageFiles
from unflip.data.images import FileSource, ImageSource, are_small, with_margin
from unflip.data.options import DataOptions
from unflip.data.sources import Source, Standardization
from unflip.encoders.base import Encoded, Encoder
from unflip.errors import ConfigError, InputError, RunFolderError, UnflipError, described
from unflip.nn import backbones
from unflip.nn.backbone import Backbone
from unflip.nn.openvino import Encode, Precision, compile_backbone
from unflip.parallel import Cluster, find_device, prefetched
from unflip.progress import Track, untracked

Advance = Callable[[int], None]  # told how many more images are done; 0 now and then, so that it may stop the work
_SMALL_SIZE = 112  # what images of at most 64 x 64 pixels are scaled to
_LOOKED_AT = 64  # pixels across, about, that tell how bright an image is
_BATCH, _GPU_BATCH = 16, 256  # images at once; on a processor small batches are faster
_LOST = 3  # how often a part begins again whose process or machine is lost
_LOOK_EVERY = 0.5  # seconds between looks at a cluster


@dataclass(frozen=True)
class ImageSettings:
    """What the features of an image depend on besides the image.

    Attributes:
        backbone: its name in the registry of backbones.
        weights: hash of its weights.
        image_size: width and height in pixels of what it sees.
        image_resize: to which the shorter side of an image is scaled before the center is cut out.
        resample: how images are scaled.
        precision: in which the backbone computes: `bfloat16` is faster, and a little different on each machine.
        weights_file: where the weights were read from, if not from the backbone's own package.
    """

    backbone: str
    weights: str
    image_size: int
    image_resize: int
    resample: str
    precision: Precision = "float32"
    weights_file: str | None = None


class ImageEncoder(Encoder):
    """Images of one size go through a backbone; only the weights and that size matter, nothing is learned here."""

    def __init__(self, settings: ImageSettings, backbone: Backbone) -> None:
        self.settings, self._backbone = settings, backbone
        self.device, self.batch_size = torch.device("cpu"), _BATCH

    @classmethod
    def choose(
        cls, name: str, images: Array | ImageFiles, options: DataOptions, weights: str | None, precision: Precision
    ) -> Self:
        """Return the encoder called ``name`` in a size that suits ``images``.

        Small ones are scaled up and seen whole, of larger ones the center is seen.
        """
        backbone = _load(name, weights)
        small = are_small(images)
        size = options.image_size or (_SMALL_SIZE if small and not backbone.fixed_size else backbone.size)
        if backbone.fixed_size and size != backbone.size:
            raise ConfigError(f"--image-size {size}: {name} takes images of {backbone.size} pixels only; leave it out")
        resize = options.image_resize or (size if small else with_margin(size))
        if not isinstance(images, ImageFiles):  # images of an array are seen whole
            resize = size
        where = None if weights is None else str(Path(weights).resolve())
        hashed = _hash_weights(backbone)
        return cls(ImageSettings(name, hashed, size, resize, options.resample, precision, where), backbone)

    @classmethod
    def restore(cls, encoding: Encoding) -> Self:
        """Load the same backbone; refuse other weights."""
        settings = ImageSettings(**encoding.settings)
        where = settings.weights_file
        if where is not None and not Path(where).is_file():
            raise InputError(
                f"the model takes features of {settings.backbone} with weights from {where}, which is not there; say "
                "where they are with --weights"
            )
        backbone = _load(settings.backbone, where)
        found = _hash_weights(backbone)
        if found != settings.weights:
            raise InputError(
                f"the model takes features of {settings.backbone} with weights {settings.weights}, and "
                f"{where or 'its package'} holds {found}: give the same with --weights"
            )
        return cls(settings, backbone)

    def encoding(self) -> Encoding:
        """Return the settings."""
        return Encoding("images", asdict(self.settings))

    def describe(self) -> list[str]:
        """Say which backbone sees what."""
        precision = "" if self.settings.precision == "float32" else f" in {self.settings.precision}"
        return [f"features by {self.settings.backbone} at {self.settings.image_size} pixels{precision}"]

    def to(self, device: torch.device, batch_size: int | None = None) -> Self:
        """Compute on ``device`` from now on, ``batch_size`` images at once."""
        self.device, self.batch_size = device, batch_size or (_BATCH if device.type == "cpu" else _GPU_BATCH)
        network = self._backbone.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        network.eval().requires_grad_(False)
        return self

    def encode(self, inputs: Any, track: Track = untracked) -> Encoded:
        """Return the features of image files, opened with :func:`image_options`, or of an array (n, 3, h, w)."""
        source = self.source(inputs)
        rows = torch.arange(len(source)).split(self.batch_size)
        batches = prefetched((partial(source.fetch, indices) for indices in rows), source.prefetch)
        features = [self.encode_batch(images) for images in track(batches, "embedding", len(rows))]
        return Encoded(np.concatenate(features))

    def source(self, images: Array | ImageFiles, workers: int | None = None) -> FileSource | ImageSource:
        """Return a source of the images in the backbone's own units."""
        if isinstance(images, ImageFiles):
            return FileSource(images, self._normalization, augment=False, workers=workers)
        return ImageSource(images, self._normalization, augment=False)

    def brightness(self, images: Tensor) -> Array:
        """Return mean and standard deviation (b, 2) of the brightness, from 0 to 1, of images from :meth:`source`."""
        mean, std = self._normalization.mean, self._normalization.std
        step = max(1, images.shape[3] // _LOOKED_AT)
        gray = torch.einsum("bchw,c->bhw", images[:, :, ::step, ::step], std.flatten() / 3).flatten(1) + mean.mean()
        return (torch.stack([gray.mean(1), gray.std(1, correction=0)], 1) / 255).numpy()

    @torch.inference_mode()
    def encode_batch(self, images: Tensor) -> Array:
        """Return features (b, d) of images from :meth:`source`, in half precision."""
        size = (self.settings.image_size, self.settings.image_size)
        images = images.to(self.device)
        if images.shape[2:] != size:  # of an array; files were scaled when they were read
            images = F.interpolate(images, size, mode=self.settings.resample, align_corners=False, antialias=True)
        features = self._network(images.contiguous(memory_format=torch.channels_last)).half().cpu().numpy()
        if not np.isfinite(features).all():
            raise InputError(f"backbone {self.settings.backbone}: features not finite, or beyond the range of float16")
        return features

    @cached_property
    def _network(self) -> Encode:
        """The backbone as this machine runs it fastest."""
        if self.device.type == "cpu":
            return compile_backbone(self._backbone, self.settings.image_size, self.settings.precision)
        if self.settings.precision != "float32":
            raise ConfigError(f"--feature-precision {self.settings.precision} is for processors; leave it out on a GPU")
        return self._backbone.encode

    @cached_property
    def _normalization(self) -> Standardization:
        return Standardization(*(torch.tensor(v).view(3, 1, 1) for v in (self._backbone.mean, self._backbone.std)))


def image_options(encoding: Encoding, options: DataOptions) -> DataOptions:
    """Return options under which images are read as the encoder wants them."""
    own = {key: encoding.settings[key] for key in ("image_size", "image_resize", "resample")}
    return options.model_copy(update=own | {"augment": False})


def embed_command(encoding: Encoding, images: str, out: str = "new.npz") -> str:
    """Return the command that makes features of ``images`` like this."""
    made = ImageSettings(**encoding.settings)
    resample = f" --resample {made.resample}" if made.resample != "bilinear" else ""
    weights = f" --weights {quote(made.weights_file)}" if made.weights_file else ""
    weights += f" --feature-precision {made.precision}" if made.precision != "float32" else ""
    sizes = f"--image-size {made.image_size} --image-resize {made.image_resize}"
    return f"unflip embed {quote(images)} --backbone {made.backbone}{weights} {sizes}{resample} --out {out}"


class Readable(NamedTuple):
    """A batch of images without those that cannot be read, and the reasons for these by row."""

    images: Tensor
    broken: dict[int, str]


class Embedded(NamedTuple):
    """What became of a part.

    Attributes:
        features: of the images that could be read (m, d).
        digests: of their pixels (m,), equal for equal images.
        image_stats: what is noted of them (m, 4): see :class:`unflip.data.dataset.Split`.
        broken: why the others could not be read, by their number within the part.
    """

    features: Array
    digests: Array
    image_stats: Array
    broken: dict[int, str]


@dataclass(frozen=True)
class Workplace:
    """How a machine computes a part; ``workers`` are the threads that decode images."""

    device: str
    threads: int | None
    workers: int | None
    batch_size: int | None


def read_batches(source: Source, rows: Iterable[Tensor]) -> Iterator[Readable]:
    """Yield the images at ``rows``, batch by batch, prepared ahead."""
    return prefetched((partial(_read, source, batch) for batch in rows), source.prefetch)


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
    if place.threads is not None:
        torch.set_num_threads(place.threads)
    device = torch.device(find_device(place.device))
    return ImageEncoder.restore(Encoding("images", json.loads(settings))).to(device, place.batch_size)


def _read(source: Source, rows: Tensor) -> Readable:
    """Return a batch of images, read one by one if some of them are broken."""
    with suppress(BrokenImageError):
        return Readable(source.fetch(rows), {})
    images, broken = [torch.empty(0, *source.shape)], {}
    for row in rows.tolist():
        try:
            images.append(source.fetch(torch.tensor([row])))
        except BrokenImageError as error:
            broken[row] = error.reason
    return Readable(torch.cat(images), broken)


def _digest(image: Array) -> int:
    return int.from_bytes(blake2b(np.ascontiguousarray(image).data, digest_size=8).digest())


def _load(name: str, weights: str | None) -> Backbone:
    backbone: Backbone = backbones.load(name)(None if weights is None else Path(weights))
    return backbone


def _hash_weights(backbone: Backbone) -> str:
    digest = blake2b(digest_size=8)
    for name, value in sorted(backbone.network.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
