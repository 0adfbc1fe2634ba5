"""Backbones on a CPU with OpenVINO, which computes the same features as PyTorch, faster and in less memory."""

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unflip.errors import UnflipWarning, described

Encode = Callable[[Tensor], Tensor]
_TELEMETRY = "openvino_telemetry"
_MAX_ERROR = 1e-3  # relative, compared with PyTorch's features


def compile_backbone(network: nn.Module, size: int) -> Encode:
    """Return a fast version of a backbone's network, compiled by OpenVINO where that is possible.

    It takes batches of any size, uses as many threads as PyTorch, and must be called by one thread at a time. Without
    OpenVINO, on a GPU, or for a network that cannot be converted (with a warning), the network is returned.

    Args:
        network: in evaluation mode.
        size: side of the images, in pixels.
    """
    openvino, on_cpu = import_openvino(), all(value.device.type == "cpu" for value in network.parameters())
    if openvino is None or not on_cpu:
        return network
    try:
        return _compiled(openvino, network, size)
    except Exception as error:  # tracing runs arbitrary code, and operators may be unsupported
        problem = f"OpenVINO cannot run this network ({described(error)[:160]})"
        warnings.warn(f"{problem}; using PyTorch, which is slower", UnflipWarning, stacklevel=2)
        return network


def import_openvino() -> Any | None:
    """Import OpenVINO without its telemetry; return None if it is not installed.

    With the package `openvino_telemetry`, every import would send a message to its makers and write a user id to the
    home folder.
    """
    if "openvino" in sys.modules:
        return sys.modules["openvino"]
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # blocks the import
    try:
        return importlib.import_module("openvino")
    except ImportError:  # or its libraries do not fit this system
        return None
    finally:
        del sys.modules[_TELEMETRY]


def _compiled(openvino: Any, network: nn.Module, size: int) -> Encode:
    """Convert and compile a network, and compare its features with PyTorch's."""
    model = _converted(network, size)
    model.reshape([-1, 3, size, size])
    steps = openvino.preprocess.PrePostProcessor(model)
    steps.input().tensor().set_layout(openvino.Layout("NHWC"))  # as decoded images lie in memory
    steps.input().model().set_layout(openvino.Layout("NCHW"))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",  # otherwise chosen by the CPU
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # cores are shared with decoding threads and other processes
    }
    request = openvino.Core().compile_model(steps.build(), "CPU", settings).create_infer_request()

    def encode(images: Tensor) -> Tensor:
        pixels = images.detach().permute(0, 2, 3, 1).contiguous().numpy()
        request.set_input_tensor(openvino.Tensor(pixels, shared_memory=True))
        request.infer()
        return torch.from_numpy(request.get_output_tensor().data.copy())

    _compare(encode, network, size)
    return encode


def _converted(network: nn.Module, size: int) -> Any:
    """Trace the network and convert it, without `convert_model`, which sends telemetry."""
    frontend = importlib.import_module("openvino.frontend").FrontEndManager().load_by_framework("pytorch")
    decoder = importlib.import_module("openvino.frontend.pytorch.ts_decoder").TorchScriptPythonDecoder
    images = torch.zeros(2, 3, size, size)
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # what a trace misses is detected by `_compare`
        traced = torch.jit.trace(network, images, check_trace=False)
        decoded = decoder(traced, example_input=images)  # must outlive the conversion
        return frontend.convert(frontend.load(decoded))


def _compare(encode: Encode, network: nn.Module, size: int) -> None:
    """Raise ValueError if features differ from PyTorch's, for batch sizes other than the traced one."""
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(images)
    for count in (3, 1):
        difference = encode(images[:count]) - expected[:count]
        error = float(difference.norm() / expected[:count].norm().clamp_min(1e-12))
        if not error <= _MAX_ERROR:  # or NaN
            raise ValueError(f"relative difference to PyTorch's features: {error:.2g}")
