"""Pieces that several image networks share."""

from collections.abc import Sequence

from torch import Tensor, nn

from unflip.errors import ConfigError


def image_channels(network: nn.Module, input_shape: Sequence[int]) -> int:
    """Return how many channels the images have; refuse examples that are no images."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"{type(network).__name__} takes images (channels, height, width), the examples have shape "
            f"{tuple(input_shape)}; try --network mlp"
        )
    return input_shape[0]


def conv_norm(inside: int, outside: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution that keeps the picture's size, up to the stride, and batch normalisation."""
    return [
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
    ]


def pool() -> list[nn.Module]:
    """The mean of every channel: (b, c, h, w) -> (b, c)."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


class SqueezeExcite(nn.Module):
    """Weigh every channel by a gate that looks at the means of all (Hu et al. 2018)."""

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
