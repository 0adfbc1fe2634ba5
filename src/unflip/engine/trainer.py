"""The training loop of every method: ``Trainer.fit`` trains all epochs, ``Trainer.train_epoch`` one, top to bottom."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from unflip.compute import derive, generator, prefetched, seeded_layers
from unflip.data.sources import Source
from unflip.engine.checkpoints import EpochProgress
from unflip.engine.distributed import Distributed
from unflip.engine.inference import Observation
from unflip.errors import DivergedError
from unflip.methods.base import Batch, LabelStore, LossOutput, Method, Phase, storage_dtype
from unflip.nn.backbone import Pretrained
from unflip.progress import Reporter
from unflip.runs.options import OptimizerOptions
from unflip.stats.gaussians import NotFiniteError

AfterStep = Callable[[int, EpochProgress], None]
"""Called after every step, with the epoch and its progress."""
_MIN_BATCH = 2  # examples per process that batch normalization needs


@dataclass
class Trainer:
    """Trains the networks of a method, epoch by epoch."""

    method: Method
    """Computes the loss of a batch, and corrects labels between epochs."""
    networks: Sequence[nn.Module]
    """As many as the method needs; each gets its own optimizer."""
    source: Source
    """Inputs of all n examples."""
    labels: LabelStore
    """Labels of all n examples, which the method learns from and may correct."""
    options: OptimizerOptions
    processes: Distributed
    """The device and the processes of the run."""
    reporter: Reporter
    """Receives every step."""
    val_rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """Indices of the validation examples (m,)."""

    def __post_init__(self) -> None:
        self.progress = EpochProgress()
        self.pretrained = [part for network in self.networks for part in pretrained_parts(network)]
        kwargs = self.options.model_dump(include={"lr", "momentum", "nesterov", "weight_decay"})
        optimizers = [torch.optim.SGD(parameter_groups(network), **kwargs) for network in self.networks]
        pairs = [self.processes.setup(*pair) for pair in zip(self.networks, optimizers, strict=True)]
        self.networks, self.optimizers = [network for network, _ in pairs], [optimizer for _, optimizer in pairs]
        self.method.set_networks(self.networks)

    def fit(
        self, first: int = 1, progress: EpochProgress | None = None, after_step: AfterStep | None = None
    ) -> Iterator[dict[str, Any]]:
        """Train all epochs and yield the metrics of each.

        Args:
            first: the epoch to start with, counted from 1.
            progress: the state of that epoch, if it is resumed in the middle.
            after_step: called after every step.
        """
        for epoch in range(first, self.method.context.epochs + 1):
            yield self.train_epoch(epoch, progress, after_step)
            progress = None

    def train_epoch(
        self, epoch: int, progress: EpochProgress | None = None, after_step: AfterStep | None = None
    ) -> dict[str, Any]:
        """Train one epoch, or the rest of it, and return its metrics; arguments as in :meth:`fit`.

        All random numbers derive from the seed, the epoch, the phase and the step, so a resumed epoch takes the same
        steps as one that was never interrupted.
        """
        method, processes = self.method, self.processes
        progress = self.progress = progress or EpochProgress()
        observation = self.observe(progress)
        lr = self._set_lr(epoch - 1)
        with finite(f"in epoch {epoch}"):
            for phase in method.phases(epoch, observation, self.labels):
                frozen = self._begin_phase(epoch, phase)
                learning = [self.optimizers[position] for position in phase.learns]
                for batch in self.batches(epoch, progress.phase, phase, progress.steps):
                    self._set_lr(batch.progress)
                    where = f"in epoch {epoch}, batch {progress.steps + 1}"
                    with finite(where), seeded_layers(batch.seed, processes.device):
                        step = method.loss(batch, phase)
                    for optimizer in learning:
                        optimizer.zero_grad()
                    processes.backward(reduce(add, step.terms.values()))
                    for weight in frozen:
                        weight.grad = None
                    for optimizer in learning:
                        processes.unscale(optimizer)
                    method.before_step()
                    for optimizer in learning:
                        optimizer.step()
                    method.after_step()
                    progress.add(step.terms, self._recorded(step))
                    self.reporter.step(batch.progress)
                    if after_step is not None:
                        after_step(epoch, progress)
                self._end_phase(epoch, phase, observation)
        train_seconds = time.perf_counter() - progress.started
        with finite(f"at the end of epoch {epoch}"):
            figures = method.end_epoch(epoch, observation, self.labels)
        return {
            "epoch": epoch,
            "lr": lr,
            "loss": progress.losses,
            "train_seconds": train_seconds,
            "changed_fraction": changed_fraction(self.labels, method.context.train),
            **figures,
        }

    def observe(self, progress: EpochProgress) -> Observation:
        """Return what the method may read of an epoch."""
        return Observation(self.method, self.source, self.labels, self.processes, self.val_rows, progress)

    def _begin_phase(self, epoch: int, phase: Phase) -> list[nn.Parameter]:
        """Put the networks that learn into training mode; return the weights of frozen pretrained encoders.

        DDP expects a gradient for every weight, so with several processes those of frozen weights are computed and
        dropped.
        """
        for position, network in enumerate(self.networks):
            network.train(position in phase.learns)
        frozen: list[nn.Parameter] = []
        for part in self.pretrained:
            is_frozen = part.is_frozen(epoch, self.method.context.epochs)
            if self.processes.count == 1:
                part.encoder.requires_grad_(not is_frozen)
            if is_frozen:
                part.encoder.eval()
                frozen += part.encoder.parameters()
        return frozen

    def _end_phase(self, epoch: int, phase: Phase, observation: Observation) -> None:
        """Synchronize the processes, and store the probabilities that the phase recorded."""
        for position in phase.learns:
            self.processes.synchronize_buffers(self.networks[position])
        if self.progress.recorded:
            observation.record(self._order(epoch, self.progress.phase, phase), torch.cat(self.progress.recorded))
        self.progress.end_phase(self.mean_losses(epoch))
        observation.cached.clear()

    def _set_lr(self, progress: float) -> float:
        """Set the learning rate after ``progress`` epochs, and return it."""
        lr = self.options.lr * self.method.context.lr_factor(progress)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * group.get("share", 1.0)
        return lr

    def _recorded(self, step: LossOutput) -> Tensor | None:
        """Return the probabilities (b, k) of a step if the method records them."""
        if not self.method.records_probs or step.logits is None:
            return None
        dtype = storage_dtype(len(self.method.context.train) * step.logits.shape[1])
        return step.logits.detach().softmax(1).to(dtype)

    def _order(self, epoch: int, number: int, phase: Phase) -> Tensor:
        return shuffled(phase.indices, generator(self.method.context.seed, "order", epoch, number))

    def batches(self, epoch: int, number: int, phase: Phase, done: int = 0) -> Iterator[Batch]:
        """Yield the batches of phase ``number`` of an epoch but the first ``done``; threads prefetch some of them."""
        seed, count, rank = self.method.context.seed, self.processes.count, self.processes.rank
        shares = cut(self._for_source(self._order(epoch, number, phase)), self.options.batch_size, count, rank)
        extra_shares: Sequence[Tensor | None] = [None] * len(shares)
        if phase.unlabeled is not None:
            lengths = [len(share) for share in shares]
            draws = generator(seed, "unlabelled", epoch, number)
            unlabeled = self._for_source(phase.unlabeled)
            extra_shares = torch.split(repeated(unlabeled, sum(lengths) * count, draws)[rank::count], lengths)

        def make(step: int) -> Batch:  # may run early: labels change only between phases
            step_seed = derive(seed, "step", epoch, number, step, rank)
            progress = epoch - 1 + step / len(shares)
            unlabeled = None
            if (extra := extra_shares[step]) is not None:
                unlabeled = self._batch(extra, phase.views, epoch, progress, derive(step_seed, "unlabelled"))
            return self._batch(shares[step], phase.views, epoch, progress, step_seed, unlabeled)

        return prefetched((partial(make, step) for step in range(done, len(shares))), self.source.prefetch)

    def _for_source(self, indices: Tensor) -> Tensor:
        """Move the indices of a whole phase to where the source needs them, so that no batch waits for the device."""
        return indices.cpu() if self.source.host_indices else indices

    def _batch(
        self, rows: Tensor, views: int, epoch: int, progress: float, seed: int, unlabeled: Batch | None = None
    ) -> Batch:
        if self.source.augments or views > 1:
            inputs = tuple(self.source.view(rows, generator(seed, "view", i)) for i in range(views))
        else:
            inputs = (self.source.fetch(rows),)
        indices = rows.to(self.processes.device)
        return Batch(indices, inputs, self.labels.current[indices], epoch, progress, seed, unlabeled)

    def mean_losses(self, epoch: int) -> dict[str, float]:
        """Average each loss term over the steps and processes; raise DivergedError if a step is not finite."""
        means = {}
        for name, terms in self.progress.terms.items():
            values = self.processes.mean(terms.values)
            broken = ~values.isfinite()
            if bool(broken.any()):
                step = int(broken.nonzero()[0])
                raise DivergedError(f"the loss became {float(values[step])}", f"in epoch {epoch}, batch {step + 1}")
            means[name] = float(values.mean())
        return means

    def check_weights(self, where: str) -> None:
        """Raise DivergedError if weights are not finite, so that such weights are never saved."""
        weights = [weight for network in self.networks for weight in network.parameters()]
        if not bool(torch.stack([weight.isfinite().all() for weight in weights]).all()):  # one wait for the device
            raise DivergedError("the weights became NaN or infinite", where)


def changed_fraction(labels: LabelStore, rows: Tensor) -> float | None:
    """Return the fraction of labels at ``rows`` that differ from the given ones; None before the first change."""
    if not len(labels.history()["index"]) or not len(rows):
        return None
    return float((labels.current[rows] != labels.given[rows]).double().mean())


def pretrained_parts(network: nn.Module) -> list[Pretrained]:
    """Return the pretrained modules of a network: itself, its members, or none."""
    return [part for part in network.modules() if isinstance(part, Pretrained) and part.options.pretrained]


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Return a network's parameters for an optimizer, in groups by ``share``, a factor of the learning rate.

    There is one group with a share of 1, unless parts of the network are pretrained.
    """
    shares: dict[int, float] = {}
    for part in pretrained_parts(network):
        shares |= dict.fromkeys(map(id, part.encoder.parameters()), part.options.backbone_lr_scale)
    groups: dict[float, list[nn.Parameter]] = {}
    for weight in network.parameters():
        groups.setdefault(shares.get(id(weight), 1.0), []).append(weight)
    return [{"params": weights, "share": share} for share, weights in groups.items()]


def lr_factor(options: OptimizerOptions, progress: float, epochs: int) -> float:
    """Return the factor on the learning rate after ``progress`` of ``epochs`` epochs."""
    if options.schedule == "cosine":
        return min(1.0, 0.1 + progress) * (1 + math.cos(math.pi * progress / epochs)) / 2
    return float(options.gamma ** sum(progress >= milestone for milestone in options.milestones))


def shuffled(indices: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``indices`` in random order, on their own device."""
    return indices[torch.randperm(len(indices), generator=generator).to(indices.device)]


def cut(order: Tensor, batch_size: int, processes: int, rank: int) -> tuple[Tensor, ...]:
    """Return this process's share of each batch of an epoch.

    Every process takes the same number of steps of the same sizes, so the mean of their gradients is that of the
    whole batch. For this the order is padded from its own beginning to a multiple of ``processes``, as in torch's
    DistributedSampler. Process r takes every ``processes``-th example starting at r, so interleaving the shares
    restores the order. A last batch too small for batch normalization is merged into the one before it. An epoch that
    is too small repeats its examples; an empty one has no batch.
    """
    if not len(order):
        return ()
    min_size = _MIN_BATCH * processes
    missing = min_size - len(order) if len(order) < min_size else -len(order) % processes
    if missing:
        order = torch.cat([order, order.repeat(-(-missing // len(order)))[:missing]])
    size = max(min_size, batch_size // processes * processes)
    starts = list(range(0, len(order), size))
    if len(starts) > 1 and len(order) - starts[-1] < min_size:
        starts.pop()
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(order)], strict=True)]
    return torch.split(order[rank::processes], [length // processes for length in sizes])


def repeated(indices: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` of ``indices``: as many random permutations of them as needed, one after the other."""
    rounds = -(-count // len(indices))
    return torch.cat([shuffled(indices, generator) for _ in range(rounds)])[:count]


@contextmanager
def finite(where: str) -> Iterator[None]:
    """Turn numerical failures, such as of a Cholesky factorization, into :class:`unflip.errors.DivergedError`."""
    try:
        yield
    except NotFiniteError as error:
        raise DivergedError(str(error), where) from error
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise DivergedError("a covariance could not be factored", where) from error
