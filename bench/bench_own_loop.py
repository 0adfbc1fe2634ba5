"""MDDC and CDDC in a plain PyTorch loop (examples/own_loop.py) against PLC in the same loop: how many times as long.

With features of all examples computed after each epoch, as in our own runs, and recorded in passing. Time is that of
the processor, on one thread, so that other work on the machine counts little.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import frozen
from limits import Limits

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import own_loop

ROUNDS = 3
LOOPS: dict[str, dict[str, Any]] = {
    "plc": {"kind": None},
    "mddc": {"kind": "mean"},
    "cddc": {"kind": "covariance"},
    "mddc, recorded": {"kind": "mean", "recorded": True},
    "cddc, recorded": {"kind": "covariance", "recorded": True},
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
            for loop, options in LOOPS.items():
                torch.manual_seed(0)
                model = nn.Module()
                model.encode = nn.Sequential(
                    nn.Linear(inputs.shape[1], 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()
                )
                model.head = nn.Linear(256, int(given.max()) + 1)
                start = time.process_time()
                own_loop.train(model, inputs, given, order=orders.__getitem__, **options)
                seconds[loop].append(time.process_time() - start)
        for loop, limit in allowed.items():
            ratio = statistics.median(a / b for a, b in zip(seconds[loop], seconds["plc"], strict=True))
            print(f"{name}: {loop} {min(seconds[loop]):.1f} s, plc {min(seconds['plc']):.1f} s")
            limits.at_most(f"{name}, {loop} by plc", ratio, limit, "{:.2f}")
    limits.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
