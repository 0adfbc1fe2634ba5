"""Processes: the device, and the communication between the processes of one run."""

import os
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import MixedPrecision
from torch import Tensor

from unflip.errors import ConfigError
from unflip.nn.base import Network
from unflip.nn.openvino import check_trial
from unflip.parallel import find_device


class Distributed:
    """The processes of a run: one, or as many as torchrun started. A thin layer over lightning-fabric."""

    def __init__(self, device: str = "auto", precision: str = "float32") -> None:
        accelerator = find_device(device)
        self.precision = _find_precision(precision, accelerator)
        world = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        self.fabric = Fabric(
            accelerator=accelerator,
            devices=local,
            num_nodes=world // local,
            strategy="ddp" if world > 1 else "auto",
            plugins=_mixed(self.precision, accelerator),
        )
        self.fabric.launch()

    @property
    def count(self) -> int:
        """The number of processes."""
        return self.fabric.world_size

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self.fabric.global_rank

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.fabric.device

    def setup(self, network: Network, optimizer: torch.optim.Optimizer) -> tuple[torch.nn.Module, Any]:
        """Move a network to the device, and wrap it for several processes and the precision.

        A wrapped network takes and returns float32. Anything that goes through :func:`unflip.nn.base.unwrap`, such
        as scans and the calibration of heads, always computes in float32.
        """
        if self._is_plain:
            return network, optimizer
        wrapped, wrapped_optimizer = self.fabric.setup(network, optimizer)
        return wrapped, wrapped_optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute gradients in the way the precision requires."""
        if self._is_plain:
            loss.backward()
        else:
            self.fabric.backward(loss)

    def unscale(self, optimizer: Any) -> None:
        """Bring gradients to their own size, which float16 computes many times as large."""
        if not self._is_plain:
            self.fabric.strategy.precision.unscale_gradients(optimizer.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the precision: the gradient scale of float16."""
        return self.fabric.strategy.precision.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.fabric.strategy.precision.load_state_dict(state)

    @property
    def _is_plain(self) -> bool:
        """Whether no wrapping is needed (one process, CPU, float32); its cost is noticeable in small networks."""
        return self.count == 1 and self.device.type == "cpu" and self.precision == "float32"

    def interleave(self, share: Tensor, total: int) -> Tensor:
        """Undo :func:`unflip.engine.trainer.cut`: return the first ``total`` rows in the original order."""
        if self.count == 1:
            return share[:total]
        shares = self.fabric.all_gather(share)  # (processes, rows, ...)
        return shares.transpose(0, 1).flatten(0, 1)[:total]  # type: ignore[union-attr]

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the first process's ``tensor`` on every process."""
        if self.count == 1:
            return tensor
        tensor = tensor.contiguous()
        torch.distributed.broadcast(tensor, src=0)
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of ``tensor`` over the processes."""
        return self.fabric.all_reduce(tensor, reduce_op="mean") if self.count > 1 else tensor  # type: ignore[return-value]

    def agree(self, message: str | None) -> str | None:
        """Return the first process's ``message`` on every process."""
        return self.fabric.broadcast(message, src=0) if self.count > 1 else message

    def seed_layers(self, seed: int) -> None:
        """Seed the generator that layers such as dropout draw from, and no other.

        ``torch.manual_seed`` seeds every backend, which takes as long as a step of a small network.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            getattr(torch, self.device.type).manual_seed(seed)

    def synchronize_buffers(self, network: torch.nn.Module) -> None:
        """Copy the first process's batch-norm statistics to every process."""
        if self.count > 1:
            for buffer in network.buffers():
                self.broadcast(buffer)


def start_processes(device: str, threads: int | None, precision: str = "float32") -> Distributed:
    """Set the number of threads, find the device, and join the other processes of the run."""
    if threads is not None:
        torch.set_num_threads(threads)
    return Distributed(device, precision)


def is_first_process() -> bool:
    """Whether this is the process that prints; works before a process group exists."""
    return int(os.environ.get("RANK", "0")) == 0


def _find_precision(precision: str, accelerator: str) -> str:
    if precision == "auto":
        has_it = accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if has_it else "float32"
    if precision == "float16" and accelerator == "cpu":
        raise ConfigError("precision = 'float16' needs a GPU, and the device is cpu; try bfloat16 or float32")
    if precision == "bfloat16" and accelerator == "cpu":
        check_trial()
    return precision


def _mixed(precision: str, accelerator: str) -> MixedPrecision | None:
    """Return the plugin for half-precision forward passes, None for float32; float16 also scales its gradients."""
    if precision == "float32":
        return None
    return MixedPrecision("bf16-mixed" if precision == "bfloat16" else "16-mixed", accelerator)
