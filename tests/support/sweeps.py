"""For tests of sweeps: a small grid, sweeps as processes of their own, and a way to find what they started."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from helpers import QUICK

_PATIENCE = 900.0  # seconds; machines are shared


def write_grid(path: Path, axes: str, epochs: int = 2, config: str = "") -> Path:
    """Write a grid of quick cells and return where."""
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in QUICK.items())
    path.write_text(f"# a grid of a test\n[config]\nepochs = {epochs}\n{settings}\n{config}\n[axes]\n{axes}\n")
    return path


def results(out: Path) -> list[dict[str, Any]]:
    """Return the lines of results.jsonl, without the times."""
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def failures(out: Path) -> list[str]:
    """Return why attempts failed, of all cells, from their logs."""
    lines = [line for file in sorted(out.glob("cells/*/log.txt")) for line in file.read_text().splitlines()]
    return [line.removeprefix("failed: ") for line in lines if line.startswith("failed: ")]


def wait_for(condition: Callable[[], Any], process: "subprocess.Popen[str] | None" = None) -> Any:
    """Wait until ``condition`` holds; fail if ``process`` ends before."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("waited in vain")


class Running:
    """A running command; every process that it starts, however far down, carries its mark."""

    def __init__(self, command: Sequence[str]) -> None:
        self._mark = f"UNFLIP_TEST={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {name: value, "RAY_worker_niceness": "0"},  # Ray's workers else wait for all others
        )

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Wait until ``condition`` holds while the command goes on."""
        return wait_for(condition, self.process)

    def others(self, title: str = "") -> list[int]:
        """Return the processes that carry the mark, without the first one; those with ``title`` in their command."""
        return [pid for pid, command in self._marked() if pid != self.process.pid and title in command]

    def _marked(self) -> Iterator[tuple[int, str]]:
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and self._mark.encode() in (folder / "environ").read_bytes():
                    yield int(folder.name), (folder / "cmdline").read_bytes().decode()
            except OSError:  # it ended meanwhile, or is not ours
                continue


@contextmanager
def running(command: Sequence[str]) -> Iterator[Running]:
    """Run a command, and leave nothing of it behind."""
    started = Running(command)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()
        wait_for(lambda: not started.others())


def sweeping(*args: object) -> AbstractContextManager[Running]:
    """Run `unflip paper sweep` with these arguments, and leave nothing of it behind."""
    return running([sys.executable, "-m", "unflip", "paper", "sweep", *map(str, args)])
