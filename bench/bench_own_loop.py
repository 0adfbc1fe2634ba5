"""MDDC and CDDC in a plain PyTorch loop (examples/own_loop.py) against PLC in the same loop: how many times as long.

With features of all examples computed after each epoch, as in our own runs, and recorded in passing, as the callbacks
for other trainers do. Time is that of the processor, on one thread, so that other work on the machine counts little.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import frozen
from limits import Limits

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import own_loop
from unflip import LabelCorrection
from unflip.adapters.corrected_training import CorrectedTraining

ROUNDS = 3


def recorded(model: Any, inputs: Tensor, given: Tensor, kind: Any, order: Callable[[int], Tensor]) -> None:
    """Train as ``own_loop.train``, with the features of the training pass."""
    labels = LabelCorrection(given, model.head.out_features, warmup=5)
    training = CorrectedTraining(labels, "head", kind, head_lr=0.01)
    training.attach(model, inputs.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    for epoch in range(1, 16):
        for index in order(epoch).split(128):
            logits = model.head(model.encode(inputs[index] + 0.1 * torch.randn_like(inputs[index])))
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, training.begin_batch(index)).backward()
            optimizer.step()
            training.end_batch()
        training.end_epoch()


LOOPS: dict[str, tuple[Callable[..., Any], str | None]] = {
    "plc": (own_loop.train, None),
    "mddc": (own_loop.train, "mean"),
    "cddc": (own_loop.train, "covariance"),
    "mddc, recorded": (recorded, "mean"),
    "cddc, recorded": (recorded, "covariance"),
}
LIMITS = {
    "cifar10": {"mddc": 1.5, "cddc": 1.2, "mddc, recorded": 1.5, "cddc, recorded": 1.2},
    "cifar100": {"mddc": 2.0, "cddc": 1.3, "mddc, recorded": 1.85, "cddc, recorded": 1.2},
}
"""How many times as long as plc a loop may take: at most. Targets of the first row; the others are measured + 10 %."""


def main(rounds: int) -> None:
    limits = Limits()
    torch.set_num_threads(1)
    for name, allowed in LIMITS.items():
        with tempfile.TemporaryDirectory() as temporary:
            path, labels = frozen.features(name, into=Path(temporary))
            given = torch.from_numpy(np.load(labels).astype("i8"))[: frozen.NUM_EXAMPLES]
            with np.load(path) as data:
                inputs = torch.from_numpy(data["train"][: len(given)].astype("f4"))
        inputs = (inputs - inputs.mean(0)) / inputs.std()
        orders = [torch.randperm(len(given)) for _ in range(16)]  # by epoch
        seconds: dict[str, list[float]] = {loop: [] for loop in LOOPS}
        for _ in range(rounds):  # in turns, so that all see the same machine
            for loop, (train, kind) in LOOPS.items():
                torch.manual_seed(0)
                model = nn.Module()
                model.encode = nn.Sequential(
                    nn.Linear(inputs.shape[1], 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()
                )
                model.head = nn.Linear(256, int(given.max()) + 1)
                start = time.process_time()
                train(model, inputs, given, kind, orders.__getitem__)
                seconds[loop].append(time.process_time() - start)
        for loop, limit in allowed.items():
            ratio = statistics.median(a / b for a, b in zip(seconds[loop], seconds["plc"], strict=True))
            print(f"{name}: {loop} {min(seconds[loop]):.1f} s, plc {min(seconds['plc']):.1f} s")
            limits.at_most(f"{name}, {loop} by plc", ratio, limit, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
