"""The device, random generators, threads that prefetch batches, and imports of extras."""

import hashlib
import importlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeVar

import torch

from unflip.errors import ConfigError, MissingExtraError, unknown

_Result = TypeVar("_Result")
_GLOBAL = RLock()


def find_device(device: str) -> str:
    """Resolve ``auto``; raise ConfigError if a device is unknown or not available."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    if device not in available:
        raise ConfigError(unknown("device", device, ["auto", *available]))
    if not available[device]:
        there = ", ".join(name for name, is_there in available.items() if is_there)
        raise ConfigError(f"device '{device}' is not available on this machine; available: {there}")
    return device


def total_memory(device: str) -> int | None:
    """Return the memory in bytes that a device has in all; None if the system does not tell."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed that depends on ``seed`` and every part of ``purpose``, the same on every machine.

    >>> derive(0, "order", 1) == derive(0, "order", 1), derive(0, "order", 1) == derive(0, "order", 2)
    (True, False)
    """
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in purpose)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a CPU generator for one purpose; draw there, then move, so that every device sees the same numbers."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


@contextmanager
def seeded_layers(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators, which layers draw from, and restore that of the CPU; one thread at a time.

    Layers such as dropout, and initial weights, cannot be given a generator of their own. ``torch.manual_seed`` and
    ``torch.random.fork_rng`` handle every backend, which takes as long as a step of a small network.

    Args:
        seed: random seed.
        device: the device of the layers, besides the CPU.
    """
    backend = None if device is None or device.type == "cpu" else getattr(torch, device.type)
    with _GLOBAL:
        before = torch.get_rng_state()
        try:
            torch.default_generator.manual_seed(seed)
            if backend is not None:
                backend.manual_seed(seed)
            yield
        finally:
            torch.set_rng_state(before)


def num_processes() -> int:
    """Return the number of processes that torch.distributed connects: 1 unless they were launched together."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def prefetched(calls: Iterable[Callable[[], _Result]], prefetch: int) -> Iterator[_Result]:
    """Yield the result of each call, in order; up to ``prefetch`` later calls run while a result is in use.

    They run in threads, so each call must use its own random generator.
    """
    if not prefetch:
        for call in calls:
            yield call()
        return
    pool = ThreadPoolExecutor(prefetch, thread_name_prefix="batches")
    waiting: deque[Future[_Result]] = deque()
    try:
        for call in calls:
            waiting.append(pool.submit(call))
            if len(waiting) > prefetch:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def repair_torchvision() -> None:
    """Make a torchvision that was built for another torch importable, by declaring its operators.

    The torchvision on PyPI is built for CUDA. With a CPU-only torch its library does not load, and the import fails
    with "operator torchvision::nms does not exist". Nothing here computes boxes, so declarations suffice.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return  # not installed
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in ("torchvision::nms", "torchvision::qnms"):
            torch.library.define(name, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def import_extra(package: str, extra: str) -> Any:
    """Import a package of an extra; raise MissingExtraError if it, or a package that it needs, is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError((error.name or package).replace("_", "-"), extra) from error
