"""Posteriors for pmd noise: read, or estimated by networks that are trained for it."""

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from unflip.compute import derive, generator
from unflip.data.corrupt import given_posterior, needs_posterior
from unflip.data.dataset import Dataset
from unflip.data.options import IN_SAMPLE, NoiseOptions
from unflip.data.sources import Source
from unflip.engine.distributed import Distributed
from unflip.engine.inference import forward
from unflip.engine.trainer import Trainer, lr_factor
from unflip.methods.base import LabelStore, Standard, TrainContext
from unflip.nn.base import build_network, initial_seed
from unflip.nn.mlp import MLPOptions
from unflip.options import Options
from unflip.progress import Reporter, make_reporter
from unflip.runs.options import OptimizerOptions

FOLDS = 5
EPOCHS = 10  # per fold; the released generator trains one network for 25 epochs


def find_posterior(
    data: Dataset, noise: NoiseOptions, seed: int, processes: Distributed, *, quiet: bool | None
) -> Tensor | None:
    """Return the posteriors (n, k) that a noise recipe needs, read or estimated; None if it needs none.

    They are estimated in float32, so that the noise does not depend on the precision of the run.
    """
    if not needs_posterior(noise):
        return None
    if (given := given_posterior(noise)) is not None:
        return given
    if processes.precision != "float32":
        processes = Distributed(processes.device.type)
    fit = PosteriorFit(seed, processes, make_reporter(quiet))
    return fit(data.source, data.truth, data.num_classes, noise.posterior)


@dataclass(frozen=True)
class PosteriorFit:
    """Estimates posteriors with an MLP; see :meth:`__call__`."""

    seed: int
    processes: Distributed
    reporter: Reporter
    network: MLPOptions = field(default_factory=MLPOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    epochs: int = EPOCHS

    def __call__(self, source: Source, clean: Tensor, num_classes: int, kind: str) -> Tensor:
        """Return the class probabilities (n, k) of all examples.

        Args:
            source: inputs of the n examples.
            clean: their true classes (n,).
            num_classes: the number of classes k.
            kind: ``cross-fit``: each of five folds is predicted by a network trained on the other four, then one
                temperature is fitted to the clean labels (Guo et al. 2017). ``in-sample``, as in the released
                generator: the probabilities of the training passes in the last epoch of one network.
        """
        source, clean = source.to(self.processes.device), clean.to(self.processes.device)
        rows = torch.arange(len(clean), device=clean.device)
        if kind == IN_SAMPLE:
            probs = self._train(source, clean, num_classes, rows, "in-sample posterior").progress.probs
            assert probs is not None
            return probs.float().cpu()
        fold = torch.randperm(len(clean), generator=generator(self.seed, "folds")).to(clean.device) % FOLDS
        logits = torch.zeros(len(clean), num_classes, device=clean.device)
        for number in range(FOLDS):
            held_out, title = rows[fold == number], f"posterior, fold {number + 1} of {FOLDS}"
            (network,) = self._train(source, clean, num_classes, rows[fold != number], title, number).networks
            logits[held_out] = forward(network, source, held_out, self.processes).logits
        return (logits.double() / temperature(logits, clean)).softmax(1).float().cpu()

    def _train(
        self, source: Source, labels: Tensor, num_classes: int, rows: Tensor, title: str, number: int = 0
    ) -> Trainer:
        """Train on the examples at ``rows``; the seed depends on the ``number`` of the fold."""
        seed, size = derive(self.seed, "posterior", number), self.optimizer.batch_size
        schedule = partial(lr_factor, self.optimizer, epochs=self.epochs)
        context = TrainContext(num_classes, rows, self.epochs, seed, size, schedule, self.processes.device)
        method = Standard(Options(), context)
        method.records_probs = True
        network = build_network("mlp", self.network, source.shape, num_classes, initial_seed(seed, 0))
        store = LabelStore(labels, num_classes)
        trainer = Trainer(method, [network], source, store, self.optimizer, self.processes, self.reporter)
        with self.reporter:
            self.reporter.start(title, self.epochs, 1)
            for line in trainer.fit():
                self.reporter.epoch(line)
        return trainer


def temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T > 0 that minimizes the cross-entropy of ``softmax(logits / T)``, within [0.01, 100].

    The cross-entropy is convex in b = 1 / T with derivative ``mean(sum_j p_j z_j - z_y)``. Its root is found by
    bisection on log b.

    Args:
        logits: of n examples (n, k).
        labels: their true classes (n,).
    """
    logits = logits.double()
    own = logits.gather(1, labels[:, None])[:, 0]
    low, high = -2.0, 2.0  # log10 b
    for _ in range(40):
        middle = (low + high) / 2
        slope = float(((logits * 10**middle).softmax(1).mul(logits).sum(1) - own).mean())
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(10 ** -((low + high) / 2))
