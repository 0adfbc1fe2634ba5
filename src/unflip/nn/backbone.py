"""Pretrained networks: frozen ones that turn images into features (backbones), and those that are fine-tuned.

A :class:`Backbone` is what `unflip embed` uses. A :class:`Pretrained` network is trained: first its head alone, then
all of it, the pretrained layers at a lower learning rate.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, NonNegativeInt
from safetensors.torch import load_file
from torch import Tensor, nn

from unflip.errors import ConfigError, InputError
from unflip.nn.base import Network
from unflip.options import Options


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier, ready for use.

    Attributes:
        encode: maps normalized images (b, 3, h, w) to features (b, d).
        network: the module behind ``encode``.
        mean: per channel, in units of bytes; images are fed as ``(x - mean) / std``.
        std: likewise.
        size: side of the images that it was trained with, in pixels.
        fixed_size: whether it takes no other size.
    """

    encode: Callable[[Tensor], Tensor]
    network: nn.Module
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int
    fixed_size: bool = False


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file or one that torch.save wrote; no code in it is executed.

    Args:
        path: a .safetensors file, or a ``state_dict`` by ``torch.save``, alone or in a training checkpoint.
    """
    try:
        path.open("rb").close()  # neither library says what is wrong with a path
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # torch's, about pickles and archives
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"weights {path}: {error.strerror or 'not a readable file'}") from error
    except Exception as error:  # for arbitrary bytes torch raises anything, and advises to run what is in the file
        raise InputError(
            f"weights {path}: not a plain file of weights; give a .safetensors file, or what "
            "torch.save(network.state_dict(), FILE) wrote"
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
    """Load all weights of a network in place; refuse weights of another architecture.

    Args:
        network: gets the weights.
        weights: by parameter name, as :func:`read_weights` returns them.
        what: where they come from, for errors.
        besides: beginnings of names that the network need not have, such as those of a classifier.
    """
    try:
        found = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n")[-1].split())
        raise InputError(f"weights {what}: do not fit this network: {reason}") from error
    stray = [name for name in found.unexpected_keys if not name.startswith(besides)]
    if found.missing_keys or stray:
        problem, names = ("missing", found.missing_keys) if found.missing_keys else ("unexpected", stray)
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise InputError(f"weights {what}: do not fit this network: {problem} '{names[0]}'{others}")


class PretrainedOptions(Options):
    """How a network that comes with weights is fine-tuned; the head always starts from scratch."""

    pretrained: bool = True
    """Start from the weights that were published with the network; `--from-scratch` starts from random ones."""
    freeze_epochs: NonNegativeInt | None = None
    """First epochs, in which the head alone learns; by default a tenth of all, one at least if there are two."""
    backbone_lr_scale: float = Field(0.1, gt=0.0, le=1.0)
    """Learning rate of the pretrained layers, as a share of the head's."""

    def check_length(self, section: str, epochs: int) -> None:
        """Refuse head epochs after which nothing is left for the encoder, in a run of ``epochs``."""
        if self.pretrained and self.freeze_epochs is not None and self.freeze_epochs >= epochs:
            raise ConfigError(
                f"{section}.freeze_epochs = {self.freeze_epochs}: must be below epochs = {epochs}, or only the "
                "head is trained; leave it out for a tenth of the epochs"
            )


class Pretrained(Network):
    """A network with an ``encoder`` that may come with weights.

    A head that has learned nothing yet sends gradients that mean nothing, and at a full rate they would undo what the
    encoder knows. So the encoder waits for the head, and then learns more slowly (Kumar et al. 2022, "Fine-Tuning can
    Distort Pretrained Features").
    """

    Options: ClassVar[type[PretrainedOptions]] = PretrainedOptions
    encoder: nn.Module

    def __init__(self, options: PretrainedOptions) -> None:
        super().__init__()
        self.options = options

    def is_frozen(self, epoch: int, epochs: int) -> bool:
        """Whether the encoder stays as it is in ``epoch`` (counted from 1) of a run of ``epochs``."""
        if not self.options.pretrained:
            return False
        waits = self.options.freeze_epochs
        return epoch <= (usual_freeze_epochs(epochs) if waits is None else waits)


def usual_freeze_epochs(epochs: int) -> int:
    """Return in how many of a run's epochs the head learns alone, where nobody chose."""
    return min(epochs - 1, max(1, epochs // 10))


def pretrained_parts(network: nn.Module) -> list[Pretrained]:
    """Return what is pretrained in a network: itself, its members, or nothing."""
    return [part for part in network.modules() if isinstance(part, Pretrained) and part.options.pretrained]


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Return a network's parameters for an optimizer, one group for each ``share`` of the learning rate.

    That is one group with a share of 1, unless parts of the network are pretrained.
    """
    shares = {
        id(weight): part.options.backbone_lr_scale
        for part in pretrained_parts(network)
        for weight in part.encoder.parameters()
    }
    groups: dict[float, list[nn.Parameter]] = {}
    for weight in network.parameters():
        groups.setdefault(shares.get(id(weight), 1.0), []).append(weight)
    return [{"params": weights, "share": share} for share, weights in groups.items()]
