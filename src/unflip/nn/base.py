"""Base class of networks, building a network by name, and layers that image networks share."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from unflip.errors import ConfigError
from unflip.nn import networks
from unflip.options import Options
from unflip.seeding import derive


class Network(nn.Module):
    """An encoder and a linear head.

    A subclass has ``Options``, is constructed as ``(options, input_shape, num_classes)`` and sets ``encoder`` and
    ``head``. It overrides :meth:`encode` if that is more than calling the encoder. ``head.in_features`` is the number
    of features.
    """

    Options: ClassVar[type[Options]] = Options
    normalization: ClassVar[tuple[float, float] | None] = None
    """Mean and standard deviation, in [0, 255], that images are normalized by; by default those of the data."""
    encoder: nn.Module
    head: nn.Linear

    def encode(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to features (b, d)."""
        features: Tensor = self.encoder(inputs)
        return features

    def load_first_weights(self) -> None:
        """Load pretrained weights, if any; called when a network is built for training."""

    @classmethod
    def side_by_side(cls, networks: Sequence["Network"]) -> "Members":
        """Return a module that trains networks of this class together; a subclass may have a faster one."""
        return Members(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to logits (b, k)."""
        logits: Tensor = self.head(self.encode(inputs))
        return logits


class Members(Network):
    """Networks of one class and shape that are trained together, each on its own inputs."""

    def __init__(self, networks: Sequence[Network]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map the inputs of each member (m, b, ...) to its logits (m, b, k)."""
        return torch.stack([network(part) for network, part in zip(self.networks, inputs, strict=True)])

    def split(self) -> list[Network]:
        """Return the members as separate networks; weights may be shared or copied."""
        return list(self.networks)  # type: ignore[arg-type]

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the gradient norm of each member."""
        for network in self.networks:
            nn.utils.clip_grad_norm_(network.parameters(), max_norm)


def build_network(
    name: str, options: Options, input_shape: Sequence[int], num_classes: int, seed: int, *, fresh: bool = True
) -> Network:
    """Build a registered network; its convolutions run channels-last.

    Args:
        name: of the network, as registered.
        options: of the network's own type.
        input_shape: the shape of one example.
        num_classes: the number of logits.
        seed: of the initial weights.
        fresh: whether to load pretrained weights; not needed if all weights are replaced afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: Network = networks.load(name)(options, tuple(input_shape), num_classes)
        if fresh:
            network.load_first_weights()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def initial_seed(seed: int, position: int) -> int:
    """Return the seed of the initial weights of a run's network number ``position``."""
    return derive(seed, "network", position)


def unwrap(network: nn.Module) -> Network:
    """Return a network without wrappers for distributed training and mixed precision.

    Calls of it compute in float32 and do not reduce gradients across processes.
    """
    while not isinstance(network, Network):
        network = network.module  # type: ignore[assignment]
    return network


def image_channels(network: nn.Module, input_shape: Sequence[int]) -> int:
    """Return the number of channels; raise ConfigError if examples are not images (channels, height, width)."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"{type(network).__name__} takes images (c, h, w), not examples of shape {tuple(input_shape)}; try "
            "--network mlp"
        )
    return input_shape[0]


def conv_norm(
    in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Return a convolution with padding and without bias, and batch normalization."""
    return [
        nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
    ]


def pool() -> list[nn.Module]:
    """Return global average pooling: (b, c, h, w) -> (b, c)."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation: scale channels by gates computed from their means (Hu et al. 2018)."""

    def __init__(self, channels: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, hidden, 1),
            activation,
            nn.Conv2d(hidden, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs (b, c, h, w) times their gates (b, c, 1, 1)."""
        gates: Tensor = self.gate(inputs)
        return inputs * gates


def scaled(channels: int, factor: float) -> int:
    """Return ``channels * factor`` as a multiple of 8 that is at most a tenth below it (Tan and Le 2019).

    >>> scaled(32, 1.0), scaled(24, 0.5), scaled(20, 0.5)
    (32, 16, 16)
    """
    exact = channels * factor
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * exact else rounded + 8
