"""An epoch of `dividemix` against a bare loop with the same forward and backward passes; at most 1.25 times as long.

The bare loop makes the inputs of those passes as one would by hand (two jittered views, mixed with one another), and
does nothing else that belongs to the method: no labels are refined, guessed or sharpened, no mixture is fitted, no
penalty is computed. The second ratio is to the passes alone, on inputs that lie ready; there the arithmetic between the
passes shows, since a step of this small network takes 4 ms. Processor time of one thread.
"""

import statistics
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frozen
from limits import Limits
from unflip.engine.distributed import Distributed
from unflip.engine.trainer import Trainer, lr_factor
from unflip.methods.base import LabelStore, TrainContext
from unflip.methods.dividemix import DivideMix, DivideMixOptions
from unflip.nn.base import build_network
from unflip.nn.mlp import MLPOptions
from unflip.progress import Reporter
from unflip.runs.options import OptimizerOptions

ROUNDS = 8
LIMIT = 1.25  # an epoch by the bare loop's: at most
BATCH = 128
JITTER = 0.1


def bare_epoch(
    networks: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    inputs: Tensor,
    labels: Tensor,
    labeled: list[int],
    *,
    passes_alone: bool,
) -> float:
    """As many steps for each network as dividemix takes, over as many examples, and a pass over all to divide them."""
    ready = inputs[: 4 * BATCH].clone()
    started = time.process_time()
    for position, count in enumerate(labeled):
        own, other = networks[position].train(), networks[1 - position].eval()
        order, fellows = torch.randperm(len(inputs))[:count].split(BATCH), torch.randperm(len(inputs)).split(BATCH)
        for indices, unlabeled in zip(order, fellows, strict=False):
            size = len(indices)
            if passes_alone:
                views = mixed = ready[: 4 * size]
            else:
                rows = inputs[indices], inputs[unlabeled[:size]]
                views = torch.cat([row + JITTER * torch.randn_like(row) for row in rows for _ in range(2)])
                mixed = 0.7 * views + 0.3 * views[torch.randperm(len(views))]
            with torch.no_grad():
                own(views)
                other(views[2 * size :])
            optimizers[position].zero_grad()
            F.cross_entropy(own(mixed), labels[indices].repeat(4)[: len(mixed)]).backward()
            optimizers[position].step()
    with torch.no_grad():
        for network in networks:
            network.eval()
            for chunk in inputs.split(1024):
                network(chunk)
    return time.process_time() - started


def main() -> None:
    torch.set_num_threads(1)
    dataset = frozen.dataset(jitter=JITTER)
    rows, shape = torch.arange(len(dataset.given)), dataset.source.shape
    optimizer = OptimizerOptions(batch_size=BATCH)
    context = TrainContext(
        10, rows, ROUNDS, 0, BATCH, partial(lr_factor, optimizer, epochs=ROUNDS), torch.device("cpu")
    )
    ours, theirs = ([build_network("mlp", MLPOptions(), shape, 10, seed=seed) for seed in (0, 1)] for _ in range(2))
    trainer = Trainer(
        DivideMix(DivideMixOptions(warmup=1), context),
        ours,
        dataset.source,
        LabelStore(dataset.given, 10),
        optimizer,
        Distributed("cpu"),
        Reporter(),
    )
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4) for net in theirs]
    inputs, labels = dataset.source.fetch(rows), dataset.given
    shares = trainer.train_epoch(1)["labeled"]
    rounds = []
    for epoch in range(2, ROUNDS + 3):  # one after the other, so that all see the same machine
        labeled = [round(share * len(rows)) for share in reversed(shares)]  # each network's part is the other's
        started = time.process_time()
        shares = trainer.train_epoch(epoch)["labeled"]
        seconds = time.process_time() - started
        bare = [bare_epoch(theirs, optimizers, inputs, labels, labeled, passes_alone=alone) for alone in (False, True)]
        rounds.append((seconds, *bare))
    seconds, loop, passes = (float(np.median(column)) for column in zip(*rounds[1:], strict=True))
    ratio, to_passes = (statistics.median(line[0] / line[i] for line in rounds[1:]) for i in (1, 2))
    print(f"epoch of dividemix {seconds:.3f} s, bare loop {loop:.3f} s, {ROUNDS} times")
    print(f"passes alone {passes:.3f} s, ratio {to_passes:.3f}")
    limits = Limits()
    limits.at_most("epoch of dividemix by bare loop", ratio, LIMIT)
    limits.finish()


if __name__ == "__main__":
    main()
