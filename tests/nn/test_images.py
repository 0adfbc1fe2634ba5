"""The image networks: what makes each of them itself."""

import pytest
import torch
from torch import nn

from unflip.nn.residual import (
    DropConnect,
    EfficientNetB0,
    InvertedResidual,
    PreActBlock,
    PreActOptions,
    PreActResNet18,
    PreActResNet34,
    SEBlock,
    SENet18,
    SqueezeExcite,
    WideOptions,
    WideResNet,
)
from unflip.options import Options

SHAPE = (3, 32, 32)


def silence(block: PreActBlock) -> None:
    """Let the block's residual be zero, so that what is left is its shortcut."""
    last = block.residual[-1]
    assert isinstance(last, nn.Conv2d)
    nn.init.zeros_(last.weight)


def test_a_block_of_one_shape_adds_to_its_untouched_input() -> None:
    block = PreActBlock(4, 4).eval()
    silence(block)
    inputs = torch.randn(2, 4, 8, 8)  # negative values too, which an activation behind the sum would cut
    assert torch.equal(block(inputs), inputs)


def test_a_block_of_another_shape_projects_the_activation() -> None:
    block = PreActBlock(4, 6, stride=2).eval()
    silence(block)
    inputs = torch.randn(2, 4, 8, 8)
    assert block.shortcut is not None
    by_hand = torch.einsum("oi,nihw->nohw", block.shortcut.weight[:, :, 0, 0], inputs.relu()[:, :, ::2, ::2])
    torch.testing.assert_close(block(inputs), by_hand / (1 + 1e-5) ** 0.5)


def test_features_are_activations() -> None:
    network = PreActResNet18(PreActOptions(blocks=(1, 1), width=4), SHAPE, 3).eval()
    assert (network.encode(torch.randn(5, *SHAPE)) >= 0).all()


@pytest.mark.parametrize(("blocks", "width", "features"), [((1,), 4, 4), ((1, 2, 1), 8, 32), ((1, 1, 1, 1, 1), 2, 32)])
def test_blocks_and_width_are_free(blocks: tuple[int, ...], width: int, features: int) -> None:
    network = PreActResNet18(PreActOptions(blocks=blocks, width=width), SHAPE, 3)
    assert network.head.in_features == features
    assert sum(isinstance(layer, PreActBlock) for layer in network.modules()) == sum(blocks)


def test_depths_are_what_the_names_say() -> None:
    for kind, depth in ((PreActResNet18, 18), (PreActResNet34, 34)):
        network = kind(kind.Options(), SHAPE, 10)
        weighed = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)]
        assert len(weighed) + 1 == depth


def test_every_block_of_senet_is_gated() -> None:
    network = SENet18(PreActOptions(), SHAPE, 10)
    blocks = [layer for layer in network.modules() if isinstance(layer, PreActBlock)]
    assert len(blocks) == 8
    assert all(isinstance(block, SEBlock) and isinstance(block.residual[-1], SqueezeExcite) for block in blocks)


def test_a_gate_is_between_shut_and_open_and_looks_at_the_means_only() -> None:
    gate = SqueezeExcite(6, 2, nn.ReLU())
    inputs = torch.randn(3, 6, 4, 4).abs() + 0.1
    ratio = gate(inputs) / inputs
    assert ((ratio > 0) & (ratio < 1)).all()
    torch.testing.assert_close(ratio, ratio[:, :, :1, :1].expand_as(ratio))
    shuffled = inputs.flatten(2)[:, :, torch.randperm(16)].view_as(inputs)
    torch.testing.assert_close((gate(shuffled) / shuffled)[:, :, 0, 0], ratio[:, :, 0, 0])


@pytest.mark.parametrize(("blocks", "width"), [((1, 1, 1), 16), ((2, 2, 2), 64), ((6, 6, 6), 32)])
def test_a_wide_network_has_a_narrow_stem(blocks: tuple[int, ...], width: int) -> None:
    network = WideResNet(WideOptions(blocks=blocks, width=width), SHAPE, 10)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert convolutions[0].out_channels == 16
    assert sum(layer.kernel_size == (3, 3) for layer in convolutions) == 1 + 2 * sum(blocks)
    assert network.head.in_features == 4 * width


def test_inverted_residuals_add_where_the_picture_keeps_its_size() -> None:
    for inside, outside, stride, adds in ((8, 8, 1, True), (8, 16, 1, True), (8, 8, 2, False)):
        block = InvertedResidual(inside, outside, 6, 3, stride).eval()
        inputs = torch.randn(2, inside, 8, 8)
        rest = block(inputs) - block.residual(inputs)
        assert bool(rest.abs().max() > 0.1) is adds


def test_drop_connect_leaves_out_whole_examples_and_keeps_the_mean() -> None:
    layer = DropConnect(0.25)
    outputs = layer(torch.ones(4000, 2, 2, 2)).flatten(1)
    assert (outputs == outputs[:, :1]).all()
    assert set(outputs.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs(float(outputs.mean()) - 1.0) < 5 * (0.25 / 0.75 / 4000) ** 0.5
    inputs = torch.randn(3, 2, 2, 2)
    assert layer.eval()(inputs) is inputs


def test_efficientnet_drops_more_and_more_residuals() -> None:
    network = EfficientNetB0(Options(), SHAPE, 10)
    rates = [layer.rate for layer in network.modules() if isinstance(layer, DropConnect)]
    assert rates == pytest.approx([0.2 * block / 16 for block in (2, 4, 6, 7, 9, 10, 12, 13, 14)])
