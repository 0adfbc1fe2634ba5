"""RandAugment (Cubuk et al. 2020): strong augmentation, in which each image passes through two random operations."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unflip.compute import repair_torchvision
from unflip.errors import ConfigError, MissingExtraError

_ROUNDS = 2  # N in the paper
_MAGNITUDE = 0.3  # M = 9 of 30
_CHANNELS = (1, 3)

Operation = Callable[[Tensor], Tensor]


class RandAugment:
    """Transforms batches of images (n, c, h, w) of bytes on their own device.

    In each of two rounds an image draws one of 14 operations, each equally likely, at magnitude 9 of 30; those with a
    direction draw it, too. Images that drew the same one are transformed together, by torchvision. All draws come from
    the caller's generator.

    Args:
        shape: (c, h, w), of one or three channels.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        if shape[0] not in _CHANNELS:
            raise ConfigError(f"data.augment = 'randaugment': images have {shape[0]} channels; it takes 1 or 3")
        self._operations = _operations(_functional(), *shape[1:])

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return transformed images."""
        for _ in range(_ROUNDS):
            drawn = torch.randint(len(self._operations), (len(images),), generator=generator)
            images = images.clone()
            for number in drawn.unique().tolist():
                rows = (drawn == number).nonzero()[:, 0].to(images.device)
                images.index_copy_(0, rows, self._operations[number](images.index_select(0, rows)))
        return images


def _functional() -> Any:
    """Import torchvision's operations on tensors."""
    repair_torchvision()
    try:
        return importlib.import_module("torchvision.transforms.v2.functional")
    except ImportError as error:
        raise MissingExtraError("torchvision", "timm") from error


def _operations(functional: Any, height: int, width: int) -> list[Operation]:
    """Return the operations, each twice: in both directions where it has one."""
    size, strength = _MAGNITUDE, 0.9 * _MAGNITUDE

    def affine(shift: tuple[float, float] = (0, 0), shear: tuple[float, float] = (0, 0)) -> Operation:
        moved, slanted = [round(value) for value in shift], [math.degrees(math.atan(value)) for value in shear]
        return lambda images: functional.affine(images, angle=0.0, translate=moved, scale=1.0, shear=slanted)

    def signed(sign: int) -> list[Operation]:
        slant, far = sign * 0.3 * size, sign * 150 / 331 * size
        return [
            affine(shear=(slant, 0)),
            affine(shear=(0, slant)),
            affine(shift=(far * width, 0)),
            affine(shift=(0, far * height)),
            lambda images: functional.rotate(images, sign * 30 * size),
            lambda images: functional.adjust_brightness(images, 1 + sign * strength),
            lambda images: functional.adjust_saturation(images, 1 + sign * strength),
            lambda images: functional.adjust_contrast(images, 1 + sign * strength),
            lambda images: functional.adjust_sharpness(images, 1 + sign * strength),
        ]

    plain: list[Operation] = [
        lambda images: images,
        lambda images: functional.posterize(images, 8 - round(4 * size)),
        lambda images: functional.solarize(images, 255 * (1 - size)),
        functional.autocontrast,
        functional.equalize,
    ]
    return [*signed(1), *signed(-1), *plain, *plain]
