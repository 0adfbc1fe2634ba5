"""Mixup: learn from mixtures of two examples and of their targets (Zhang et al. 2018)."""

import numpy as np
import torch
from torch import Tensor


def mix(
    inputs: Tensor, targets: Tensor, alpha: float, generator: torch.Generator, dim: int = 0
) -> tuple[Tensor, Tensor]:
    """Mix each example with another one, both inputs and targets; examples lie along ``dim``.

    All share one weight ``l = max(l, 1 - l), l ~ Beta(alpha, alpha)``, so each stays closer to itself (MixMatch,
    Berthelot et al. 2019, equations 8 to 11).
    """
    seed = int(torch.randint(2**62, (), generator=generator))  # torch cannot draw a Beta from a given generator
    draw = float(np.random.default_rng(seed).beta(alpha, alpha))
    other = torch.randperm(inputs.shape[dim], generator=generator).to(inputs.device)
    weight = max(draw, 1 - draw)
    mixed, mixed_targets = (part.index_select(dim, other).lerp_(part, weight) for part in (inputs, targets))
    return mixed, mixed_targets
