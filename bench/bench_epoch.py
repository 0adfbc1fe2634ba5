"""An epoch of `standard` against the barest PyTorch loop over the same tensors; at most 1.10 times as long.

Time is that of the processor, on one thread, so that other work on the machine counts little.
"""

import statistics
import time
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import frozen
from limits import Limits
from unflip.engine.distributed import Distributed
from unflip.engine.trainer import Trainer, lr_factor
from unflip.methods.base import LabelStore, Standard, TrainContext
from unflip.nn.base import build_network
from unflip.nn.mlp import MLPOptions
from unflip.options import Options
from unflip.progress import Reporter
from unflip.runs.options import OptimizerOptions

PAIRS = 12
LIMIT = 1.10  # an epoch by the bare loop's: at most


def bare_epoch(
    network: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor
) -> float:
    started = time.process_time()
    network.train()
    for indices in torch.randperm(len(inputs)).split(128):
        optimizer.zero_grad()
        F.cross_entropy(network(inputs[indices]), labels[indices]).backward()
        optimizer.step()
    return time.process_time() - started


def main() -> None:
    torch.set_num_threads(1)
    dataset = frozen.dataset()
    rows = torch.arange(len(dataset.given))
    optimizer = OptimizerOptions()
    context = TrainContext(
        10, rows, PAIRS, 0, optimizer.batch_size, partial(lr_factor, optimizer, epochs=PAIRS), torch.device("cpu")
    )
    network = build_network("mlp", MLPOptions(), dataset.source.shape, 10, seed=0)
    store = LabelStore(dataset.given, 10)
    trainer = Trainer(
        Standard(Options(), context), [network], dataset.source, store, optimizer, Distributed("cpu"), Reporter()
    )

    bare = build_network("mlp", MLPOptions(), dataset.source.shape, 10, seed=0)
    bare_optimizer = torch.optim.SGD(bare.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    inputs, labels = dataset.source.fetch(rows), dataset.given
    trainer.train_epoch(1)
    bare_epoch(bare, bare_optimizer, inputs, labels)
    pairs = []
    for epoch in range(2, PAIRS + 2):  # one after the other, so that both see the same machine
        started = time.process_time()
        trainer.train_epoch(epoch)
        pairs.append((time.process_time() - started, bare_epoch(bare, bare_optimizer, inputs, labels)))
    ours, theirs = (float(np.median(column)) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"epoch of standard {ours:.3f} s, bare loop {theirs:.3f} s, {PAIRS} pairs")
    limits = Limits()
    limits.at_most("epoch of standard by bare loop", ratio, LIMIT)
    limits.finish()


if __name__ == "__main__":
    main()
