"""Posteriors: eta(x) of cleanly labeled data, estimated with the library's own trainer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unflip.data.options import IN_SAMPLE
from unflip.data.sources import Source
from unflip.engine.distributed import Distributed
from unflip.engine.inference import forward
from unflip.engine.trainer import Trainer
from unflip.methods.base import EpochOutputs, Standard, TrainContext
from unflip.methods.labels import LabelStore
from unflip.nn.base import build_network, initial_seed
from unflip.nn.mlp import MLPOptions
from unflip.options import Options
from unflip.progress import Reporter, make_reporter
from unflip.runs.options import OptimizerOptions
from unflip.seeding import derive, generator

FOLDS = 5
PosteriorEstimator = Callable[[Source, Tensor, int, str], Tensor]
"""(inputs, clean labels, number of classes, CROSS_FIT or IN_SAMPLE) -> class probabilities (n, k)."""
EPOCHS = 10  # per fold; the released generator trains for 25 epochs on all data


class Recorded(Standard):
    """Cross-entropy that keeps the softmax of the training passes."""

    records_probs = True

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Keep the probabilities."""
        self.last_probs = observed.probs
        return {}


@dataclass(frozen=True)
class PosteriorFit:
    """How posteriors are estimated: with which network, for how long, on which device."""

    network: str
    network_options: Options
    optimizer: OptimizerOptions
    seed: int
    processes: Distributed
    reporter: Reporter
    epochs: int = EPOCHS

    def __call__(self, source: Source, clean: Tensor, num_classes: int, kind: str) -> Tensor:
        """Return the class probabilities (n, k) of all examples in ``source``.

        ``cross-fit``: each of five folds is predicted by a network trained on the other four, so no example's own
        label makes its prediction overconfident; then one common temperature is fitted to the clean labels (Guo et
        al. 2017). ``in-sample``, as in the released generator: the training-pass softmax in the last epoch of one
        network trained on all examples.
        """
        source = source.to(self.processes.device)
        clean = clean.to(self.processes.device)
        everything = torch.arange(len(clean), device=clean.device)
        if kind == IN_SAMPLE:
            return self._train(source, clean, num_classes, everything, "in-sample posterior").last_probs.float().cpu()
        fold = torch.randperm(len(clean), generator=generator(self.seed, "folds")).to(clean.device) % FOLDS
        logits = torch.zeros(len(clean), num_classes, device=clean.device)
        for number in range(FOLDS):
            held_out = everything[fold == number]
            title = f"posterior, fold {number + 1} of {FOLDS}"
            method = self._train(source, clean, num_classes, everything[fold != number], title, number)
            logits[held_out] = forward(method.networks[0], source, held_out, self.processes).logits
        return (logits.double() / temperature(logits, clean)).softmax(1).float().cpu()

    def _train(
        self, source: Source, labels: Tensor, num_classes: int, rows: Tensor, title: str, number: int = 0
    ) -> Recorded:
        """Train on the examples at ``rows``; ``number`` is that of the fold, from 0, which sets the seed."""
        seed = derive(self.seed, "posterior", number)
        context = TrainContext(
            num_classes=num_classes,
            train=rows,
            epochs=self.epochs,
            seed=seed,
            batch_size=self.optimizer.batch_size,
            lr_factor=lambda progress: self.optimizer.lr_factor(progress, self.epochs),
            device=self.processes.device,
        )
        method = Recorded(Options(), context)
        network = build_network(self.network, self.network_options, source.shape, num_classes, initial_seed(seed, 0))
        store = LabelStore(labels, num_classes)
        trainer = Trainer(method, [network], source, store, self.optimizer, self.processes, self.reporter)
        with self.reporter:
            self.reporter.start(title, self.epochs, 1)
            for line in trainer.fit():
                self.reporter.epoch(line)
        return method


def posterior_fit(seed: int, processes: Distributed, *, quiet: bool) -> PosteriorFit:
    """Return how posteriors are estimated, whatever the run that they are for: the noise must not depend on it."""
    if processes.precision != "float32":
        processes = Distributed(processes.device.type)
    reporter = make_reporter(quiet or not processes.is_first)
    return PosteriorFit("mlp", MLPOptions(), OptimizerOptions(), seed, processes, reporter)


def temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T > 0 that minimizes the cross-entropy of ``softmax(logits / T)``, within [0.01, 100].

    The cross-entropy is convex in b = 1 / T with derivative ``mean(sum_j p_j z_j - z_y)``, so the best b is where that
    changes sign; it is found by bisection on log b.
    """
    logits = logits.double()
    own = logits.gather(1, labels[:, None])[:, 0]
    low, high = -2.0, 2.0  # log10 b
    for _ in range(40):
        middle = (low + high) / 2
        slope = float(((logits * 10**middle).softmax(1).mul(logits).sum(1) - own).mean())
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(10 ** -((low + high) / 2))
