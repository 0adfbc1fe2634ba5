"""Cells as tasks on a Ray cluster; all machines must have the sweep's folder and the data at the same paths."""

from pathlib import Path
from typing import Any

from unflip.errors import described
from unflip.parallel import Cluster
from unflip.reproduce.cell import run_cell


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
        self._cluster = Cluster(address, device, threads)
        self._device, self._threads = device, threads
        self.jobs = self._cluster.jobs
        self._task = self._cluster.task(run_cell, retries=0)  # the sweep itself tries failed cells again

    def runner(self, job: int) -> RayRunner:
        """Return the runner of one job."""
        return RayRunner(self._cluster.ray, self._task, self._device, self._threads)

    def close(self) -> None:
        """Disconnect from the cluster; one started for the sweep is shut down."""
        self._cluster.close()
