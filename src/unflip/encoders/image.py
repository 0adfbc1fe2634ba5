"""Encoder of images: a pretrained backbone at a fixed image size.

:class:`ImageEncoder` holds the backbone. Below it, images are embedded part by part (:func:`embed_part`); images that
cannot be read are recorded.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.compute import prefetched
from unflip.data.arrays import Array
from unflip.data.dataset import Encoding
from unflip.data.files import BrokenImageError, ImageFiles
from unflip.data.images import FileSource, ImageSource, are_small, with_margin
from unflip.data.options import DataOptions
from unflip.data.sources import Source, Standardization
from unflip.data.split import content_hash
from unflip.encoders.base import Encoded, Encoder
from unflip.errors import ConfigError, InputError
from unflip.nn import backbones
from unflip.nn.backbone import Backbone, Encode, compile_backbone, hash_weights
from unflip.progress import Track, untracked

_SMALL_SIZE = 112  # to which images of at most 64 x 64 pixels are resized
_BATCH, _GPU_BATCH = 16, 256  # on a CPU small batches are faster


@dataclass(frozen=True)
class ImageSettings:
    """Everything that the features of an image depend on.

    Attributes:
        backbone: name in the registry of backbones.
        weights: hash of its weights.
        image_size: side of the input images, in pixels.
        image_resize: length of the shorter side before the center crop.
        resample: interpolation mode.
        weights_file: file of the weights, if they are not those of the backbone's package.
    """

    backbone: str
    weights: str
    image_size: int
    image_resize: int
    resample: str
    weights_file: str | None = None


class ImageEncoder(Encoder):
    """Embeds images by a frozen backbone; nothing is fitted to the images."""

    def __init__(self, settings: ImageSettings, backbone: Backbone) -> None:
        self.settings, self._backbone = settings, backbone
        self.device, self.batch_size = torch.device("cpu"), _BATCH

    @classmethod
    def choose(cls, name: str, images: Array | ImageFiles, options: DataOptions, weights: str | None) -> Self:
        """Load a backbone and choose the image size: small images are upscaled, large ones resized and cropped.

        Args:
            name: of the backbone.
            images: the training images.
            options: its ``image_size`` and ``image_resize`` override the choice.
            weights: file of weights; None for the published ones.
        """
        backbone = _load(name, weights)
        small = are_small(images)
        size = options.image_size or (_SMALL_SIZE if small and not backbone.fixed_size else backbone.size)
        if backbone.fixed_size and size != backbone.size:
            raise ConfigError(f"--image-size {size}: {name} takes images of {backbone.size} pixels only")
        resize = size  # images of an array are not cropped
        if isinstance(images, ImageFiles):
            resize = options.image_resize or (size if small else with_margin(size))
        path = None if weights is None else str(Path(weights).resolve())
        digest = hash_weights(backbone.network)
        return cls(ImageSettings(name, digest, size, resize, options.resample, path), backbone)

    @classmethod
    def restore(cls, encoding: Encoding) -> Self:
        """Load the same backbone; raise InputError if its weights are missing or have changed."""
        settings = ImageSettings(**encoding.settings)
        name, path = settings.backbone, settings.weights_file
        if path is not None and not Path(path).is_file():
            raise InputError(f"no such file: {path}, the weights of {name}; give them with --weights")
        backbone = _load(name, path)
        if (digest := hash_weights(backbone.network)) != settings.weights:
            trained = f"the model was trained on features of {name} with weights {settings.weights}"
            raise InputError(f"{trained}, and {path or 'its package'} holds {digest}; give the same with --weights")
        return cls(settings, backbone)

    def encoding(self) -> Encoding:
        """Return the settings as plain data."""
        return Encoding("images", asdict(self.settings))

    def describe(self) -> list[str]:
        """Return the name of the backbone and the image size."""
        return [f"features from {self.settings.backbone} at {self.settings.image_size} pixels"]

    def to(self, device: torch.device, batch_size: int | None = None) -> Self:
        """Move the backbone to ``device`` and set the batch size; None for the default."""
        self.device, self.batch_size = device, batch_size or (_BATCH if device.type == "cpu" else _GPU_BATCH)
        network = self._backbone.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        network.eval().requires_grad_(False)
        return self

    def encode(self, inputs: Any, track: Track = untracked) -> Encoded:
        """Embed image files, opened with :func:`image_options`, or an array (n, 3, h, w)."""
        source = self.source(inputs)
        rows = torch.arange(len(source)).split(self.batch_size)
        batches = prefetched((partial(source.fetch, indices) for indices in rows), source.prefetch)
        return Encoded(np.concatenate([self.encode_batch(images) for images in track(batches, "embedding", len(rows))]))

    def source(self, images: Array | ImageFiles, workers: int | None = None) -> FileSource | ImageSource:
        """Return a source of images that are normalized for the backbone."""
        if isinstance(images, ImageFiles):
            return FileSource(images, self._normalization, augment=False, workers=workers)
        return ImageSource(images, self._normalization, augment=False)

    def pixel_stats(self, images: Tensor) -> Array:
        """Return mean and standard deviation of the brightness, in [0, 1], and sharpness (b, 3).

        The sharpness is the variance of the Laplacian, relative to that of the brightness (Pertuz et al. 2013, Analysis
        of focus measure operators). ``images`` come from :meth:`source`.
        """
        mean, std = self._normalization.mean, self._normalization.std
        gray = (torch.einsum("bchw,c->bhw", images, std.flatten() / 3) + mean.mean()) / 255
        edge = F.pad(gray[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
        around = edge[:, :-2, 1:-1] + edge[:, 2:, 1:-1] + edge[:, 1:-1, :-2] + edge[:, 1:-1, 2:]
        variance = gray.flatten(1).var(1, correction=0)
        sharpness = (4 * gray - around).flatten(1).var(1, correction=0) / variance.clamp(min=1e-6)
        return torch.stack([gray.flatten(1).mean(1), variance.sqrt(), sharpness], 1).numpy()

    @torch.inference_mode()
    def encode_batch(self, images: Tensor) -> Array:
        """Return the features (b, d) of images from :meth:`source`, in float16."""
        size = (self.settings.image_size, self.settings.image_size)
        images = images.to(self.device)
        if images.shape[2:] != size:  # of an array; files were resized when they were read
            images = F.interpolate(images, size, mode=self.settings.resample, align_corners=False, antialias=True)
        features = self._network(images.contiguous(memory_format=torch.channels_last)).half().cpu().numpy()
        if not np.isfinite(features).all():
            raise InputError(f"backbone {self.settings.backbone}: features are not finite in float16")
        return features

    @cached_property
    def _network(self) -> Encode:
        """The backbone, compiled on a CPU."""
        return compile_backbone(self._backbone.network, self.settings.image_size)

    @cached_property
    def _normalization(self) -> Standardization:
        return Standardization(*(torch.tensor(v).view(3, 1, 1) for v in (self._backbone.mean, self._backbone.std)))


def image_options(encoding: Encoding, options: DataOptions) -> DataOptions:
    """Return ``options`` with the image size of an encoding."""
    own = {key: encoding.settings[key] for key in ("image_size", "image_resize", "resample")}
    return options.model_copy(update=own | {"augment": False})


class Embedded(NamedTuple):
    """The features of a part.

    Attributes:
        features: (m, d), of the images that could be read.
        digests: (m,) hashes of their pixels, equal for equal images.
        image_stats: (m, 5), see :class:`unflip.data.dataset.Split`.
        broken: why the others could not be read, by their index within the part.
    """

    features: Array
    digests: Array
    image_stats: Array
    broken: dict[int, str]


def read_batches(source: Source, rows: Iterable[Tensor]) -> Iterator[tuple[Tensor, dict[int, str]]]:
    """Yield batches of the images at ``rows`` that can be read, and why the others cannot, by row; prefetched."""
    return prefetched((partial(_read, source, batch) for batch in rows), source.prefetch)


def embed_part(
    encoder: ImageEncoder, images: Array | ImageFiles, workers: int | None, advance: Callable[[int], None]
) -> Embedded:
    """Embed the images of a part, batch by batch; ``advance`` is called with the number of images after each batch."""
    features, digests, broken, pixels = [], [], {}, [np.empty((0, 3), np.float32)]
    source = encoder.source(images, workers)
    rows = torch.arange(len(images)).split(encoder.batch_size)
    for batch, (readable, reasons) in zip(rows, read_batches(source, rows), strict=True):
        broken.update(reasons)
        if len(readable):
            digests += [content_hash(np.ascontiguousarray(image).data) for image in readable.numpy()]
            pixels.append(encoder.pixel_stats(readable))
            features.append(encoder.encode_batch(readable))
        advance(len(batch))
    stats = np.hstack([np.concatenate(pixels), np.delete(source.sizes, [*broken], axis=0)])
    stacked = np.concatenate(features) if features else np.empty((0, 0), np.float16)
    return Embedded(stacked, np.array(digests, np.uint64), stats, broken)


def _read(source: Source, rows: Tensor) -> tuple[Tensor, dict[int, str]]:
    """Read a batch, image by image if some are broken."""
    with suppress(BrokenImageError):
        return source.fetch(rows), {}
    images, broken = [torch.empty(0, *source.shape)], {}
    for row in rows.tolist():
        try:
            images.append(source.fetch(torch.tensor([row])))
        except BrokenImageError as error:
            broken[row] = error.reason
    return torch.cat(images), broken


def _load(name: str, weights: str | None) -> Backbone:
    backbone: Backbone = backbones.load(name)(None if weights is None else Path(weights))
    return backbone
