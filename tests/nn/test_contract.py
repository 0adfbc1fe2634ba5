"""What every registered network keeps: the contract, its size, and what it says to inputs that are no images."""

import pytest
import torch
from torch import nn

from unflip.errors import ConfigError
from unflip.nn import networks
from unflip.nn.base import Network, build_network

NAMES = [entry.name for entry in networks if not entry.family]
IMAGE_NETWORKS = [name for name in NAMES if name != "mlp"]
SHAPE = (3, 32, 32)


def build(name: str, shape: tuple[int, ...] = SHAPE, num_classes: int = 10, **options: object) -> Network:
    return build_network(name, networks.load(name).Options(**options), shape, num_classes, seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_head_of_the_features(name: str) -> None:
    network = build(name, num_classes=7).eval()
    assert isinstance(network, networks.load(name))
    inputs = torch.randn(3, *SHAPE)
    features = network.encode(inputs)
    assert features.shape == (3, network.head.in_features)
    assert network.head.out_features == 7
    torch.testing.assert_close(network(inputs), network.head(features))


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns_and_the_inputs_stay_as_they_are(name: str) -> None:
    network = build(name)
    inputs = torch.randn(4, *SHAPE)
    kept = inputs.clone()
    network(inputs).square().sum().backward()  # one that got no gradient would stop several processes
    assert [key for key, weight in network.named_parameters() if weight.grad is None] == []
    assert torch.equal(inputs, kept)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 40, 24)])
def test_channels_and_size_of_the_images_are_free(name: str, shape: tuple[int, ...]) -> None:
    assert build(name, shape).eval()(torch.randn(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_what_is_no_image_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"takes images \(c, h, w\), not examples of shape \(6,\)"):
        build(name, (6,))


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_convolutions_run_channels_last_whatever_the_inputs_are(name: str) -> None:
    network = build(name)
    layouts = []
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(
                lambda _, inputs, output: layouts.append(output.is_contiguous(memory_format=torch.channels_last))
            )
    network(torch.randn(2, *SHAPE))
    assert layouts
    assert all(layouts)


# 10 classes, 3 channels. WRN-40-2 and MobileNetV2 are to the unit those of the usual implementations
# (xternalz/WideResNet-pytorch, kuangliu/pytorch-cifar); the others differ from kuangliu's by batch norms: ours have
# the last activation of He et al. 2016, and no unused layer in EfficientNet's first block.
@pytest.mark.parametrize(
    ("name", "millions", "exactly"),
    [
        ("preact_resnet18", 11.17, 11_171_146 + 2 * 512),
        ("preact_resnet34", 21.28, 21_279_306 + 2 * 512),
        ("senet18", 11.26, 11_260_354 - 2 * 64 + 2 * 512),
        ("wrn_40_2", 2.24, 2_243_546),
        ("mobilenet_v2", 2.30, 2_296_922),
        ("efficientnet_b0", 3.60, 3_599_686 - (32 * 32 + 2 * 32)),
    ],
)
def test_the_number_of_parameters_is_the_known_one(name: str, millions: float, exactly: int) -> None:
    count = sum(weight.numel() for weight in build(name).parameters())
    assert round(count / 1e6, 2) == millions
    assert count == exactly


def test_the_small_network_is_as_small_as_its_sum() -> None:
    """Convolutions of 9 weights, projections of 1, two values a normalized channel, and the head."""
    stem = 3 * 16 * 9
    stages = [(16, 16), (16, 32), (32, 64)]
    blocks = sum(2 * a + a * b * 9 + 2 * b + b * b * 9 + (a * b if a != b else 0) for a, b in stages)
    network = build("preact_resnet8")
    assert sum(weight.numel() for weight in network.parameters()) == stem + blocks + 2 * 64 + 64 * 10 + 10
    assert network.head.in_features == 64
