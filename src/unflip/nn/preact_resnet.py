"""Pre-activation residual networks for 32x32 images (He et al. 2016, "Identity Mappings in Deep Residual Networks")."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.nn.base import Network
from unflip.nn.layers import image_channels, pool
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
        kept = inputs if self.shortcut is None else self.shortcut(active)
        output: Tensor = self.residual(active) + kept
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
        self.encoder, width = residual_encoder(
            channels, options.blocks, stem=options.width, width=options.width, block=self.block
        )
        self.head = nn.Linear(width, num_classes)

    def encode(self, inputs: Tensor) -> Tensor:
        """Map images (b, c, h, w) to the means of the last activation (b, d)."""
        features: Tensor = self.encoder(inputs)
        return features


class PreActResNet8(PreActResNet18):
    """Three stages of one block: small enough for a CPU."""

    Options = PreAct8Options


class PreActResNet34(PreActResNet18):
    """The network of the paper's CIFAR experiments."""

    Options = PreAct34Options
