"""MobileNetV2 (Sandler et al. 2018) for 32x32 images."""

from pydantic import Field
from torch import Tensor, nn

from unflip.nn.base import Network, conv_norm, image_channels, pool, scaled
from unflip.options import Options

_STAGES = (
    # expansion, channels, blocks, stride; the paper's Table 2 with stride 1 where 32 pixels are too few to halve
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2Options(Options):
    """Options of MobileNetV2."""

    width: float = Field(1.0, gt=0.0, le=4.0)
    """Factor for the channels of every stage, which are rounded to multiples of 8."""


class InvertedResidual(nn.Module):
    """Expand, convolve depthwise, project; added to the input wherever the image keeps its size.

    As in the variant common for CIFAR, the input is projected where the number of channels changes; the paper adds
    nothing there.
    """

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = in_channels * expansion
        self.residual = nn.Sequential(
            *conv_norm(in_channels, wide),
            nn.ReLU(inplace=True),
            *conv_norm(wide, wide, 3, stride, groups=wide),
            nn.ReLU(inplace=True),
            *conv_norm(wide, out_channels),
        )
        self.adds = stride == 1
        self.shortcut = nn.Sequential(
            *(conv_norm(in_channels, out_channels) if self.adds and in_channels != out_channels else [])
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (b, in_channels, h, w) to (b, out_channels, h / stride, w / stride)."""
        output: Tensor = self.residual(inputs)
        return output + self.shortcut(inputs) if self.adds else output


class MobileNetV2(Network):
    """A 3x3 convolution, seven stages of inverted residuals, a 1x1 convolution to 1280 channels, mean pooling, head."""

    Options = MobileNetV2Options

    def __init__(self, options: MobileNetV2Options, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        in_channels, last = scaled(32, options.width), scaled(1280, max(1.0, options.width))
        layers = [*conv_norm(image_channels(self, input_shape), in_channels, 3), nn.ReLU(inplace=True)]
        for expansion, channels, count, stride in _STAGES:
            out_channels = scaled(channels, options.width)
            for position in range(count):
                layers.append(InvertedResidual(in_channels, out_channels, expansion, 1 if position else stride))
                in_channels = out_channels
        layers += [*conv_norm(in_channels, last), nn.ReLU(inplace=True), *pool()]
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear(last, num_classes)
