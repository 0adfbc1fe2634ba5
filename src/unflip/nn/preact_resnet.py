"""Residual networks for 32x32 images, all of pre-activation blocks.

- PreAct ResNet: He et al. 2016, "Identity Mappings in Deep Residual Networks".
- SENet: the same with gated channels, Hu et al. 2018, "Squeeze-and-Excitation Networks".
- Wide ResNet: fewer layers, more channels, Zagoruyko and Komodakis 2016.

Features (b, d) are the means of the last activation over the image.
"""

from typing import ClassVar

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.nn.base import Network, SqueezeExcite, conv_norm, image_channels, pool
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
    """Blocks of each stage; a block has two convolutions."""
    width: PositiveInt = 16
    """Channels of the first stage; each further stage has twice as many and halves the image."""


class PreAct34Options(PreActOptions):
    """Options of PreAct ResNet-34."""

    blocks: tuple[PositiveInt, ...] = Field((3, 4, 6, 3), min_length=1)
    """Blocks of each stage; a block has two convolutions."""


class WideOptions(PreActOptions):
    """Options of WRN-40-2: three stages with twice 16, 32 and 64 channels, and 6n + 4 = 40 layers."""

    blocks: tuple[PositiveInt, ...] = Field((6, 6, 6), min_length=1)
    """Blocks of each stage; a block has two convolutions."""
    width: PositiveInt = 32
    """Channels of the first stage; each further stage has twice as many and halves the image."""


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
