"""Backbones on a CPU with OpenVINO: the same features as PyTorch's, faster and in less memory."""

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unflip.errors import ConfigError, MissingExtraError, UnflipWarning, described, unknown
from unflip.nn import bfloat16
from unflip.nn.backbone import Backbone

Precision = Literal["float32", "bfloat16"]
Encode = Callable[[Tensor], Tensor]
_TYPES = {"float32": "f32", "bfloat16": "bf16"}
_TELEMETRY = "openvino_telemetry"
_MOST_APART = {"float32": 1e-3, "bfloat16": 0.1}
"""By how much of their length features may differ from PyTorch's before a conversion counts as failed."""


def compile_backbone(backbone: Backbone, size: int, precision: Precision = "float32") -> Encode:
    """Return a function that does what ``backbone.encode`` does, with OpenVINO where that is possible.

    It takes batches of any length, uses as many threads as PyTorch does now, and is to be called by one thread at a
    time. Where OpenVINO is missing, the network is not on the CPU or cannot be converted (which is warned of),
    ``backbone.encode`` itself is returned. But `bfloat16`, which a user asked for, is an error then.

    Args:
        backbone: its network is in evaluation mode.
        size: side of the images, in pixels.
        precision: `bfloat16` takes half of the time; its features depend on the machine.
    """
    if precision not in get_args(Precision):
        raise ConfigError(unknown("precision", precision, get_args(Precision)))
    openvino, on_cpu = import_openvino(), all(value.device.type == "cpu" for value in backbone.network.parameters())
    if precision == "float32" and (openvino is None or not on_cpu):
        return backbone.encode
    if not on_cpu:
        raise ConfigError(f"precision {precision}: features are computed in it on a processor only; try --device cpu")
    if openvino is None:
        raise MissingExtraError("openvino", "embed")
    if precision == "bfloat16":
        bfloat16.check_openvino(openvino)
    try:
        return _compiled(openvino, backbone, size, precision)
    except Exception as error:  # tracing runs whatever the network does, and converting may meet any operator
        problem = f"OpenVINO cannot run this network ({described(error)[:160]})"  # of what may be pages
        if precision == "bfloat16":
            raise ConfigError(f"precision {precision}: {problem}") from error
        warnings.warn(f"{problem}; using PyTorch, which is slower", UnflipWarning, stacklevel=2)
        return backbone.encode


def import_openvino() -> Any | None:
    """Import OpenVINO without its telemetry, or return None where it is not installed.

    With the package `openvino_telemetry`, every import would send a message to its makers and write an identifier of
    this user to the home folder. OpenVINO works as well without that package.
    """
    if "openvino" in sys.modules:
        return sys.modules["openvino"]
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] == _TELEMETRY}
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # which means: cannot be imported
    try:
        return importlib.import_module("openvino")
    except ImportError:  # also one whose own libraries do not fit this system
        return None
    finally:
        del sys.modules[_TELEMETRY]
        sys.modules.update(hidden)


class _Encoder(nn.Module):
    """A backbone's ``encode`` as a module, which is what can be converted."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.network = backbone.network
        self._encode = backbone.encode

    def forward(self, images: Tensor) -> Tensor:
        return self._encode(images)


def _compiled(openvino: Any, backbone: Backbone, size: int, precision: Precision) -> Encode:
    """Convert and compile a backbone, and compare some of its features with PyTorch's."""
    model = _converted(backbone, size)
    model.reshape([-1, 3, size, size])
    steps = openvino.preprocess.PrePostProcessor(model)
    steps.input().tensor().set_layout(openvino.Layout("NHWC"))  # as decoded images lie in memory
    steps.input().model().set_layout(openvino.Layout("NCHW"))
    settings = {
        "INFERENCE_PRECISION_HINT": _TYPES[precision],  # otherwise it is the processor that decides
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # other threads decode images meanwhile, other processes use the same cores
    }
    request = openvino.Core().compile_model(steps.build(), "CPU", settings).create_infer_request()

    def encode(images: Tensor) -> Tensor:
        pixels = images.detach().permute(0, 2, 3, 1).contiguous().numpy()
        request.set_input_tensor(openvino.Tensor(pixels, shared_memory=True))
        request.infer()
        return torch.from_numpy(request.get_output_tensor().data.copy())

    _compare(encode, backbone, size, _MOST_APART[precision])
    return encode


def _converted(backbone: Backbone, size: int) -> Any:
    """Trace the network and convert it; not by `convert_model`, which tells its makers what was converted."""
    frontend = importlib.import_module("openvino.frontend").FrontEndManager().load_by_framework("pytorch")
    decoder = importlib.import_module("openvino.frontend.pytorch.ts_decoder").TorchScriptPythonDecoder
    images = torch.zeros(2, 3, size, size)
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # what a trace misses is found by `_compare`
        traced = torch.jit.trace(_Encoder(backbone).eval(), images, check_trace=False)
        decoded = decoder(traced, example_input=images)  # has to outlive what follows
        return frontend.convert(frontend.load(decoded))


def _compare(encode: Encode, backbone: Backbone, size: int, most: float) -> None:
    """Refuse features that are not PyTorch's, for batches of other lengths than the traced one.

    Args:
        encode: the compiled network.
        backbone: the original.
        size: side of the images, in pixels.
        most: distance of features that is accepted, as a share of their length.
    """
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = backbone.encode(images)
    for count in (3, 1):
        found = encode(images[:count])
        apart = float((found - wanted[:count]).norm() / wanted[:count].norm().clamp_min(1e-12))
        if not apart <= most:  # also if it is not a number
            raise ValueError(f"its features are {apart:.2g} of their length away from PyTorch's")
