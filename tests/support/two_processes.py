"""Started by torchrun in test_contract.py: train each job under all processes, then compare what they ended with."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from helpers import capture_trainers
from unflip import train


def main(data: Path, jobs: Path, out: Path) -> None:
    torch.set_num_threads(1)
    verdicts: dict[str, Any] = {}
    for job in json.loads(jobs.read_text()):
        with pytest.MonkeyPatch.context() as patch:
            (trainer,) = train_and_capture(patch, data, out, job)
        verdicts[job["name"]] = {
            "processes": torch.distributed.get_world_size(),
            "weights": same_everywhere([network.state_dict() for network in trainer.networks]),
            "labels": same_everywhere(trainer.labels.current),
            "history": same_everywhere(trainer.labels.history()),
        }
    if torch.distributed.get_rank() == 0:
        (out / "verdicts.json").write_text(json.dumps(verdicts))
    torch.distributed.barrier()
    os._exit(0)  # as the command does: the threads between processes now and then abort a slow exit


def train_and_capture(patch: pytest.MonkeyPatch, data: Path, out: Path, job: dict[str, Any]) -> list[Any]:
    trainers = capture_trainers(patch)
    options = {name: job[name] for name in ("method", "network", "settings") if name in job}
    train(job.get("data", data), out / job["name"], epochs=4, device="cpu", **options)
    return trainers


def same_everywhere(tree: Any) -> bool:
    """Whether every process holds the same tree, bit for bit."""
    trees: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(trees, tree)
    return all(same(trees[0], other) for other in trees)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(value, other[key]) for key, value in one.items())
    return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
