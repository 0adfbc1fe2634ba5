"""Whether bfloat16 works on this processor.

Some virtual machines announce instructions, such as AMX, that end a process with SIGILL. So a small computation is
tried in a child process before bfloat16 is used.
"""

import functools
import signal
import subprocess
import sys
from typing import Any

from unflip.errors import ConfigError

_ADVICE = "leave it out for float32"
OPENVINO_TRIAL = """
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
TORCH_TRIAL = """
import sys
import torch
network = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3), torch.nn.Flatten(), torch.nn.Linear(64 * 14 * 14, 64))
network = network.to(memory_format=torch.channels_last)
with torch.autocast("cpu", torch.bfloat16):
    loss = network(torch.ones(4, 64, 16, 16)).float().square().mean()
loss.backward()
sys.exit(not all(weight.grad.isfinite().all() for weight in network.parameters()))
"""
"""Each trial is a convolution and a matrix product, which use every instruction that networks use."""


def check_openvino(openvino: Any, trial: str = OPENVINO_TRIAL) -> None:
    """Refuse bfloat16 in OpenVINO where the processor does not have it, or where a trial of it fails.

    Args:
        openvino: the imported package, which is asked for the processor's capabilities.
        trial: Python code that computes in bfloat16.
    """
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ConfigError(f"precision bfloat16: this processor does not have it; {_ADVICE}")
    _check(trial, _ADVICE)


def check_torch(trial: str = TORCH_TRIAL) -> None:
    """Refuse training in bfloat16 where a trial of it fails.

    Where a processor does not have it, PyTorch computes it by other means, more slowly.
    """
    _check(trial, f"{_ADVICE}, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment")


@functools.cache
def failure_of(trial: str, timeout: float = 120) -> str | None:
    """Run a trial in a child process, once in the life of this process.

    Args:
        trial: Python code.
        timeout: seconds after which the trial counts as failed.

    Returns:
        None if it ended well; otherwise the signal or the last line of its error.
    """
    command = [sys.executable, "-P", "-c", trial]  # -P: nothing is imported from the current folder
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout)
    except (OSError, subprocess.SubprocessError) as error:
        return type(error).__name__
    if ended.returncode < 0:
        return signal.Signals(-ended.returncode).name
    return (ended.stderr.strip().split("\n")[-1][:120] or f"exit code {ended.returncode}") if ended.returncode else None


def _check(trial: str, advice: str) -> None:
    if (failure := failure_of(trial)) is not None:
        raise ConfigError(f"precision bfloat16: a trial of it failed ({failure}); {advice}")
