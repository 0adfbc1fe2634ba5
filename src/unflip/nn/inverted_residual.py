"""MobileNetV2 and EfficientNet-B0 for 32x32 images: networks of inverted residuals.

- MobileNetV2: Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks".
- EfficientNet: the same with gated channels, Tan and Le 2019, "EfficientNet: Rethinking Model Scaling".

Both are the variants common for CIFAR. Features (b, d) are the means of the last layer over the image.
"""

from collections.abc import Iterator, Sequence

from pydantic import Field
from torch import Tensor, nn

from unflip.nn.base import Network, SqueezeExcite, conv_norm, image_channels, pool
from unflip.options import Options

_STEM = 32  # channels after the first convolution
_MOBILENET = (
    # expansion, channels, blocks, kernel, stride: the paper's Table 2, with stride 1 where 32 pixels are too few
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 1),
    (6, 32, 3, 3, 2),
    (6, 64, 4, 3, 2),
    (6, 96, 3, 3, 1),
    (6, 160, 3, 3, 2),
    (6, 320, 1, 3, 1),
)
_EFFICIENTNET = (
    # likewise, the paper's Table 1
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)


def _blocks(stages: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield input channels, output channels, expansion, kernel and stride of each block."""
    ins = _STEM
    for expansion, outs, count, kernel, stride in stages:
        for position in range(count):
            yield ins, outs, expansion, kernel, 1 if position else stride
            ins = outs


class InvertedResidual(nn.Module):
    """Expand, convolve depthwise, project; added to the input where the shape stays the same.

    - MobileNetV2 uses ReLU. Where only the number of channels changes, the input is projected and added as well; the
      paper adds nothing there.
    - EfficientNet (``drop`` is its drop-connect rate) uses SiLU, does not expand by 1, and gates the channels.
    """

    def __init__(
        self, ins: int, outs: int, expansion: int, kernel: int, stride: int, drop: float | None = None
    ) -> None:
        super().__init__()
        wide, efficient = ins * expansion, drop is not None
        activation = nn.SiLU if efficient else nn.ReLU
        self.adds = stride == 1 and (ins == outs or not efficient)
        self.residual = nn.Sequential(
            *([*conv_norm(ins, wide), activation(inplace=True)] if expansion > 1 or not efficient else []),
            *conv_norm(wide, wide, kernel, stride, groups=wide),
            activation(inplace=True),
            *([SqueezeExcite(wide, ins // 4, activation(inplace=True))] if efficient else []),
            *conv_norm(wide, outs),
            *([DropConnect(drop)] if drop is not None and self.adds else []),
        )
        self.shortcut = nn.Sequential(*(conv_norm(ins, outs) if self.adds and ins != outs else []))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (b, ins, h, w) to (b, outs, h / stride, w / stride)."""
        output: Tensor = self.residual(inputs)
        return output + self.shortcut(inputs) if self.adds else output


class MobileNetV2(Network):
    """A 3x3 convolution, seven stages of inverted residuals, a 1x1 convolution to 1280 channels, mean pooling, head."""

    def __init__(self, options: Options, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        stem = conv_norm(image_channels(self, input_shape), _STEM, 3)
        blocks = [InvertedResidual(*block) for block in _blocks(_MOBILENET)]
        last = conv_norm(_MOBILENET[-1][1], 1280)
        self.encoder = nn.Sequential(*stem, nn.ReLU(inplace=True), *blocks, *last, nn.ReLU(inplace=True), *pool())
        self.head = nn.Linear(1280, num_classes)


class EfficientNetOptions(Options):
    """Options of EfficientNet-B0."""

    dropout: float = Field(0.2, ge=0.0, lt=1.0)
    """Share of the features dropped before the head."""
    drop_connect: float = Field(0.2, ge=0.0, lt=1.0)
    """Drop rate of the last block's residual per example; it increases linearly from 0 at the first block."""


class DropConnect(nn.Module):
    """Stochastic depth: drop the residual of some examples, and rescale the others (Huang et al. 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs (b, c, h, w), in training with some examples set to zero."""
        if not self.training or not self.rate:
            return inputs
        keep = inputs.new_empty(len(inputs), 1, 1, 1).bernoulli_(1 - self.rate)
        return inputs * keep / (1 - self.rate)


class EfficientNetB0(Network):
    """A 3x3 convolution that keeps the size, seven stages, mean pooling, dropout, head.

    It has no last 1x1 convolution to 1280 channels, hence 3.6 and not 5.3 million parameters.
    """

    Options = EfficientNetOptions

    def __init__(self, options: EfficientNetOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        stem = conv_norm(image_channels(self, input_shape), _STEM, 3)
        shapes = [*_blocks(_EFFICIENTNET)]
        drops = [options.drop_connect * place / len(shapes) for place in range(len(shapes))]
        blocks = [InvertedResidual(*shape, drop) for shape, drop in zip(shapes, drops, strict=True)]
        self.encoder = nn.Sequential(*stem, nn.SiLU(inplace=True), *blocks, *pool(), nn.Dropout(options.dropout))
        self.head = nn.Linear(_EFFICIENTNET[-1][1], num_classes)
