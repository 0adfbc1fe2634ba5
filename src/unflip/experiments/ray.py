"""Cells as tasks on a Ray cluster; all machines must have the sweep's folder and the data at the same paths."""

import logging
import socket
from pathlib import Path
from typing import Any

from unflip.errors import ConfigError, MissingExtraError, described
from unflip.experiments.cell import run_cell

_PATIENCE = 10.0  # seconds to wait for a cluster


class RayRunner:
    """Runs cells one after the other, each as a task."""

    def __init__(self, ray: Any, task: Any, device: str, threads: int) -> None:
        self._ray, self._task, self._device, self._threads = ray, task, device, threads
        self._waiting: Any = None

    def __call__(self, folder: Path) -> str | None:
        """Run the cell in ``folder``; return the error, None if there was none."""
        self._waiting = self._task.remote(str(folder), self._device, self._threads)
        try:
            return self._ray.get(self._waiting)  # type: ignore[no-any-return]
        except self._ray.exceptions.RayError as error:  # the task's process or machine died
            return described(error)
        finally:
            self._waiting = None

    def close(self) -> None:
        """End the task, if there is one."""
        if self._waiting is not None:
            self._ray.cancel(self._waiting, force=True)


class Ray:
    """A Ray cluster: the one at ``address``, or one started on this machine for the duration of the sweep."""

    def __init__(self, device: str, threads: int, address: str | None) -> None:
        if address is not None:
            _check_answers(address)
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "ray") from error
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_answer(address, str(error)) from error
        self._ray, self._device, self._threads = ray, device, threads
        resources = ray.cluster_resources()
        if threads > resources.get("CPU", 0):
            raise ConfigError(f"--threads {threads}: the Ray cluster has only {int(resources.get('CPU', 0))} CPUs")
        gpus = int(resources.get("GPU", 0)) if device != "cpu" else 0
        self.jobs = gpus or int(resources["CPU"]) // threads
        # No retries here: the sweep retries failed cells.
        self._task = ray.remote(num_cpus=threads, num_gpus=min(1, gpus), max_retries=0)(run_cell)

    def runner(self, job: int) -> RayRunner:
        """Return the runner of one job."""
        return RayRunner(self._ray, self._task, self._device, self._threads)

    def close(self) -> None:
        """Disconnect from the cluster; one started for the sweep is shut down."""
        self._ray.shutdown()


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
