"""Networks for 32x32 images, of residual blocks.

- PreAct ResNet: He et al. 2016, "Identity Mappings in Deep Residual Networks".
- SENet: the same with gated channels, Hu et al. 2018, "Squeeze-and-Excitation Networks".
- Wide ResNet: fewer layers, more channels, Zagoruyko and Komodakis 2016.
- MobileNetV2: Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks".
- EfficientNet: the same with gated channels, Tan and Le 2019, "EfficientNet: Rethinking Model Scaling".

The last two are the variants common for CIFAR. Features (b, d) are the means of the last activation over the image.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.nn.base import Network, image_channels
from unflip.options import Options

_STEM = 32  # channels after the first convolution
_DROP = 0.2  # drop rates of EfficientNet
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


def conv_norm(ins: int, outs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution from ``ins`` to ``outs`` channels, padded and without bias, and batch normalization."""
    convolution = nn.Conv2d(ins, outs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outs)]


def pool() -> list[nn.Module]:
    """Return global average pooling: (b, c, h, w) -> (b, c)."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation: scale channels by gates computed from their means (Hu et al. 2018)."""

    def __init__(self, channels: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        squeeze, excite = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), squeeze, activation, excite, nn.Sigmoid())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs (b, c, h, w) times their gates (b, c, 1, 1)."""
        gates: Tensor = self.gate(inputs)
        return inputs * gates


class PreActOptions(Options):
    """Options of a pre-activation residual network."""

    blocks: tuple[PositiveInt, ...] = Field((2, 2, 2, 2), min_length=1)
    """Number of blocks in each stage; a block has two convolutions."""
    width: PositiveInt = 64
    """Number of channels in the first stage; each later stage doubles it and halves the image size."""


class PreAct8Options(PreActOptions):
    """Options of PreAct ResNet-8: 16, 32 and 64 channels."""

    blocks: tuple[PositiveInt, ...] = Field((1, 1, 1), min_length=1)
    """Number of blocks in each stage; a block has two convolutions."""
    width: PositiveInt = 16
    """Number of channels in the first stage; each later stage doubles it and halves the image size."""


class PreAct34Options(PreActOptions):
    """Options of PreAct ResNet-34."""

    blocks: tuple[PositiveInt, ...] = Field((3, 4, 6, 3), min_length=1)
    """Number of blocks in each stage; a block has two convolutions."""


class WideOptions(PreActOptions):
    """Options of WRN-40-2: three stages with twice 16, 32 and 64 channels, and 6n + 4 = 40 layers."""

    blocks: tuple[PositiveInt, ...] = Field((6, 6, 6), min_length=1)
    """Number of blocks in each stage; a block has two convolutions."""
    width: PositiveInt = 32
    """Number of channels in the first stage; each later stage doubles it and halves the image size."""


class PreActBlock(nn.Module):
    """``x + conv(relu(bn(conv(relu(bn(x))))))``; where the shape changes, x is projected after its activation."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            *conv_norm(in_channels, out_channels, 3, stride),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False),
        )
        same = stride == 1 and in_channels == out_channels
        self.shortcut = None if same else nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (b, in_channels, h, w) to (b, out_channels, h / stride, w / stride)."""
        active = self.activation(inputs)
        shortcut = inputs if self.shortcut is None else self.shortcut(active)
        output: Tensor = self.residual(active) + shortcut
        return output


class PreActResNet18(Network):
    """A 3x3 convolution without downsampling, stages of pre-activation blocks, batch norm, ReLU, mean pooling, head."""

    Options = PreActOptions
    block: ClassVar[type[PreActBlock]] = PreActBlock
    stem: ClassVar[int | None] = None
    """Channels after the first convolution; by default those of the first stage."""

    def __init__(self, options: PreActOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels = self.stem or options.width
        layers: list[nn.Module] = [nn.Conv2d(image_channels(self, input_shape), channels, 3, 1, 1, bias=False)]
        for stage, count in enumerate(options.blocks):
            for position in range(count):
                stride = 2 if stage and not position else 1
                layers.append(self.block(channels, options.width << stage, stride))
                channels = options.width << stage
        self.encoder = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(inplace=True), *pool())
        self.head = nn.Linear(channels, num_classes)


class PreActResNet8(PreActResNet18):
    """Three stages of one block: small enough for a CPU."""

    Options = PreAct8Options


class PreActResNet34(PreActResNet18):
    """The network of the paper's CIFAR experiments."""

    Options = PreAct34Options


class SEBlock(PreActBlock):
    """A pre-activation block whose residual is gated per channel before it is added.

    The gate has one hidden unit for 16 channels, as in the paper.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, stride)
        self.residual.append(SqueezeExcite(out_channels, max(1, out_channels // 16), nn.ReLU(inplace=True)))


class SENet18(PreActResNet18):
    """The pre-activation ResNet-18 with squeeze-and-excitation."""

    block = SEBlock


class WideResNet(PreActResNet18):
    """WRN-40-2: a stem of 16 channels and three wide stages."""

    Options = WideOptions
    stem = 16


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


class DropConnect(nn.Module):
    """Stochastic depth: drop the residual of some examples, and rescale the others (Huang et al. 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs (b, c, h, w), in training with some examples set to zero."""
        return inputs * F.dropout(inputs.new_ones(len(inputs), 1, 1, 1), self.rate) if self.training else inputs


class EfficientNetB0(Network):
    """A 3x3 convolution that keeps the size, seven stages, mean pooling, dropout, head.

    It has no last 1x1 convolution to 1280 channels, hence 3.6 and not 5.3 million parameters. The drop rate of
    residuals increases linearly from 0 at the first block.
    """

    def __init__(self, options: Options, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        stem = conv_norm(image_channels(self, input_shape), _STEM, 3)
        shapes = [*_blocks(_EFFICIENTNET)]
        drops = [_DROP * place / len(shapes) for place in range(len(shapes))]
        blocks = [InvertedResidual(*shape, drop) for shape, drop in zip(shapes, drops, strict=True)]
        self.encoder = nn.Sequential(*stem, nn.SiLU(inplace=True), *blocks, *pool(), nn.Dropout(_DROP))
        self.head = nn.Linear(_EFFICIENTNET[-1][1], num_classes)
