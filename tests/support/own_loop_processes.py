"""Started by test_own_loop.py: two processes record a share each; both must end as one process would."""

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn

from two_processes import same_everywhere
from unflip import DistributionCalibration, ELRLoss, KnownWrongControls, LabelCorrection

COUNT, CLASSES, DIMS = 61, 3, 5


def run(rank: int, count: int) -> dict[str, Any]:
    """Three epochs with made-up logits and features, of which this process records every ``count``-th."""
    random = torch.Generator().manual_seed(0)
    given = torch.arange(COUNT) % CLASSES
    labels = LabelCorrection(given, CLASSES, warmup=1)
    torch.manual_seed(0)
    head = nn.Linear(DIMS, CLASSES)
    calibration = DistributionCalibration(head, CLASSES, head_lr=0.1)
    controls = KnownWrongControls(given, torch.rand(COUNT, CLASSES, generator=random).softmax(1), share=0.3)
    loss = ELRLoss(COUNT, CLASSES)
    for _ in range(3):
        logits = 3 * torch.randn(COUNT, CLASSES, generator=random)
        features = torch.randn(COUNT, DIMS, generator=random)
        order = torch.randperm(COUNT, generator=random)
        share = torch.cat([order, order[: -COUNT % count]])[rank::count]  # padded, as by DistributedSampler
        for index in share.split(8):
            labels.record(index, logits[index])
            calibration.record(index, features[index])
            controls.record(index, logits[index])
            loss(logits[index], given[index], index)
        calibration.step(labels.current)
        labels.step()
        loss.step()
    scores = controls.score().nan_to_num(9.0)
    return {"labels": labels.state_dict(), "head": head.state_dict(), "controls": scores, "elr": loss.targets}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    one = run(0, 1)
    # forked, since each process of a launch would import torch
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=compare, args=(rank, one, out)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]


def compare(rank: int, one: dict[str, Any], out: Path) -> None:
    """In one of the two processes: do the same with the other, and compare it with what one process did alone."""
    torch.distributed.init_process_group("gloo", f"file://{out}.store", rank=rank, world_size=2)
    count = torch.distributed.get_world_size()
    both = run(rank, count)
    verdict = {
        "processes": count,
        "labels": same_everywhere(both["labels"]["current"]) and same_everywhere(both["labels"]["history"]),
        "head": same_everywhere(both["head"]),
        "as_one": bool((one["labels"]["current"] == both["labels"]["current"]).all())
        and all(torch.allclose(value, both["head"][name], atol=1e-3) for name, value in one["head"].items()),
        "controls": same_everywhere(both["controls"]),
        "elr": same_everywhere(both["elr"]) and float((one["elr"] - both["elr"]).abs().amax(1).median()) < 1e-6,
    }
    if rank == 0:
        out.write_text(json.dumps(verdict))
    torch.distributed.barrier()
    os._exit(0)  # the threads between processes now and then abort a slow exit


if __name__ == "__main__":
    main(Path(sys.argv[1]))
