"""EfficientNet-B0 (Tan and Le 2019) for 32x32 images."""

from math import ceil

from pydantic import Field
from torch import Tensor, nn

from unflip.nn.base import Network
from unflip.nn.layers import SqueezeExcite, conv_norm, image_channels, pool, scaled
from unflip.options import Options

_STAGES = (
    # expansion, channels, blocks, kernel, stride: the paper's Table 1
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)


class EfficientNetOptions(Options):
    """Options of EfficientNet; width and depth are the paper's compound scaling."""

    width: float = Field(1.0, gt=0.0, le=4.0)
    """Factor for the channels of every stage, which are rounded to multiples of 8."""
    depth: float = Field(1.0, gt=0.0, le=4.0)
    """Factor for the number of blocks of every stage, rounded up."""
    dropout: float = Field(0.2, ge=0.0, lt=1.0)
    """Share of the features dropped before the head."""
    drop_connect: float = Field(0.2, ge=0.0, lt=1.0)
    """Share of examples that skip the residual of the last block; it grows linearly from 0 at the first block."""


class DropConnect(nn.Module):
    """Drop the residual for some examples, and scale it up for the others (Huang et al. 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs (b, c, h, w), with some of the b set to zero while training."""
        if not self.training or not self.rate:
            return inputs
        keep = inputs.new_empty(len(inputs), 1, 1, 1).bernoulli_(1 - self.rate)
        return inputs * keep / (1 - self.rate)


class MBConv(nn.Module):
    """Expand, convolve depthwise, gate, project; added to the input where the shape stays the same.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        expansion: factor from the input's channels to those in between.
        kernel: side of the depthwise convolution.
        stride: of the depthwise convolution.
        drop: share of examples that skip the residual while training.
    """

    def __init__(
        self, in_channels: int, out_channels: int, expansion: int, kernel: int, stride: int, drop: float
    ) -> None:
        super().__init__()
        wide = in_channels * expansion
        self.residual = nn.Sequential(
            *([*conv_norm(in_channels, wide), nn.SiLU(inplace=True)] if expansion > 1 else []),
            *conv_norm(wide, wide, kernel, stride, groups=wide),
            nn.SiLU(inplace=True),
            SqueezeExcite(wide, max(1, in_channels // 4), nn.SiLU(inplace=True)),
            *conv_norm(wide, out_channels),
        )
        self.adds = stride == 1 and in_channels == out_channels
        self.drop = DropConnect(drop)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (b, in_channels, h, w) to (b, out_channels, h / stride, w / stride)."""
        output: Tensor = self.residual(inputs)
        return inputs + self.drop(output) if self.adds else output


class EfficientNetB0(Network):
    """A 3x3 convolution that keeps the size, seven stages, mean pooling, dropout, head.

    The variant common for CIFAR: without the last 1x1 convolution to 1280 channels, hence 3.6 and not 5.3 million
    parameters.
    """

    Options = EfficientNetOptions

    def __init__(self, options: EfficientNetOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        in_channels = scaled(32, options.width)
        layers = [*conv_norm(image_channels(self, input_shape), in_channels, 3), nn.SiLU(inplace=True)]
        counts = [ceil(count * options.depth) for _, _, count, _, _ in _STAGES]
        built = 0
        for (expansion, channels, _, kernel, stride), count in zip(_STAGES, counts, strict=True):
            out_channels = scaled(channels, options.width)
            for position in range(count):
                drop = options.drop_connect * built / sum(counts)
                layers.append(MBConv(in_channels, out_channels, expansion, kernel, 1 if position else stride, drop))
                in_channels, built = out_channels, built + 1
        layers += [*pool(), nn.Dropout(options.dropout)]
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear(in_channels, num_classes)

    def encode(self, inputs: Tensor) -> Tensor:
        """Map images (b, c, h, w) to the means of the last stage's output (b, 320)."""
        features: Tensor = self.encoder(inputs)
        return features
