"""The Network contract, and how to build one by name."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from unflip.nn import networks
from unflip.options import Options
from unflip.seeding import derive


class Network(nn.Module):
    """An encoder and a linear classifier on its features.

    A subclass has ``Options``, takes ``(options, input_shape, num_classes)``, sets ``head`` and defines
    :meth:`encode`. ``head.in_features`` is the number of features.
    """

    Options: ClassVar[type[Options]] = Options
    normalisation: ClassVar[tuple[float, float] | None] = None
    """Mean and deviation of bytes that images are normalised by; by default those that suit the data."""
    head: nn.Linear

    def encode(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to features (b, d)."""
        raise NotImplementedError(f"{type(self).__name__} does not define encode")

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
    """Networks of one kind side by side: each has its own inputs in a step, all learn in it."""

    def __init__(self, networks: Sequence[Network]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map the inputs of each member (m, b, ...) to its logits (m, b, k)."""
        return torch.stack([network(part) for network, part in zip(self.networks, inputs, strict=True)])

    def split(self) -> list[Network]:
        """Return the members as networks of their own, which may share the weights or have copies."""
        return list(self.networks)  # type: ignore[arg-type]

    def shorten_gradients(self, most: float) -> None:
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


def bare(network: nn.Module) -> Network:
    """Return a network without the wrappers for several processes or for precision."""
    while not isinstance(network, Network):
        network = network.module  # type: ignore[assignment]
    return network
