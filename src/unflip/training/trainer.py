"""Trainer: the one loop. Epochs, phases and steps for every method; what it knows of methods is their contract."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from unflip.data.source import Source
from unflip.errors import DivergedError
from unflip.labels.store import LabelStore
from unflip.methods.base import Batch, Method, Phase, Scan, bare
from unflip.networks.base import Network
from unflip.seeding import derive, generator
from unflip.training.batches import cut, prepared, repeated, shuffled
from unflip.training.config import OptimizerOptions
from unflip.training.passes import DIVERGED_HINT, scan
from unflip.training.processes import Processes
from unflip.training.progress import Reporter
from unflip.training.standing import Standing


class Trainer:
    """Trains a method's networks, one epoch a call."""

    def __init__(
        self,
        method: Method,
        networks: Sequence[Network],
        source: Source,
        labels: LabelStore,
        options: OptimizerOptions,
        processes: Processes,
        reporter: Reporter,
        val_rows: Tensor | None = None,
    ) -> None:
        self.method = method
        self.source = source
        self.labels = labels
        self.options = options
        self.processes = processes
        self.reporter = reporter
        self.val_rows = method.setting.train[:0] if val_rows is None else val_rows
        self.networks: list[torch.nn.Module] = []
        self.optimizers: list[Any] = []
        for network in networks:
            optimizer = torch.optim.SGD(
                network.parameters(),
                lr=options.lr,
                momentum=options.momentum,
                nesterov=options.nesterov,
                weight_decay=options.weight_decay,
            )
            wrapped, wrapped_optimizer = processes.setup(network, optimizer)
            self.networks.append(wrapped)
            self.optimizers.append(wrapped_optimizer)
        method.networks = self.networks

    def run_epoch(
        self, epoch: int, standing: Standing | None = None, after_step: Callable[[int, Standing], None] | None = None
    ) -> dict[str, Any]:
        """Train one epoch (from 1), or the rest of it, let the method do its part, and return the figures.

        ``after_step`` is called after every step, with the epoch and how it stands.
        """
        standing = standing or Standing()
        lr = self.options.lr * self.method.setting.lr_factor(epoch)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        observation = self._observe(standing)
        for phase in self.method.phases(epoch, observation, self.labels):
            self._run_phase(epoch, phase, standing, observation, after_step)
            observation.forget_features()
        train_seconds = time.perf_counter() - standing.started
        figures = self.method.end_epoch(epoch, observation, self.labels)
        return {"epoch": epoch, "lr": lr, "loss": standing.losses, "train_seconds": train_seconds, **figures}

    def _observe(self, standing: Standing) -> "Observation":
        return Observation(self, standing)

    def _run_phase(
        self,
        epoch: int,
        phase: Phase,
        standing: Standing,
        observation: "Observation",
        after_step: Callable[[int, Standing], None] | None,
    ) -> None:
        for position, network in enumerate(self.networks):
            network.train(position in phase.learns)
        learning = [self.optimizers[position] for position in phase.learns]
        backward = self.processes.backward
        records = self.method.records_probs
        number = standing.phase
        for batch in self._batches(epoch, number, phase, standing.steps):
            self.processes.seed_layers(batch.seed)
            step = self.method.loss(batch, phase)
            for optimizer in learning:
                optimizer.zero_grad()
            backward(reduce(add, step.terms.values()))
            for optimizer in learning:
                optimizer.step()
            standing.terms.append({name: term.detach() for name, term in step.terms.items()})
            if records and step.logits is not None:
                standing.logits.append(step.logits.detach())
            self.reporter.step(batch.progress)
            if after_step is not None:
                after_step(epoch, standing)
        for position in phase.learns:
            self.processes.synchronise_buffers(self.networks[position])
        if standing.logits:
            observation.record(self._order(epoch, number, phase), torch.cat(standing.logits))
        standing.end_phase(self.mean_losses(epoch, standing))

    def _order(self, epoch: int, number: int, phase: Phase) -> Tensor:
        return shuffled(phase.indices, generator(self.method.setting.seed, "order", epoch, number))

    def _batches(self, epoch: int, number: int, phase: Phase, done: int = 0) -> Iterator[Batch]:
        """Yield the batches of a phase after the first ``done`` ones."""
        seed, count, rank = self.method.setting.seed, self.processes.count, self.processes.rank
        shares = cut(self._order(epoch, number, phase), self.options.batch_size, count, rank)
        fellows: Sequence[Tensor | None] = [None] * len(shares)
        if phase.unlabelled is not None:
            lengths = [len(share) for share in shares]
            draws = generator(seed, "unlabelled", epoch, number)
            fellows = torch.split(repeated(phase.unlabelled, sum(lengths) * count, draws)[rank::count], lengths)

        def make(step: int) -> Batch:  # labels change between phases only, so it does not matter when this is done
            step_seed = derive(seed, "step", epoch, number, step, rank)
            progress = epoch - 1 + step / len(shares)
            unlabelled = None
            if (fellow := fellows[step]) is not None:
                unlabelled = self._batch(fellow, phase.views, epoch, progress, derive(step_seed, "unlabelled"))
            return self._batch(shares[step], phase.views, epoch, progress, step_seed, unlabelled)

        return prepared((partial(make, step) for step in range(done, len(shares))), self.source.ahead)

    def _batch(
        self, indices: Tensor, views: int, epoch: int, progress: float, seed: int, unlabelled: Batch | None = None
    ) -> Batch:
        if self.source.augments or views > 1:
            inputs = tuple(self.source.view(indices, generator(seed, "view", i)) for i in range(views))
        else:
            inputs = (self.source.fetch(indices),)
        return Batch(indices, inputs, self.labels.current[indices], epoch, progress, seed, unlabelled)

    def mean_losses(self, epoch: int, standing: Standing) -> dict[str, float]:
        """Average each term over the phase's steps, and over processes; one look at the device for all of them."""
        means = {}
        for name in standing.terms[0] if standing.terms else ():
            values = self.processes.mean(torch.stack([step[name] for step in standing.terms]))  # all see what one saw
            wrong = ~values.isfinite()
            if bool(wrong.any()):
                raise DivergedError(
                    f"the loss became {float(values[wrong][0])} in epoch {epoch}, batch {int(wrong.nonzero()[0]) + 1}; "
                    f"{DIVERGED_HINT}"
                )
            means[name] = float(values.mean())
        return means


class Observation:
    """What the trainer saw of one epoch; see :class:`unflip.methods.base.Observed`."""

    def __init__(self, trainer: Trainer, standing: Standing) -> None:
        self._trainer = trainer
        self._standing = standing
        self.phases_done = standing.phase
        self._features: dict[int, Tensor] = {}

    def record(self, order: Tensor, logits: Tensor) -> None:
        """Keep the softmax of a training pass that went through ``order``."""
        train = self._trainer.method.setting.train
        probs = self._trainer.processes.interleave(logits.softmax(1), len(order))
        position = torch.empty(len(self._trainer.labels), dtype=torch.long, device=train.device)
        position[train] = torch.arange(len(train), device=train.device)
        before = self._standing.probs
        # a copy: a method may have kept what it was shown after the phase before
        self._standing.probs = probs.new_zeros(len(train), probs.shape[1]) if before is None else before.clone()
        self._standing.probs[position[order]] = probs

    @property
    def probs(self) -> Tensor:
        """Softmax of the training passes."""
        if self._standing.probs is None:
            raise RuntimeError(f"{type(self._trainer.method).__name__} reads probs without records_probs = True")
        return self._standing.probs

    def features(self, network: int = 0) -> Tensor:
        """Features of the training examples, computed once until the networks learn again."""
        if network not in self._features:
            self._features[network] = self._scan(network, self._trainer.method.setting.train).features
        return self._features[network]

    def logits(self, network: int = 0) -> Tensor:
        """Logits of the training examples, by the head as it is, without keeping the features."""
        if network not in self._features:
            return self._scan(network, self._trainer.method.setting.train, keep_features=False).logits
        with torch.no_grad():  # calibration trains heads between phases
            logits: Tensor = bare(self._trainer.networks[network]).head(self._features[network])
            return logits.float()

    def validation(self, network: int = 0) -> tuple[Scan, Tensor] | None:
        """Features, logits and given labels of the validation examples."""
        rows = self._trainer.val_rows
        if not len(rows):
            return None
        return self._scan(network, rows), self._trainer.labels.given[rows]

    def forget_features(self) -> None:
        """Drop what a phase of training has made out of date."""
        self._features = {}

    def _scan(self, network: int, rows: Tensor, *, keep_features: bool = True) -> Scan:
        trainer = self._trainer
        return scan(trainer.networks[network], trainer.source, rows, trainer.processes, keep_features=keep_features)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor."""
        return self._trainer.processes.broadcast(tensor)
