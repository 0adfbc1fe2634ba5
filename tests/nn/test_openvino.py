"""Backbones with OpenVINO: PyTorch's features, for any number of images; and what happens where it cannot be used."""

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unflip.errors import UnflipWarning
from unflip.nn.backbone import EfficientNetLite0, EfficientNetLite0Options, compile_backbone, import_openvino

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="the extra `embed` is not installed"
)


def small() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU6(), nn.Conv2d(32, 48, 3)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def efficientnet_lite0() -> nn.Module:
    pytest.importorskip("efficientnet_lite_pytorch")
    torch.manual_seed(0)
    options = EfficientNetLite0Options(pretrained=False)
    return EfficientNetLite0(options, (3, 64, 64), 2).encoder.eval()


@needs_openvino
@pytest.mark.parametrize("make", [small, efficientnet_lite0])
def test_features_are_those_of_pytorch_for_batches_of_any_length(make: Callable[[], nn.Module]) -> None:
    backbone = make()
    with warnings.catch_warnings(action="error"):
        encode = compile_backbone(backbone, 64)
    assert encode is not backbone
    images = torch.randn(16, 3, 64, 64)
    with torch.inference_mode():
        wanted = backbone(images)
        kept = [
            (count, encode(images[:count].contiguous(memory_format=layout)))
            for count in (16, 5, 1, 16)
            for layout in (torch.contiguous_format, torch.channels_last)
        ]
    for count, found in kept:  # none is overwritten by a later call
        torch.testing.assert_close(found, wanted[:count], atol=1e-4, rtol=1e-4)


@needs_openvino
def test_as_many_threads_as_pytorch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_openvino()
    assert module is not None
    asked: list[dict[str, Any]] = []
    compile_model = module.Core.compile_model

    def listen(self: Any, model: Any, device: str, settings: dict[str, Any]) -> Any:
        asked.append(settings)
        compiled = compile_model(self, model, device, settings)
        assert compiled.get_property("INFERENCE_NUM_THREADS") == settings["INFERENCE_NUM_THREADS"]
        assert compiled.get_property("INFERENCE_PRECISION_HINT") == module.Type.f32
        return compiled

    monkeypatch.setattr(module.Core, "compile_model", listen)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    compile_backbone(small(), 32)
    assert [settings["INFERENCE_NUM_THREADS"] for settings in asked] == [1]


class Odd(nn.Module):
    """Does what no trace can follow."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images: Tensor) -> Tensor:
        means = images.mean((2, 3)) * self.scale
        if self.what == "depends on the number of images":
            return means * float(len(images))
        if self.what == "raises":
            values: Tensor = torch.linalg.eigvals(images[:, 0])  # an operator that OpenVINO does not have
            return means + values[:, :3].real
        return torch.from_numpy(means.detach().numpy() * 1.0)  # seen as a constant


@needs_openvino
@pytest.mark.parametrize("what", ["depends on the number of images", "raises", "constant"])
def test_a_network_that_cannot_be_converted_stays_with_pytorch_and_one_line_says_so(what: str) -> None:
    backbone = Odd(what).eval()
    with pytest.warns(UnflipWarning, match="OpenVINO cannot run this network") as caught:
        encode = compile_backbone(backbone, 32)
    assert encode is backbone
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert len(str(caught[0].message)) < 300


def test_where_openvino_is_missing_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    backbone = small()
    with warnings.catch_warnings(action="error"):
        assert compile_backbone(backbone, 32) is backbone


def test_only_on_a_processor() -> None:
    backbone = nn.Conv2d(3, 3, 1, device="meta")
    assert compile_backbone(backbone, 32) is backbone


@needs_openvino
def test_openvino_tells_nobody(tmp_path: Path) -> None:
    code = (
        "import socket, sys, torch\n"
        "def refuse(*_, **__): raise SystemExit('a connection was made')\n"
        "socket.socket.connect = refuse\n"
        "from unflip.nn.backbone import compile_backbone\n"
        "assert 'openvino' not in sys.modules\n"
        "network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())\n"
        "assert compile_backbone(network.eval(), 32) is not network\n"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry')]\n"
    )
    home = {**os.environ, "HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path), "CI": ""}
    subprocess.run([sys.executable, "-c", code], env=home, check=True)
    assert not list(tmp_path.iterdir())
