"""A backbone that costs nothing: means of the image's quarters, by channel."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from unflip.nn import backbones
from unflip.nn.backbone import Backbone, fill, read_weights
from unflip.registry import Entry

seen: list[int] = []
"""How many images each call of the backbone was given."""


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tiny`, and `fixed` which takes one size only, be backbones."""
    for name in ("tiny", "fixed"):
        monkeypatch.setitem(backbones._entries, name, Entry(name, "for tests", f"tiny_backbone:{name}"))
    monkeypatch.setitem(sys.modules, "openvino", None)  # converted, a network would no longer count its calls
    seen.clear()


class Quarters(nn.Conv2d):
    def forward(self, images: Tensor) -> Tensor:
        seen.append(len(images))
        return nn.functional.adaptive_avg_pool2d(super().forward(images), 2).flatten(1)


def tiny(weights: Path | None) -> Backbone:
    network = Quarters(3, 3, 1, groups=3, bias=False)
    torch.nn.init.ones_(network.weight)
    if weights is not None:
        fill(network, read_weights(weights), str(weights))
    return Backbone(network, mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0), size=40)


def fixed(weights: Path | None) -> Backbone:
    made = tiny(weights)
    return Backbone(made.network, made.mean, made.std, size=24, fixed_size=True)
