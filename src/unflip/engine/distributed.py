"""The device and the processes of a run, and the communication between them."""

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unflip.compute import find_device
from unflip.errors import ConfigError

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Distributed:
    """The processes of a run: one, or as many as torchrun started. A thin layer over lightning-fabric.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        precision: of forward passes in training: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        threads: number of CPU threads; unchanged if None.

    Attributes:
        device: the device of this process.
        count: the number of processes.
        rank: the number of this process, from 0.
        is_first: whether this is the process that writes files and prints.
    """

    def __init__(self, device: str = "auto", precision: str = "float32", threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._accelerator = find_device(device)
        self.precision = find_precision(precision, self._accelerator)
        self.count, self.rank = int(os.environ.get("WORLD_SIZE", "1")), 0
        self.device = torch.device(self._accelerator)
        if not self._is_plain:
            self.device, self.rank = self.fabric.device, self.fabric.global_rank
        self.is_first = self.rank == 0

    @property
    def scaler(self) -> Any:
        """What scales the gradients of float16, whose state is part of a checkpoint; None for plain float32."""
        return None if self._is_plain else self.fabric.strategy.precision

    @cached_property
    def fabric(self) -> "Fabric":
        """Lightning's part in it; importing lightning-fabric takes longer than torch, and one process needs none."""
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.precision import MixedPrecision

        kind, local = self._accelerator, int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
        plugin = None
        if self.precision != "float32":  # float16 also scales its gradients
            plugin = MixedPrecision("bf16-mixed" if self.precision == "bfloat16" else "16-mixed", kind)
        nodes, strategy = self.count // local, "ddp" if self.count > 1 else "auto"
        fabric = Fabric(accelerator=kind, devices=local, num_nodes=nodes, strategy=strategy, plugins=plugin)
        fabric.launch()
        return fabric

    @property
    def _is_plain(self) -> bool:
        """Whether networks need no wrapping, whose overhead is noticeable in small ones."""
        return self.count == 1 and self.device.type == "cpu" and self.precision == "float32"

    def setup(self, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[torch.nn.Module, Any]:
        """Move a network to the device, and wrap it for several processes and mixed precision.

        A wrapped network takes and returns float32. Everything that goes through :func:`unflip.nn.base.unwrap`, such
        as inference and the calibration of heads, computes in float32.
        """
        if self._is_plain:
            return network, optimizer
        return self.fabric.setup(network, optimizer)  # type: ignore[no-any-return]

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, scaled if the precision requires it."""
        if self._is_plain:
            loss.backward()
        else:
            self.fabric.backward(loss)

    def unscale(self, optimizer: Any) -> None:
        """Undo the gradient scaling of float16."""
        if not self._is_plain:
            self.scaler.unscale_gradients(optimizer.optimizer)

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

    def synchronize_buffers(self, network: torch.nn.Module) -> None:
        """Copy the first process's batch-norm statistics to every process."""
        for buffer in network.buffers():
            self.broadcast(buffer)


def find_precision(precision: str, accelerator: str) -> str:
    """Resolve ``auto``, and raise ConfigError if the device does not support the precision."""
    if precision == "auto":
        supported = accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if supported else "float32"
    if precision == "float16" and accelerator == "cpu":
        raise ConfigError("precision = 'float16' needs a GPU, and the device is cpu; try bfloat16 or float32")
    return precision
