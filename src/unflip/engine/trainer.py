"""Trainer: the one training loop, for every method and every run; `train_epoch` is an epoch, top to bottom."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from unflip.data.sources import Source
from unflip.engine.checkpoints import EpochProgress
from unflip.engine.distributed import Distributed
from unflip.engine.inference import forward
from unflip.errors import DivergedError
from unflip.methods.base import Batch, LossOutput, Method, NetworkOutputs, Phase
from unflip.methods.labels import LabelStore
from unflip.nn.backbone import parameter_groups, pretrained_parts
from unflip.nn.base import Network, unwrap
from unflip.parallel import prefetched
from unflip.progress import Reporter
from unflip.runs.options import OptimizerOptions
from unflip.seeding import derive, generator
from unflip.stats.rows import NotFiniteError, storage_dtype

AfterStep = Callable[[int, EpochProgress], None]
"""Called after every step, with the epoch and its progress."""
_LEAST = 2  # examples per process that batch normalization needs
_HINT = "try a smaller learning rate (--set optimizer.lr=...)"


class Trainer:
    """Trains a method's networks, epoch by epoch. It knows methods only by their contract.

    Args:
        method: what to learn from a batch, and what to do between epochs.
        networks: as many as the method needs; each gets its own optimizer.
        source: inputs of all examples, by row of ``labels``.
        labels: what the method learns from and may correct.
        options: of the optimizers.
        processes: the device, and the other processes of the run.
        reporter: receives every step.
        val_rows: rows of the validation examples (m,); none by default.
    """

    def __init__(
        self,
        method: Method,
        networks: Sequence[Network],
        source: Source,
        labels: LabelStore,
        options: OptimizerOptions,
        processes: Distributed,
        reporter: Reporter,
        val_rows: Tensor | None = None,
    ) -> None:
        self.method = method
        self.source = source
        self.labels = labels
        self.options = options
        self.processes = processes
        self.reporter = reporter
        self.val_rows = method.context.train[:0] if val_rows is None else val_rows
        self.progress = EpochProgress()
        self.networks: list[torch.nn.Module] = []
        self.optimizers: list[Any] = []
        for network in networks:
            optimizer = torch.optim.SGD(
                parameter_groups(network),
                lr=options.lr,
                momentum=options.momentum,
                nesterov=options.nesterov,
                weight_decay=options.weight_decay,
            )
            wrapped, wrapped_optimizer = processes.setup(network, optimizer)
            self.networks.append(wrapped)
            self.optimizers.append(wrapped_optimizer)
        self._pretrained = [part for network in networks for part in pretrained_parts(network)]
        method.networks = self.networks

    def fit(
        self, first: int = 1, progress: EpochProgress | None = None, after_step: AfterStep | None = None
    ) -> Iterator[dict[str, Any]]:
        """Train all epochs from ``first`` on, and yield the metrics of each as soon as it is done.

        Args:
            first: the epoch to begin with, counted from 1.
            progress: how far that epoch has got, if a checkpoint was written in the middle of it.
            after_step: called after every step.
        """
        for epoch in range(first, self.method.context.epochs + 1):
            yield self.train_epoch(epoch, progress, after_step)
            progress = None

    def train_epoch(
        self, epoch: int, progress: EpochProgress | None = None, after_step: AfterStep | None = None
    ) -> dict[str, Any]:
        """Train one epoch (counted from 1) or the rest of it, let the method act on labels, and return the metrics.

        All randomness derives from the seed, the epoch, the phase and the step, so that a resumed epoch takes the same
        steps as an undisturbed one.
        """
        method, processes = self.method, self.processes
        progress = self.progress = progress or EpochProgress()
        observation = Observation(self, progress)
        lr = self._set_lr(epoch - 1)
        with finite(f"in epoch {epoch}"):
            for phase in method.phases(epoch, observation, self.labels):
                frozen = self._begin_phase(epoch, phase)
                learning = [self.optimizers[position] for position in phase.learns]
                for batch in self._batches(epoch, progress.phase, phase, progress.steps):
                    self._set_lr(batch.progress)
                    processes.seed_layers(batch.seed)
                    with finite(f"in epoch {epoch}, batch {progress.steps + 1}"):
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
            "noise_rate_estimate": self.labels.noise_rate(method.context.train),
            **figures,
        }

    def _begin_phase(self, epoch: int, phase: Phase) -> list[torch.nn.Parameter]:
        """Put the networks that learn into training mode; return weights of pretrained encoders that stay frozen.

        In their first epochs pretrained encoders wait for their heads. Several processes expect every gradient, so
        those of frozen weights are computed and dropped.
        """
        for position, network in enumerate(self.networks):
            network.train(position in phase.learns)
        frozen: list[torch.nn.Parameter] = []
        for part in self._pretrained:
            waits = part.is_frozen(epoch, self.method.context.epochs)
            if self.processes.count == 1:
                part.encoder.requires_grad_(not waits)
            if waits:
                part.encoder.eval()
                frozen += part.encoder.parameters()
        return frozen

    def _end_phase(self, epoch: int, phase: Phase, observation: "Observation") -> None:
        """Make the processes agree, and keep what the phase recorded."""
        for position in phase.learns:
            self.processes.synchronize_buffers(self.networks[position])
        if self.progress.recorded is not None:
            observation.record(self._order(epoch, self.progress.phase, phase), self.progress.recorded.rows)
        self.progress.end_phase(self.mean_losses(epoch))
        observation.forget_features()

    def _set_lr(self, progress: float) -> float:
        """Set the learning rate that applies after ``progress`` epochs, and return it."""
        lr = self.options.lr * self.method.context.lr_factor(progress)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * group.get("share", 1.0)  # the heads of networks have no share
        return lr

    def _recorded(self, step: LossOutput) -> Tensor | None:
        """Return what is recorded of a step: its probabilities, if the method asks for them."""
        if not self.method.records_probs or step.logits is None:
            return None
        kind = storage_dtype(len(self.method.context.train) * step.logits.shape[1])
        return step.logits.detach().softmax(1).to(kind)

    def _order(self, epoch: int, number: int, phase: Phase) -> Tensor:
        return shuffled(phase.indices, generator(self.method.context.seed, "order", epoch, number))

    def _batches(self, epoch: int, number: int, phase: Phase, done: int = 0) -> Iterator[Batch]:
        """Yield the batches of a phase, skipping the first ``done``; some are fetched ahead of their use."""
        seed, count, rank = self.method.context.seed, self.processes.count, self.processes.rank
        shares = cut(self._for_source(self._order(epoch, number, phase)), self.options.batch_size, count, rank)
        extra_shares: Sequence[Tensor | None] = [None] * len(shares)
        if phase.unlabeled is not None:
            lengths = [len(share) for share in shares]
            draws = generator(seed, "unlabelled", epoch, number)
            unlabeled = self._for_source(phase.unlabeled)
            extra_shares = torch.split(repeated(unlabeled, sum(lengths) * count, draws)[rank::count], lengths)

        def make(step: int) -> Batch:  # labels change only between phases, so this may run early
            step_seed = derive(seed, "step", epoch, number, step, rank)
            progress = epoch - 1 + step / len(shares)
            unlabeled = None
            if (extra := extra_shares[step]) is not None:
                unlabeled = self._batch(extra, phase.views, epoch, progress, derive(step_seed, "unlabelled"))
            return self._batch(shares[step], phase.views, epoch, progress, step_seed, unlabeled)

        return prefetched((partial(make, step) for step in range(done, len(shares))), self.source.prefetch)

    def _for_source(self, indices: Tensor) -> Tensor:
        """Return the rows of a phase where the source looks them up: moved at once, so that no batch waits."""
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
        """Average each term over the phase's steps and the processes; raise if one is not finite."""
        means = {}
        for name, column in self.progress.terms.items():
            values = self.processes.mean(column.rows)  # same everywhere
            wrong = ~values.isfinite()
            if bool(wrong.any()):
                where = f"in epoch {epoch}, batch {int(wrong.nonzero()[0]) + 1}"
                raise diverged(f"the loss became {float(values[wrong][0])}", where)
            means[name] = float(values.mean())
        return means

    def check_weights(self, where: str) -> None:
        """Raise if weights are not finite, so that they are never saved."""
        weights = [weight for network in self.networks for weight in network.parameters()]
        if not bool(torch.stack([weight.isfinite().all() for weight in weights]).all()):  # the device is asked once
            raise diverged("the weights became NaN or infinite", where)


class Observation:
    """What the trainer observed in one epoch, for the method to read: :class:`unflip.methods.base.EpochOutputs`."""

    def __init__(self, trainer: Trainer, progress: EpochProgress) -> None:
        self._trainer = trainer
        self._progress = progress
        self.phases_done = progress.phase
        self._features: dict[int, Tensor] = {}

    def record(self, order: Tensor, recorded: Tensor) -> None:
        """Keep the probabilities that this process recorded in a pass which visited the examples in ``order``."""
        train = self._trainer.method.context.train
        position = torch.empty(len(self._trainer.labels), dtype=torch.long, device=train.device)
        position[train] = torch.arange(len(train), device=train.device)
        before = self._progress.probs
        # a copy: the method may have kept the tensor of an earlier phase
        self._progress.probs = recorded.new_zeros(len(train), recorded.shape[1]) if before is None else before.clone()
        self._progress.probs[position[order]] = self._trainer.processes.interleave(recorded, len(order))

    @property
    def probs(self) -> Tensor:
        """Softmax of the training passes."""
        if self._progress.probs is None:
            raise RuntimeError(f"{type(self._trainer.method).__name__} reads probs without records_probs = True")
        return self._progress.probs

    def features(self, network: int = 0) -> Tensor:
        """Features of the training examples, cached until the networks are trained again."""
        if network not in self._features:
            rows = self._trainer.method.context.train
            self._features[network] = self._forward(self._trainer.networks[network], rows).features
        return self._features[network]

    def logits(self, network: int = 0) -> Tensor:
        """Logits of the training examples from the current head, without keeping the features."""
        if network not in self._features:
            return self.outputs(self._trainer.networks[network], self._trainer.method.context.train)
        with torch.no_grad():  # calibration trains heads between phases
            logits: Tensor = unwrap(self._trainer.networks[network]).head(self._features[network])
            return logits.float()

    def validation(self, network: int = 0) -> tuple[NetworkOutputs, Tensor] | None:
        """Features, logits and given labels of the validation examples; None if there are none."""
        rows = self._trainer.val_rows
        if not len(rows):
            return None
        return self._forward(self._trainer.networks[network], rows), self._trainer.labels.initial[rows]

    def outputs(self, network: nn.Module, rows: Tensor) -> Tensor:
        """Logits of any network."""
        return self._forward(network, rows, keep_features=False).logits

    def inputs(self, rows: Tensor) -> Tensor:
        """Inputs without augmentation."""
        return self._trainer.source.fetch(rows)

    def forget_features(self) -> None:
        """Drop cached features after a phase has changed the networks."""
        self._features = {}

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor."""
        return self._trainer.processes.broadcast(tensor)

    def _forward(self, network: nn.Module, rows: Tensor, *, keep_features: bool = True) -> NetworkOutputs:
        return forward(network, self._trainer.source, rows, self._trainer.processes, keep_features=keep_features)


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
    least = _LEAST * processes
    missing = least - len(order) if len(order) < least else -len(order) % processes
    if missing:
        order = torch.cat([order, order.repeat(-(-missing // len(order)))[:missing]])
    size = max(least, batch_size // processes * processes)
    starts = list(range(0, len(order), size))
    if len(starts) > 1 and len(order) - starts[-1] < least:
        starts.pop()
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(order)], strict=True)]
    return torch.split(order[rank::processes], [length // processes for length in sizes])


def repeated(indices: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` of ``indices``: as many random permutations of them as needed, one after the other."""
    rounds = -(-count // len(indices))
    return torch.cat([shuffled(indices, generator) for _ in range(rounds)])[:count]


def diverged(what: str, where: str) -> DivergedError:
    """Return the error that training has diverged: what became of it, and where."""
    return DivergedError(f"{what} {where}; {_HINT}")


@contextmanager
def finite(where: str) -> Iterator[None]:
    """Turn numerical failures, such as a matrix that cannot be factored, into :class:`unflip.errors.DivergedError`."""
    try:
        yield
    except NotFiniteError as error:
        raise diverged(str(error), where) from error
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise diverged("a covariance could not be factored", where) from error
