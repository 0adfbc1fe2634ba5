"""Layers that several image networks share."""

from collections.abc import Sequence

from torch import Tensor, nn

from unflip.errors import ConfigError


def image_channels(network: nn.Module, input_shape: Sequence[int]) -> int:
    """Return how many channels the images have; refuse examples that are not images."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"{type(network).__name__} takes images (channels, height, width), the examples have shape "
            f"{tuple(input_shape)}; try --network mlp"
        )
    return input_shape[0]


def conv_norm(
    in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Return a convolution that keeps the size of images, up to the stride, and batch normalisation.

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
