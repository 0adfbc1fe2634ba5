"""SENet-18: pre-activation residual blocks whose channels are gated (Hu et al. 2018)."""

from torch import nn

from unflip.nn.layers import SqueezeExcite
from unflip.nn.preact_resnet import PreActBlock, PreActResNet18

_REDUCTION = 16  # channels per hidden unit of the gate, the paper's choice


class SEBlock(PreActBlock):
    """A pre-activation block whose residual is gated per channel before it is added."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__(in_channels, out_channels, stride, dropout)
        self.residual.append(SqueezeExcite(out_channels, max(1, out_channels // _REDUCTION), nn.ReLU(inplace=True)))


class SENet18(PreActResNet18):
    """The pre-activation ResNet-18 with squeeze-and-excitation."""

    block = SEBlock
