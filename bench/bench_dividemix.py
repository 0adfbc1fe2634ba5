"""An epoch of `dividemix` against a bare loop with the same forward and backward passes; at most 1.25 times as long."""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frozen
from unflip.data.dataset import DataOptions, open_dataset
from unflip.labels.store import LabelStore
from unflip.methods.base import Setting
from unflip.methods.dividemix import DivideMix, DivideMixOptions
from unflip.networks.base import build_network
from unflip.networks.mlp import MLPOptions
from unflip.training.config import OptimizerOptions
from unflip.training.processes import Processes
from unflip.training.progress import Reporter
from unflip.training.trainer import Trainer

PAIRS = 4
LIMIT = 1.25
BATCH = 128


def bare_epoch(
    networks: list[nn.Module],
    optimizers: list[torch.optim.Optimizer],
    inputs: Tensor,
    labels: Tensor,
    labelled: list[int],
) -> float:
    """For each network as many steps as dividemix takes, over as many examples, and a pass over all to divide them."""
    started = time.process_time()
    for position, count in enumerate(labelled):
        own, other = networks[position].train(), networks[1 - position].eval()
        for indices in torch.randperm(len(inputs))[:count].split(BATCH):
            views = inputs[indices].repeat(4, 1)  # two of labelled, two of unlabelled examples
            with torch.no_grad():
                own(views)
                other(views[: len(views) // 2])
            optimizers[position].zero_grad()
            F.cross_entropy(own(views), labels[indices].repeat(4)).backward()
            optimizers[position].step()
    with torch.no_grad():
        for network in networks:
            network.eval()
            for chunk in inputs.split(1024):
                network(chunk)
    return time.process_time() - started


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        path, label_path = frozen.features(into=Path(temporary))
        options = DataOptions(
            path=str(path), labels=str(label_path), take=frozen.NUM_EXAMPLES, val_fraction=0.0, jitter=0.1
        )
        dataset = open_dataset(options, seed=0)
    rows, shape = torch.arange(len(dataset.given)), dataset.source.shape
    optimizer = OptimizerOptions(batch_size=BATCH)
    setting = Setting(10, rows, PAIRS, 0, BATCH, optimizer.lr_factor, torch.device("cpu"))
    ours, theirs = ([build_network("mlp", MLPOptions(), shape, 10, seed=seed) for seed in (0, 1)] for _ in range(2))
    trainer = Trainer(
        DivideMix(DivideMixOptions(warmup=1), setting),
        ours,
        dataset.source,
        LabelStore(dataset.given, 10),
        optimizer,
        Processes("cpu"),
        Reporter(),
    )
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4) for net in theirs]
    inputs, labels = dataset.source.fetch(rows), dataset.given
    shares = trainer.run_epoch(1)["labelled"]
    pairs = []
    for epoch in range(2, PAIRS + 3):  # one after the other, so that both see the same machine
        labelled = [round(share * len(rows)) for share in reversed(shares)]  # each network's part is the other's
        started = time.process_time()
        shares = trainer.run_epoch(epoch)["labelled"]
        seconds = time.process_time() - started
        pairs.append((seconds, bare_epoch(theirs, optimizers, inputs, labels, labelled)))
    pairs = pairs[1:]
    medians = [float(np.median(column)) for column in zip(*pairs, strict=True)]
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"epoch of dividemix {medians[0]:.3f} s, bare loop {medians[1]:.3f} s, ratio {ratio:.3f} (limit {LIMIT}), "
        f"{PAIRS} pairs"
    )


if __name__ == "__main__":
    main()
