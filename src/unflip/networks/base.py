"""The Network contract, and how to build one by name."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from unflip.networks import networks
from unflip.options import Options
from unflip.seeding import derive


class Network(nn.Module):
    """An encoder and a linear classifier on its features.

    A subclass has ``Options``, takes ``(options, input_shape, num_classes)``, sets ``head`` and defines
    :meth:`encode`. ``head.in_features`` is the number of features.
    """

    Options: ClassVar[type[Options]] = Options
    head: nn.Linear

    def encode(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to features (b, d)."""
        raise NotImplementedError(f"{type(self).__name__} does not define encode")

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to logits (b, k)."""
        logits: Tensor = self.head(self.encode(inputs))
        return logits


def build_network(name: str, options: Options, input_shape: Sequence[int], num_classes: int, seed: int) -> Network:
    """Build a registered network whose first weights depend on ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: Network = networks.load(name)(options, tuple(input_shape), num_classes)
    return network


def initial_seed(seed: int, position: int) -> int:
    """Return the seed of the first weights of a run's network number ``position``."""
    return derive(seed, "network", position)
