"""Backbone: a pretrained network that turns images into features, its weights, and the images it expects."""

import pickle
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unflip.errors import InputError

Triple = tuple[float, float, float]
_WANTED = "give a .safetensors file, or what torch.save(network.state_dict(), FILE) wrote"
_NO_PICKLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    struct.error,
)
"""What torch raises for arbitrary bytes, besides its own errors."""


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier, ready for use: images (b, 3, h, w), normalised, to features (b, d)."""

    encode: Callable[[Tensor], Tensor]
    network: nn.Module
    """The module behind ``encode``."""
    mean: Triple
    """Per channel, in units of bytes; images are fed as ``(x - mean) / std``."""
    std: Triple
    size: int
    """Side of the images that it was trained with, in pixels."""
    fixed_size: bool = False
    """Whether it takes no other size."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file or one that torch.save wrote; no code in it is executed."""
    try:
        path.open("rb").close()  # neither library says what is wrong with a path
        with warnings.catch_warnings(action="ignore"):  # torch's, about pickles and archives, which we refuse anyway
            return load_file(path) if path.suffix.lower() == ".safetensors" else _named_tensors(path)
    except OSError as error:
        raise InputError(f"weights {path}: {error.strerror or 'not a readable file'}") from error
    except SafetensorError as error:
        raise InputError(f"weights {path}: not a plain file of weights ({error})") from error
    except (pickle.UnpicklingError, RuntimeError) as error:  # torch's message advises to run what is in the file
        raise InputError(
            f"weights {path}: not a plain file of weights: damaged, or it holds more than tensors, which could run "
            f"code; {_WANTED}"
        ) from error
    except _NO_PICKLE as error:
        raise InputError(f"weights {path}: neither a .safetensors file nor written by torch.save; {_WANTED}") from error


def _named_tensors(path: Path) -> dict[str, Tensor]:
    """Read a state_dict that torch.save wrote, alone or in a training checkpoint."""
    content: Any = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, dict):  # somebody may have saved a lone tensor
        for key in ("state_dict", "model"):  # where training checkpoints keep them
            content = content[key] if isinstance(content.get(key), dict) else content
        if content and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()):
            return dict(content)
    raise InputError(f"weights {path}: holds no named tensors; give the state_dict of a network")


def fill(network: nn.Module, weights: dict[str, Tensor], what: str, *, besides: tuple[str, ...] = ()) -> None:
    """Load all weights of a network; names that it does not have must begin with one of ``besides``."""
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
