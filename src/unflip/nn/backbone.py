"""Pretrained networks: frozen backbones that compute features of images, and networks that are fine-tuned.

`unflip embed` uses a :class:`Backbone`. A :class:`Pretrained` network is trained: first its head alone, then all of it,
with a lower learning rate for the pretrained layers.
"""

import importlib
import warnings
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, NonNegativeInt
from safetensors.torch import load_file
from torch import Tensor, nn

from unflip.errors import ConfigError, InputError, MissingExtraError
from unflip.nn.base import Network
from unflip.options import Options


@dataclass(frozen=True)
class Backbone:
    """A pretrained network without its classifier.

    Attributes:
        network: maps normalized images (b, 3, h, w) to features (b, d).
        mean: per channel, in [0, 255]; images are normalized as ``(x - mean) / std``.
        std: likewise.
        size: side of the training images, in pixels.
        fixed_size: whether it takes images of no other size.
    """

    network: nn.Module
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int
    fixed_size: bool = False


def import_extra(package: str, extra: str) -> Any:
    """Import a package of an extra; raise MissingExtraError if it, or a package that it needs, is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError((error.name or package).replace("_", "-"), extra) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file or one that torch.save wrote; no code in it is executed.

    Args:
        path: a .safetensors file, or a ``state_dict`` by ``torch.save``, alone or in a training checkpoint.
    """
    try:
        path.open("rb").close()  # for the system's own error message
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # torch's, about pickles and archives
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"weights {path}: {error.strerror or 'not a readable file'}") from error
    except Exception as error:  # arbitrary bytes raise anything in torch
        raise InputError(
            f"weights {path}: not a plain file of weights; give a .safetensors file, or a state_dict by torch.save"
        ) from error
    for key in ("state_dict", "model"):  # where training checkpoints keep them
        content = content[key] if isinstance(content, dict) and isinstance(content.get(key), dict) else content
    items = content.items() if isinstance(content, dict) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in items):
        raise InputError(f"weights {path}: no named tensors in it; give the state_dict of a network")
    return dict(items)


def hash_weights(network: nn.Module, settings: str = "") -> str:
    """Return a hash of a network's parameters and buffers, and of other ``settings`` that its outputs depend on."""
    digest = blake2b(settings.encode(), digest_size=8)
    for name, value in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fill(network: nn.Module, weights: dict[str, Tensor], what: str, *, besides: tuple[str, ...] = ()) -> None:
    """Load weights into a network; raise InputError if they are those of another architecture.

    Args:
        network: modified in place.
        weights: by parameter name, as :func:`read_weights` returns them.
        what: file name, for errors.
        besides: prefixes of additional names that are ignored, such as those of a classifier.
    """
    try:
        result = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n")[-1].split())
        raise InputError(f"weights {what}: do not fit this network: {reason}") from error
    stray = [name for name in result.unexpected_keys if not name.startswith(besides)]
    if result.missing_keys or stray:
        problem, names = ("missing", result.missing_keys) if result.missing_keys else ("unexpected", stray)
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise InputError(f"weights {what}: do not fit this network: {problem} '{names[0]}'{others}")


class PretrainedOptions(Options):
    """Options of fine-tuning; the head is always initialized randomly."""

    pretrained: bool = True
    """Start from the published weights; `--from-scratch` starts from random ones."""
    freeze_epochs: NonNegativeInt | None = None
    """Epochs in which only the head is trained; by default a tenth of all, at least one of two."""
    backbone_lr_scale: float = Field(0.1, gt=0.0, le=1.0)
    """Learning rate of the pretrained layers, relative to that of the head."""

    def check_length(self, section: str, epochs: int) -> None:
        """Raise ConfigError if the encoder would stay frozen for all ``epochs``."""
        if self.pretrained and self.freeze_epochs is not None and self.freeze_epochs >= epochs:
            raise ConfigError(
                f"{section}.freeze_epochs = {self.freeze_epochs}: must be below epochs = {epochs}, or only the "
                "head is trained"
            )


class Pretrained(Network):
    """A network with an ``encoder`` that may be pretrained.

    The gradients of a random head would distort pretrained features. So the encoder is frozen at first, and then
    trained at a lower learning rate (Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features").
    """

    Options: ClassVar[type[PretrainedOptions]] = PretrainedOptions
    encoder: nn.Module

    def __init__(self, options: PretrainedOptions) -> None:
        super().__init__()
        self.options = options

    def is_frozen(self, epoch: int, epochs: int) -> bool:
        """Whether the encoder is frozen in ``epoch`` (counted from 1) of ``epochs``."""
        count = usual_freeze_epochs(epochs) if self.options.freeze_epochs is None else self.options.freeze_epochs
        return self.options.pretrained and epoch <= count


def usual_freeze_epochs(epochs: int) -> int:
    """Return the default number of epochs in which only the head is trained."""
    return min(epochs - 1, max(1, epochs // 10))
