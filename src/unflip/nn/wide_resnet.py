"""Wide residual networks (Zagoruyko and Komodakis 2016): pre-activation blocks, fewer layers, more channels."""

from pydantic import Field, PositiveInt, field_validator
from torch import Tensor, nn

from unflip.nn.base import Network
from unflip.nn.layers import image_channels
from unflip.nn.preact_resnet import residual_encoder
from unflip.options import Options


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
        blocks = [(options.depth - 4) // 6] * 3
        channels = image_channels(self, input_shape)
        self.encoder, width = residual_encoder(
            channels, blocks, stem=16, width=16 * options.width, dropout=options.dropout
        )
        self.head = nn.Linear(width, num_classes)

    def encode(self, inputs: Tensor) -> Tensor:
        """Map images (b, c, h, w) to the means of the last activation (b, 64 * width)."""
        features: Tensor = self.encoder(inputs)
        return features
