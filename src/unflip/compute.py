"""The device, random generators, threads that prefetch batches, torchvision, and Ray clusters."""

import hashlib
import importlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock
from typing import Any, Self, TypeVar

import torch

from unflip.errors import ConfigError, MissingExtraError, unknown

_Result = TypeVar("_Result")
_GLOBAL = RLock()
_PATIENCE = 10.0  # seconds to wait for a cluster


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


class Cluster:
    """A Ray cluster: that at ``address``, or one on this machine that is shut down when this object is closed.

    Args:
        address: as Ray takes it: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.
        device: what a task computes on; any but ``cpu`` means a GPU where the cluster has some.
        threads: the processor threads of a task.
    """

    jobs: int
    """Number of tasks that can run at the same time."""

    def __init__(self, address: str | None, device: str, threads: int) -> None:
        ray = find_ray(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_answer(address, str(error)) from error
        self.ray = ray
        resources = ray.cluster_resources()
        if threads > resources.get("CPU", 0):
            self.close()
            raise ConfigError(f"--threads {threads}: the Ray cluster has only {int(resources.get('CPU', 0))} CPUs")
        gpus = int(resources.get("GPU", 0)) if device != "cpu" else 0
        self.jobs = gpus or int(resources["CPU"]) // threads
        self._needs = {"num_cpus": threads, "num_gpus": min(1, gpus)}

    def task(self, function: Any, *, retries: int) -> Any:
        """Return ``function`` as a task, which is called by its method ``remote``.

        ``retries`` is how often it is retried if its process or machine is lost.
        """
        return self.ray.remote(**self._needs, max_retries=retries)(function)

    def close(self) -> None:
        """Leave the cluster; one that was started here is shut down."""
        self.ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def find_ray(address: str | None) -> Any:
    """Return the module ``ray``; raise ConfigError if no cluster answers at the address. Starts nothing."""
    if address is not None:
        _check_answers(address)
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray


def _check_answers(address: str) -> None:
    """Raise ConfigError if nothing listens at HOST:PORT or ray://HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return  # for example auto
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _no_answer(address, str(error)) from error


def _no_answer(address: str | None, why: str) -> ConfigError:
    return ConfigError(f"--address {address}: no Ray cluster answers there ({why}); start one with `ray start --head`")
