"""Cells on this machine: one process per job, which runs cell after cell; if it dies, only its cell is lost."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

_PATIENCE = 10.0  # seconds that a worker has to exit by itself


class LocalRunner:
    """Runs cells one after the other in its own process, which is started when needed."""

    def __init__(self, device: str, threads: int, gpu: str | None = None) -> None:
        self._device, self._threads = device, threads
        self._environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        if gpu is not None:
            self._environment["CUDA_VISIBLE_DEVICES"] = gpu
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, folder: Path) -> str | None:
        """Run the cell in ``folder``; return the error, None if there was none."""
        process = self._process = self._process or self._start(folder / "log.txt")
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"folder": str(folder), "device": self._device, "threads": self._threads}
        with suppress(OSError):  # it died while idle or starting; then no answer comes either
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if answer:
            return json.loads(answer)  # type: ignore[no-any-return]
        self.close()
        return _describe_end(process.wait())

    def close(self) -> None:
        """End the process, if there is one. A thread that is waiting for its answer gets none."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _start(self, log: Path) -> "subprocess.Popen[str]":
        with log.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "unflip.reproduce.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=self._environment,
                start_new_session=True,  # Ctrl-C goes only to the sweep, which then ends its workers
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            )


class Local:
    """This machine."""

    def __init__(self, device: str, threads: int) -> None:
        self._device, self._threads = device, threads
        self._gpus = _gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()) if device != "cpu" else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.jobs = len(self._gpus) or max(1, cores // threads)

    def runner(self, job: int) -> LocalRunner:
        """Return the runner of one job; the jobs are distributed over the GPUs."""
        gpu = self._gpus[job % len(self._gpus)] if self._gpus else None
        return LocalRunner(self._device, self._threads, gpu)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _gpus(visible: str | None, count: int) -> list[str]:
    """Return the GPUs as named in CUDA_VISIBLE_DEVICES.

    >>> _gpus(None, 2), _gpus("4,5", 2), _gpus("", 0)
    (['0', '1'], ['4', '5'], [])
    """
    return visible.split(",")[:count] if visible else [str(i) for i in range(count)]


def _describe_end(code: int) -> str:
    if code >= 0:
        return f"its process ended with code {code}"
    name = signal.Signals(-code).name
    return f"its process was killed by {name}" + ("; out of memory?" if name == "SIGKILL" else "")
