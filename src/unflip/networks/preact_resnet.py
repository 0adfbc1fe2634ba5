"""Pre-activation residual networks for 32x32 images (He et al. 2016, "Identity Mappings in Deep Residual Networks")."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.networks.base import Network
from unflip.networks.layers import image_channels, pool
from unflip.options import Options


class PreActOptions(Options):
    """Options of a pre-activation residual network."""

    blocks: tuple[PositiveInt, ...] = Field((2, 2, 2, 2), min_length=1)
    """Blocks of each stage; two convolutions a block."""
    width: PositiveInt = 64
    """Channels of the first stage; each further stage has twice as many and halves the picture."""


class PreAct8Options(PreActOptions):
    """Options of the small one: 16-32-64 channels."""

    blocks: tuple[PositiveInt, ...] = Field((1, 1, 1), min_length=1)
    width: PositiveInt = 16


class PreAct34Options(PreActOptions):
    """Options of the deep one."""

    blocks: tuple[PositiveInt, ...] = Field((3, 4, 6, 3), min_length=1)


class PreActBlock(nn.Module):
    """``x + conv(relu(bn(conv(relu(bn(x))))))``; where the shape changes, x is projected after its activation."""

    def __init__(self, inside: int, outside: int, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(inside), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            *([nn.Dropout(dropout)] if dropout else []),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
        )
        same = stride == 1 and inside == outside
        self.shortcut = None if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (b, inside, h, w) to (b, outside, h / stride, w / stride)."""
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
    """Return stem, stages, last activation and pooling, and the number of features."""
    layers: list[nn.Module] = [nn.Conv2d(channels, stem, 3, 1, 1, bias=False)]
    inside = stem
    for stage, count in enumerate(blocks):
        for position in range(count):
            stride = 2 if stage and not position else 1
            layers.append(block(inside, width << stage, stride, dropout))
            inside = width << stage
    layers += [nn.BatchNorm2d(inside), nn.ReLU(inplace=True), *pool()]
    return nn.Sequential(*layers), inside


class PreActResNet18(Network):
    """A 3x3 convolution, stages of pre-activation blocks, batch norm, ReLU, mean, head; no early down-sampling."""

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
    """Three stages of one block: small enough for a processor."""

    Options = PreAct8Options


class PreActResNet34(PreActResNet18):
    """The network of the paper's CIFAR experiments."""

    Options = PreAct34Options
