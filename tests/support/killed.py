"""Started by test_kill.py: one process that forks runs, kills each at a random moment and resumes it to its end."""

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from unflip import train

_OFTEN = 60  # kills of one run, after which something must be wrong


def main(data: str, jobs: str, out: str, kills: int) -> None:
    torch.set_num_threads(1)
    train(data, Path(out) / "first", method="dividemix-m", epochs=1, device="cpu")  # imports what all of them need
    kills_of = {}
    for job in json.loads(Path(jobs).read_text()):
        folder = Path(out) / job["name"]
        options = {"method": job["method"], "settings": job["settings"], "epochs": 5, "device": "cpu"}
        started = time.monotonic()
        wait(start(data, folder / "undisturbed", options))
        usual = time.monotonic() - started
        kills_of[job["name"]] = survive(data, folder / "killed", options, kills, usual, random.Random(job["name"]))
    (Path(out) / "kills.json").write_text(json.dumps(kills_of))


def survive(
    data: str, folder: Path, options: dict[str, Any], kills: int, usual: float, moments: random.Random
) -> list[str]:
    """Kill a run ``kills`` times and let it come to its end; return how far it had come at each kill."""
    places: list[str] = []
    for _ in range(_OFTEN):
        resume = (folder / "config.toml").exists()
        child = start(data, folder, options | {"resume": resume, "checkpoint_minutes": 0})
        if len(places) == kills:
            wait(child)
            return places
        before, patience = newest(folder), time.monotonic() + usual
        at_once = moments.random() < 0.2
        while not at_once and newest(folder) == before and time.monotonic() < patience:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, usual / 10))
        os.kill(child, signal.SIGKILL)
        if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            places.append("writing the result" if (folder / "labels.csv").exists() else newest(folder))
    raise RuntimeError(f"{folder}: ended {_OFTEN} times before it could be killed {kills} times")


def newest(folder: Path) -> str:
    """Return the name of the last checkpoint."""
    names = (path.name for path in (folder / "checkpoints").glob("epoch*"))
    return max(names, default="before the first checkpoint")


def start(data: str, folder: Path, options: dict[str, Any]) -> int:
    """Train in a process that has everything imported already."""
    child = os.fork()
    if child:
        return child
    code = 1
    with contextlib.suppress(BaseException):
        try:
            if options.get("resume") and (folder / "result.json").exists():
                (folder / "result.json").unlink()  # so that there is something left to kill
            train(data, folder, **options)
            code = 0
        except BaseException:
            traceback.print_exc()
    os._exit(code)


def wait(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"a run ended with {status}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
