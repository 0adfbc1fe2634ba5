"""The network contract, how to build a network by its name, and layers that several image networks share."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from unflip.errors import ConfigError
from unflip.nn import networks
from unflip.options import Options
from unflip.seeding import derive


class Network(nn.Module):
    """An encoder and a linear classifier on its features.

    A subclass has ``Options``, takes ``(options, input_shape, num_classes)`` and sets ``encoder`` and ``head``. It
    defines :meth:`encode` if that is more than calling the encoder. ``head.in_features`` is the number of features.
    """

    Options: ClassVar[type[Options]] = Options
    normalization: ClassVar[tuple[float, float] | None] = None
    """Mean and deviation of bytes that images are normalized by; by default those that suit the data."""
    encoder: nn.Module
    head: nn.Linear

    def encode(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to features (b, d)."""
        features: Tensor = self.encoder(inputs)
        return features

    def load_first_weights(self) -> None:
        """Load pretrained weights, if any are wanted; called when training builds the network."""

    @classmethod
    def side_by_side(cls, networks: Sequence["Network"]) -> "Members":
        """Return networks of this kind as one module that trains them together; a kind may have a faster one."""
        return Members(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to logits (b, k)."""
        logits: Tensor = self.head(self.encode(inputs))
        return logits


class Members(Network):
    """Networks of one kind side by side: each has its own inputs in a step, all learn in it.

    Args:
        networks: of one class and shape; they are trained by one optimizer.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map the inputs of each member (m, b, ...) to its logits (m, b, k)."""
        return torch.stack([network(part) for network, part in zip(self.networks, inputs, strict=True)])

    def split(self) -> list[Network]:
        """Return the members as networks of their own, which may share the weights or have copies."""
        return list(self.networks)  # type: ignore[arg-type]

    def clip_grad_norm(self, most: float) -> None:
        """Scale each member's gradient down to the norm ``most``, if it is longer."""
        for network in self.networks:
            nn.utils.clip_grad_norm_(network.parameters(), most)


def build_network(
    name: str, options: Options, input_shape: Sequence[int], num_classes: int, seed: int, *, fresh: bool = True
) -> Network:
    """Build a registered network; its convolutions run channels-last.

    Args:
        name: of the network, as registered.
        options: of the network's own type.
        input_shape: the shape of one example.
        num_classes: the number of logits.
        seed: what the initial weights depend on, and nothing else.
        fresh: whether to load pretrained weights; not needed if the caller is about to replace all weights.
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
    """Return a network without the wrappers for several processes or for precision.

    What goes through it computes in float32 and reduces no gradients across processes.
    """
    while not isinstance(network, Network):
        network = network.module  # type: ignore[assignment]
    return network


def image_channels(network: nn.Module, input_shape: Sequence[int]) -> int:
    """Return how many channels the images have; refuse examples that are not images.

    Args:
        network: named in the error.
        input_shape: the shape of one example, (channels, height, width).
    """
    if len(input_shape) != 3:
        raise ConfigError(
            f"{type(network).__name__} takes images (channels, height, width), the examples have shape "
            f"{tuple(input_shape)}; try --network mlp"
        )
    return input_shape[0]


def conv_norm(
    in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Return a convolution that keeps the size of images, up to the stride, and batch normalization.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel: side of the convolution.
        stride: of the convolution.
        groups: of channels that are convolved separately.
    """
    return [
        nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
    ]


def pool() -> list[nn.Module]:
    """Return layers that average every channel: (b, c, h, w) -> (b, c)."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


class SqueezeExcite(nn.Module):
    """Scale every channel by a gate that depends on the means of all channels (Hu et al. 2018)."""

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
    wanted = channels * factor
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8
