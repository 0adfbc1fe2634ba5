"""Processes: the device, and what several processes of one run exchange."""

import os
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import MixedPrecision
from torch import Tensor

from unflip.errors import ConfigError, unknown
from unflip.networks.base import Network

DEVICES = ("auto", "cpu", "cuda", "mps")


class Processes:
    """A run's processes: one, or as many as torchrun started. Thin over lightning-fabric."""

    def __init__(self, device: str = "auto", precision: str = "float32") -> None:
        accelerator = _find_device(device)
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
        """How many processes there are."""
        return self.fabric.world_size

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self.fabric.global_rank

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self.fabric.device

    def setup(self, network: Network, optimizer: torch.optim.Optimizer) -> tuple[torch.nn.Module, Any]:
        """Move a network to the device, and wrap it for several processes and for the precision.

        A wrapped network takes and returns float32. What is reached through :func:`unflip.networks.base.bare`, as scans
        and the calibration of heads are, computes in float32 whatever the precision.
        """
        if self._is_plain:
            return network, optimizer
        wrapped, wrapped_optimizer = self.fabric.setup(network, optimizer)
        return wrapped, wrapped_optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, as the precision in use wants it."""
        if self._is_plain:
            loss.backward()
        else:
            self.fabric.backward(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return what the precision remembers from step to step: the scale of float16's gradients."""
        return self.fabric.strategy.precision.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a saved scale."""
        self.fabric.strategy.precision.load_state_dict(state)

    @property
    def _is_plain(self) -> bool:
        """Alone on the processor in float32 nothing needs wrapping, and small networks feel its cost."""
        return self.count == 1 and self.device.type == "cpu" and self.precision == "float32"

    def interleave(self, share: Tensor, total: int) -> Tensor:
        """Undo the sharing of :func:`unflip.training.batches.cut`: the first ``total`` rows in the order's order."""
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
        """Return the mean over the processes of what each of them has."""
        return self.fabric.all_reduce(tensor, reduce_op="mean") if self.count > 1 else tensor  # type: ignore[return-value]

    def agree(self, message: str | None) -> str | None:
        """Return the first process's ``message`` on every process."""
        return self.fabric.broadcast(message, src=0) if self.count > 1 else message

    def seed_layers(self, seed: int) -> None:
        """Seed what layers such as dropout draw from: the device's own generator, and no other.

        ``torch.manual_seed`` seeds every backend there is, which takes as long as a small network's step.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            getattr(torch, self.device.type).manual_seed(seed)

    def synchronise_buffers(self, network: torch.nn.Module) -> None:
        """Give every process the first one's batch-norm statistics."""
        if self.count > 1:
            for buffer in network.buffers():
                self.broadcast(buffer)


def start_processes(device: str, threads: int | None, precision: str = "float32") -> Processes:
    """Set the number of threads, find the device, and join the other processes of the run."""
    if threads is not None:
        torch.set_num_threads(threads)
    return Processes(device, precision)


def is_first_process() -> bool:
    """Whether this process speaks, asked before any process group exists."""
    return int(os.environ.get("RANK", "0")) == 0


def _find_device(device: str) -> str:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    if device not in available:
        raise ConfigError(unknown("device", device, DEVICES))
    if not available[device]:
        there = ", ".join(name for name, is_there in available.items() if is_there)
        raise ConfigError(f"device '{device}' is not available on this machine; there is: {there}")
    return device


def _find_precision(precision: str, accelerator: str) -> str:
    if precision == "auto":
        has_it = accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if has_it else "float32"
    if precision == "float16" and accelerator == "cpu":
        raise ConfigError("precision = 'float16' needs a GPU, and the device is cpu; try bfloat16 or float32")
    return precision


def _mixed(precision: str, accelerator: str) -> MixedPrecision | None:
    """Return what lets the forward pass compute in half the bits; float16 comes with a scale for its gradients."""
    if precision == "float32":
        return None
    return MixedPrecision("bf16-mixed" if precision == "bfloat16" else "16-mixed", accelerator)
