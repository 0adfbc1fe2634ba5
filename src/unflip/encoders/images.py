"""Images: features by a pretrained backbone, which sees them all in one size."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.compute.ahead import prepared
from unflip.data.encoding import Encoding
from unflip.data.files.arrays import Array
from unflip.data.images.files import ImageFiles
from unflip.data.images.opening import are_small, with_margin
from unflip.data.images.sources import FileSource, ImageSource
from unflip.data.options import DataOptions
from unflip.data.sources import Source, Standardisation
from unflip.encoders.base import Encoded, Encoder
from unflip.errors import ConfigError, InputError
from unflip.nn import backbones
from unflip.nn.backbone import Backbone
from unflip.nn.openvino import Encode, Precision, compile_backbone
from unflip.progress import Track, untracked

_SMALL_SIZE = 112  # what images of at most 64 x 64 pixels are scaled to
_LOOKED_AT = 64  # pixels across, about, that tell how bright an image is
_BATCH, _GPU_BATCH = 16, 256  # images at once; on a processor small batches are faster


@dataclass(frozen=True)
class ImageSettings:
    """What the features of an image depend on besides the image."""

    backbone: str
    weights: str
    """Hash of the backbone's weights."""
    image_size: int
    image_resize: int
    resample: str
    precision: Precision = "float32"
    """In which the backbone computes: `bfloat16` is faster, and its features depend a little on the machine."""
    weights_file: str | None = None
    """Where they were read from, if not from the backbone's own package."""


class ImageEncoder(Encoder):
    """Images of one size go through a backbone; only the weights and that size matter, nothing is learnt here."""

    def __init__(self, settings: ImageSettings, backbone: Backbone) -> None:
        self.settings, self._backbone = settings, backbone
        self.device, self.batch_size = torch.device("cpu"), _BATCH

    @classmethod
    def choose(
        cls, name: str, images: Array | ImageFiles, options: DataOptions, weights: str | None, precision: Precision
    ) -> Self:
        """Return the encoder called ``name`` in a size that suits ``images``.

        Small ones are scaled up and seen whole, of larger ones the centre is seen.
        """
        backbone = _load(name, weights)
        small = are_small(images)
        size = options.image_size or (_SMALL_SIZE if small and not backbone.fixed_size else backbone.size)
        if backbone.fixed_size and size != backbone.size:
            raise ConfigError(f"--image-size {size}: {name} takes images of {backbone.size} pixels only; leave it out")
        resize = options.image_resize or (size if small else with_margin(size))
        if not isinstance(images, ImageFiles) and resize != size:
            if options.image_resize is not None:
                raise ConfigError(
                    f"--image-resize {resize}: images of an array are seen whole; leave it out, or give {size}"
                )
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
        """Return the features of image files, opened with :meth:`data_options`, or of an array (n, 3, h, w)."""
        source = self.source(inputs)
        count = -(-len(source) // self.batch_size)
        batches = track(self.batches(source, range(len(source))), "embedding", count)
        return Encoded(np.concatenate([self.encode_batch(images) for images in batches]))

    def source(self, images: Array | ImageFiles, workers: int | None = None) -> FileSource | ImageSource:
        """Return a source of the images in the backbone's own units."""
        if isinstance(images, ImageFiles):
            return FileSource(images, self._normalisation, augment=False, workers=workers)
        return ImageSource(images, self._normalisation, augment=False)

    def brightness(self, images: Tensor) -> Array:
        """Return mean and standard deviation (b, 2) of the brightness, from 0 to 1, of images from :meth:`source`."""
        mean, std = self._normalisation.mean, self._normalisation.std
        step = max(1, images.shape[3] // _LOOKED_AT)
        grey = torch.einsum("bchw,c->bhw", images[:, :, ::step, ::step], std.flatten() / 3).flatten(1) + mean.mean()
        return (torch.stack([grey.mean(1), grey.std(1, correction=0)], 1) / 255).numpy()

    def batches(self, source: Source, rows: range) -> Iterator[Tensor]:
        """Yield batches of images (b, 3, h, w), prepared ahead."""
        cut = torch.arange(rows.start, rows.stop).split(self.batch_size)
        return prepared((partial(source.fetch, indices) for indices in cut), source.ahead)

    @torch.inference_mode()
    def encode_batch(self, images: Tensor) -> Array:
        """Return features (b, d) of images from :meth:`batches`, in half precision."""
        size = (self.settings.image_size, self.settings.image_size)
        images = images.to(self.device)
        if images.shape[2:] != size:  # of an array; files were scaled when they were read
            images = F.interpolate(images, size, mode=self.settings.resample, align_corners=False, antialias=True)
        features = self._network(images.contiguous(memory_format=torch.channels_last)).half().cpu().numpy()
        if not np.isfinite(features).all():
            raise InputError(
                f"backbone {self.settings.backbone}: features that are not finite, or beyond float16's range"
            )
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
    def _normalisation(self) -> Standardisation:
        return Standardisation(*(torch.tensor(v).view(3, 1, 1) for v in (self._backbone.mean, self._backbone.std)))


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


def _load(name: str, weights: str | None) -> Backbone:
    backbone: Backbone = backbones.load(name)(None if weights is None else Path(weights))
    return backbone


def _hash_weights(backbone: Backbone) -> str:
    digest = blake2b(digest_size=8)
    for name, value in sorted(backbone.network.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
