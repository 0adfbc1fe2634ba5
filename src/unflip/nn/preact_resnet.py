"""Residual networks for 32x32 images, all of pre-activation blocks.

- PreAct ResNet: He et al. 2016, "Identity Mappings in Deep Residual Networks".
- SENet: the same with gated channels, Hu et al. 2018, "Squeeze-and-Excitation Networks".
- Wide ResNet: fewer layers, more channels, Zagoruyko and Komodakis 2016.

Features (b, d) are the means of the last activation over the image.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, PositiveInt, field_validator
from torch import Tensor, nn

from unflip.nn.base import Network, SqueezeExcite, image_channels, pool
from unflip.options import Options


class PreActOptions(Options):
    """Options of a pre-activation residual network."""

    blocks: tuple[PositiveInt, ...] = Field((2, 2, 2, 2), min_length=1)
    """Blocks of each stage; a block has two convolutions."""
    width: PositiveInt = 64
    """Channels of the first stage; each further stage has twice as many and halves the image."""


class PreAct8Options(PreActOptions):
    """Options of PreAct ResNet-8: 16, 32 and 64 channels."""

    blocks: tuple[PositiveInt, ...] = Field((1, 1, 1), min_length=1)
    width: PositiveInt = 16


class PreAct34Options(PreActOptions):
    """Options of PreAct ResNet-34."""

    blocks: tuple[PositiveInt, ...] = Field((3, 4, 6, 3), min_length=1)


class PreActBlock(nn.Module):
    """``x + conv(relu(bn(conv(relu(bn(x))))))``; where the shape changes, x is projected after its activation."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            *([nn.Dropout(dropout)] if dropout else []),
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


def residual_encoder(
    channels: int,
    blocks: Sequence[int],
    *,
    stem: int,
    width: int,
    block: type[PreActBlock] = PreActBlock,
    dropout: float = 0.0,
) -> tuple[nn.Sequential, int]:
    """Return the encoder (stem, stages, last activation and pooling) and its number of features.

    Args:
        channels: of the images.
        blocks: the number of blocks of each stage.
        stem: channels after the first convolution.
        width: channels of the first stage; each further stage has twice as many.
        block: the class of blocks.
        dropout: share of values dropped between the two convolutions of a block.
    """
    layers: list[nn.Module] = [nn.Conv2d(channels, stem, 3, 1, 1, bias=False)]
    in_channels = stem
    for stage, count in enumerate(blocks):
        for position in range(count):
            stride = 2 if stage and not position else 1
            layers.append(block(in_channels, width << stage, stride, dropout))
            in_channels = width << stage
    layers += [nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True), *pool()]
    return nn.Sequential(*layers), in_channels


class PreActResNet18(Network):
    """A 3x3 convolution without downsampling, stages of pre-activation blocks, batch norm, ReLU, mean pooling, head."""

    Options = PreActOptions
    block: ClassVar[type[PreActBlock]] = PreActBlock

    def __init__(self, options: PreActOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels = image_channels(self, input_shape)
        stem = width = options.width
        self.encoder, width = residual_encoder(channels, options.blocks, stem=stem, width=width, block=self.block)
        self.head = nn.Linear(width, num_classes)


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

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__(in_channels, out_channels, stride, dropout)
        self.residual.append(SqueezeExcite(out_channels, max(1, out_channels // 16), nn.ReLU(inplace=True)))


class SENet18(PreActResNet18):
    """The pre-activation ResNet-18 with squeeze-and-excitation."""

    block = SEBlock


class WideOptions(Options):
    """Options of a wide residual network WRN-depth-width."""

    depth: int = Field(40, ge=10)
    """Layers: 6n + 4, for three stages of n blocks."""
    width: PositiveInt = 2
    """Factor for the 16, 32 and 64 channels of the three stages."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of values dropped between the two convolutions of a block."""

    @field_validator("depth")
    @classmethod
    def _whole_blocks(cls, depth: int) -> int:
        if depth % 6 != 4:
            raise ValueError("6n + 4, such as 16, 28 or 40")
        return depth


class WideResNet(Network):
    """A stem of 16 channels, three stages, batch norm, ReLU, mean pooling, head."""

    Options = WideOptions

    def __init__(self, options: WideOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, blocks, width = image_channels(self, input_shape), [(options.depth - 4) // 6] * 3, 16 * options.width
        self.encoder, width = residual_encoder(channels, blocks, stem=16, width=width, dropout=options.dropout)
        self.head = nn.Linear(width, num_classes)
