"""A Ray cluster to compute on; all its machines must have the data at the same paths."""

import logging
import socket
from typing import Any, Self

from unflip.errors import ConfigError, MissingExtraError

_PATIENCE = 10.0  # seconds to wait for a cluster


class Cluster:
    """The cluster at ``address``, or one that is started on this machine and lasts as long as this object is open.

    Args:
        address: as Ray takes it: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.
        device: what a task computes on; any but ``cpu`` means a GPU where the cluster has some.
        threads: the processor threads of a task.
    """

    jobs: int
    """How many tasks can run at a time."""

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

        ``retries`` is how often it begins again if its process or machine is lost.
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
    """Return the module; refuse an address where nothing answers. Nothing is started, so one may ask beforehand."""
    if address is not None:
        _check_answers(address)
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray


def _check_answers(address: str) -> None:
    """Raise if nothing listens at HOST:PORT or ray://HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return  # for example auto
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _no_answer(address, str(error)) from error


def _no_answer(address: str | None, why: str) -> ConfigError:
    return ConfigError(f"--address {address}: no Ray cluster answers there ({why}); start one with `ray start --head`")
