"""Whether this processor computes in bfloat16: it may not have it, or announce it and die of it."""

import functools
import signal
import subprocess
import sys
from typing import Any

from unflip.errors import ConfigError

_ADVICE = "leave it out for float32"
_ISA = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
_LONGEST = 120  # seconds that a trial may take
_OPENVINO = """
import sys
sys.modules["openvino_telemetry"] = None
import numpy as np
import openvino as ov
from openvino import opset8 as ops
images = ops.parameter([-1, 64, 16, 16], np.float32)
weights = np.full((64, 64, 3, 3), 0.01, np.float32)
maps = ops.relu(ops.convolution(images, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
rows = ops.reduce_mean(maps, np.array([2, 3]), False)
model = ov.Model([ops.matmul(rows, np.full((64, 64), 0.01, np.float32), False, False)], [images])
compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1})
found = compiled(np.ones((4, 64, 16, 16), np.float32))[0]
sys.exit(not np.isfinite(found).all())
"""
_TORCH = """
import sys
import torch
network = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3), torch.nn.Flatten(), torch.nn.Linear(64 * 14 * 14, 64))
network = network.to(memory_format=torch.channels_last)
with torch.autocast("cpu", torch.bfloat16):
    loss = network(torch.ones(4, 64, 16, 16)).float().square().mean()
loss.backward()
sys.exit(not all(weight.grad.isfinite().all() for weight in network.parameters()))
"""
"""Each trial is a convolution and a product of matrices, which use all that a processor has for them."""


def check_openvino(openvino: Any) -> None:
    """Refuse bfloat16 where the processor does not have it, or where a trial of it in another process fails.

    Some virtual machines announce instructions, such as AMX, that end a process with SIGILL.
    """
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ConfigError(f"precision bfloat16: this processor does not have it; {_ADVICE}")
    _check(_OPENVINO, _ADVICE)


def check_torch() -> None:
    """Refuse training in bfloat16 where a trial of it in another process fails.

    Where a processor does not have it, PyTorch computes it by other means, more slowly.
    """
    _check(_TORCH, f"{_ADVICE}, or set {_ISA} in the environment")


def _check(trial: str, advice: str) -> None:
    failure = _try(trial)
    if failure is not None:
        raise ConfigError(
            f"precision bfloat16: this machine announces it, but a trial of it failed ({failure}); {advice}"
        )


def _command(trial: str) -> list[str]:
    return [sys.executable, "-P", "-c", trial]  # -P: nothing is imported from the current folder


@functools.cache
def _try(trial: str) -> str | None:
    """Compute a little in bfloat16 in a child, once for this process; return what went wrong."""
    try:
        ended = subprocess.run(_command(trial), capture_output=True, text=True, errors="replace", timeout=_LONGEST)
    except (OSError, subprocess.SubprocessError) as error:
        return type(error).__name__
    if ended.returncode == 0:
        return None
    if ended.returncode < 0:
        return signal.Signals(-ended.returncode).name
    return ended.stderr.strip().split("\n")[-1][:120] or f"exit code {ended.returncode}"
