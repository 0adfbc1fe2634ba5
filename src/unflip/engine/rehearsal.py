"""Rehearsal: a few steps of each kind of epoch, to show what a run would do and how long it would take."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unflip.data.dataset import Dataset
from unflip.data.options import IN_SAMPLE
from unflip.data.sources import Source
from unflip.engine.checkpoints import EpochProgress
from unflip.engine.distributed import start_processes
from unflip.engine.evaluation import Truth
from unflip.engine.inference import scan
from unflip.engine.posterior import FOLDS, PosteriorFit, posterior_fit
from unflip.engine.prepare import make_trainer, prepare_data
from unflip.engine.trainer import Observation, Trainer, cut, finite
from unflip.methods.base import CALIBRATED, Batch, Phase, Scan
from unflip.progress import Reporter, duration
from unflip.runs.config import RunConfig
from unflip.runs.options import Execution
from unflip.seeding import generator

_STEPS_FOR = 1.0  # seconds of timed steps per phase
_SCAN_FOR = 0.25  # minimum seconds of the timed part of a scan
_QUICK_EPOCH = 2.0  # a rehearsed epoch that takes fewer seconds is followed by a second one
_LEAST_STEPS = 4  # per phase; the first one is not timed
_NOTES = (
    "measured: about a second of steps per phase, part of each pass without gradients, and everything the method",
    "does at the end of an epoch; not included: reading the data, writing the run",
)


@dataclass(frozen=True)
class Stage:
    """Epochs of one kind, described by the first of them, which was rehearsed."""

    epochs: Sequence[int]
    passes: Sequence[tuple[Phase, int]]
    """The phases of an epoch, each with its number of steps."""
    calibrates: bool
    corrects: bool
    head_alone: bool
    """Whether a pretrained network waits for its head."""
    seconds: float
    """Time per epoch, without evaluation."""


@dataclass(frozen=True)
class DryRun:
    """What a run would do. All times are in seconds."""

    config: RunConfig
    num_networks: int
    warmup: int
    stages: Sequence[Stage]
    evaluation: float
    """Per epoch, for validation and test examples."""
    finish: float
    """At the end, for scoring every example."""
    posterior: float
    """At the start, for the posteriors that pmd noise needs."""
    place: str

    @property
    def seconds(self) -> float:
        """The whole run, after reading the data."""
        epochs = sum(len(stage.epochs) * (stage.seconds + self.evaluation) for stage in self.stages)
        return self.posterior + epochs + self.finish

    def text(self) -> str:
        """Return configuration, phases and time estimate as text; all of it is valid TOML."""
        lines = [self.config.to_toml(), "# phases of the epochs"]
        lines += [f"#   {self._describe(stage)}" for stage in self.stages]
        lines.append(f"# estimate: {duration(self.seconds)} for {self.config.common.epochs} epochs on {self.place}")
        if self.posterior:
            lines.append(f"#   including {duration(self.posterior)} for the posteriors of the noise")
        lines.append(f"#   including {duration(self.evaluation)} per epoch for validation and test examples")
        lines += [f"#   {line}" for line in _NOTES]
        if any(phase.unlabelled is not None for stage in self.stages for phase, _ in stage.passes):
            lines.append("#   the networks that split the examples were hardly trained: the real split will differ")
        return "\n".join(lines)

    def _describe(self, stage: Stage) -> str:
        labels = "given" if stage.epochs[0] <= self.warmup or not stage.corrects else "corrected"
        parts = [f"epoch{'s' if len(stage.epochs) > 1 else ''} {_ranges(stage.epochs)}: train on {labels} labels"]
        parts += ["the head alone"] if stage.head_alone else []
        parts += [self._describe_pass(phase, steps) for phase, steps in stage.passes]
        parts += ["then calibrate the head on draws from class Gaussians"] if stage.calibrates else []
        parts += ["then correct labels"] if stage.corrects else []
        return ", ".join(parts) + f"; {duration(stage.seconds)} per epoch"

    def _describe_pass(self, phase: Phase, steps: int) -> str:
        who = "" if self.num_networks == 1 else f"network {' and '.join(str(i) for i in phase.learns)}: "
        text = f"{who}{steps} steps over {len(phase.indices)} examples"
        if phase.unlabelled is not None:
            text += f" with {len(phase.unlabelled)} unlabelled"
        return text + (f" in {phase.views} views" if phase.views > 1 else "")


def rehearse(config: RunConfig, execution: Execution, raw: Dataset | None = None) -> DryRun:
    """Check everything that a run would check, and rehearse the first epoch of each kind.

    The steps are real, on the real data and networks, but there are fewer of them; the rest is extrapolated. Posteriors
    for pmd noise are made up. ``raw`` is the data, if it was read already.
    """
    config.check()
    processes = start_processes(execution.device, execution.threads, config.common.precision)
    posterior = _Posterior(posterior_fit(config.common.seed, processes, quiet=True))
    dataset = prepare_data(config, posterior, raw)
    truth = Truth.of(dataset, processes)
    trainer = make_trainer(config, dataset, processes, Reporter(), Rehearsal)
    method = trainer.method
    stages = [trainer.rehearse(epochs) for epochs in _group_by_stage(trainer)]
    rows = torch.arange(len(dataset.given), device=processes.device)
    watched = [(trainer.source, trainer.val_rows)]
    watched += [(test.source, rows.new_tensor(range(len(test.source)))) for test in truth.tests.values()]
    with finite("in the rehearsal"):
        evaluation = sum(trainer.time_scans(source, indices) for source, indices in watched)
        finish = trainer.time_scans(trainer.source, rows) + evaluation
    return DryRun(
        config=config,
        num_networks=len(trainer.networks),
        warmup=method.warmup,
        stages=stages,
        evaluation=evaluation,
        finish=finish,
        posterior=posterior.seconds,
        place=f"{processes.device.type} ({processes.precision}; processes: {processes.count}, "
        f"threads: {torch.get_num_threads()})",
    )


class Rehearsal(Trainer):
    """A trainer that takes a few steps of each phase and estimates how long all would take."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.passes: list[tuple[Phase, int]] = []
        self.unspent = 0.0  # seconds that the skipped work would have taken

    def rehearse(self, epochs: Sequence[int]) -> Stage:
        """Time the first of ``epochs`` or, if it is quick, the second, which has no start-up costs."""
        for epoch in epochs[:2]:
            self.passes, self.unspent = [], 0.0
            started = self._now()
            figures = self.run_epoch(epoch)
            spent = self._now() - started
            if self._agree(int(spent > _QUICK_EPOCH)):
                break
        corrects = "changed" in figures and epochs[0] >= self.method.warmup
        calibrates, head_alone = CALIBRATED in self.method.stage(epochs[0]), self.trains_heads_alone(epochs[0])
        return Stage(epochs, self.passes, calibrates, corrects, head_alone, spent + self.unspent)

    def time_scans(self, source: Source, rows: Tensor) -> float:
        """Return how long the model would take to process the examples at ``rows``."""
        model = self.method.model()
        return sum(self.glimpse(network, source, rows, keep_features=False)[1] for network in model.networks)

    def glimpse(self, network: nn.Module, source: Source, rows: Tensor, *, keep_features: bool) -> tuple[Scan, float]:
        """Scan some of ``rows``, repeat the result for all, and return how long a full scan would take."""
        size = min(len(rows), self.options.batch_size)
        while True:
            started = self._now()
            found = scan(network, source, rows[:size], self.processes, keep_features=keep_features)
            spent = self._now() - started
            if size == len(rows) or self._agree(int(spent > _SCAN_FOR)):
                break
            size = min(len(rows), 4 * size)
        whole = Scan(_repeated(found.features, len(rows)), _repeated(found.logits, len(rows)))
        return whole, spent * len(rows) / max(1, size)

    def _batches(self, epoch: int, number: int, phase: Phase, done: int = 0) -> Iterator[Batch]:
        total = allowed = len(cut(phase.indices, self.options.batch_size, self.processes.count, self.processes.rank))
        self.passes.append((phase, total))
        marks = [self._now()]
        for batch in super()._batches(epoch, number, phase, done):
            yield batch
            marks.append(self._now())
            if len(marks) == _LEAST_STEPS:
                step = (marks[-1] - marks[1]) / (len(marks) - 2)
                allowed = self._agree(max(_LEAST_STEPS, int(_STEPS_FOR / step)))
            if len(marks) > allowed:
                break
        taken = len(marks) - 1
        if taken < total:
            self.unspent += (total - taken) * (marks[-1] - marks[1]) / (taken - 1)

    def _observe(self, progress: EpochProgress) -> Observation:
        return _Glimpses(self, progress)

    def _agree(self, value: int) -> int:
        """Return the first process's value, since all must take the same number of steps."""
        return int(self.processes.broadcast(torch.tensor(value, device=self.processes.device)))

    def _now(self) -> float:
        getattr(torch, self.processes.device.type).synchronize()
        return time.perf_counter()


class _Glimpses(Observation):
    """What a rehearsal observed in an epoch, repeated to cover every example."""

    _trainer: Rehearsal

    def record(self, order: Tensor, recorded: Tensor) -> None:
        """Keep the probabilities of a training pass that was cut short."""
        trainer = self._trainer
        shares = cut(order, trainer.options.batch_size, trainer.processes.count, trainer.processes.rank)
        super().record(order, _repeated(recorded, sum(len(share) for share in shares)))

    def _scan(self, network: nn.Module, rows: Tensor, *, keep_features: bool = True) -> Scan:
        started = self._trainer._now()
        found, seconds = self._trainer.glimpse(network, self._trainer.source, rows, keep_features=keep_features)
        self._trainer.unspent += seconds - (self._trainer._now() - started)
        return found


class _Posterior:
    """Makes up posteriors instead of estimating them, and measures how long that would have taken."""

    def __init__(self, fit: PosteriorFit) -> None:
        self._fit = fit
        self.seconds = 0.0

    def __call__(self, source: Source, clean: Tensor, num_classes: int, kind: str) -> Tensor:
        device = self._fit.processes.device
        folds = 1 if kind == IN_SAMPLE else FOLDS
        rows = torch.arange(len(clean) if folds == 1 else len(clean) * (folds - 1) // folds, device=device)
        _, trainer = self._fit.make_trainer(source.to(device), clean.to(device), num_classes, rows, 0, Rehearsal)
        self.seconds = folds * self._fit.epochs * trainer.rehearse([1, 2]).seconds
        draws = generator(self._fit.seed, "made-up posterior")
        top = 0.5 + 0.5 * torch.rand(len(clean), 1, generator=draws)
        second = (clean[:, None] + torch.randint(1, num_classes, (len(clean), 1), generator=draws)) % num_classes
        return torch.zeros(len(clean), num_classes).scatter_(1, clean[:, None], top).scatter_(1, second, 1 - top)


def _group_by_stage(trainer: Trainer) -> list[list[int]]:
    """Group a run's epochs by their stage, and by what learns."""
    stages: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for epoch in range(1, trainer.method.setting.epochs + 1):
        stages.setdefault((trainer.trains_heads_alone(epoch), trainer.method.stage(epoch)), []).append(epoch)
    return list(stages.values())


def _repeated(values: Tensor, count: int) -> Tensor:
    """Return ``count`` rows, repeating them as often as needed."""
    if len(values) == count:
        return values
    return values[torch.arange(count, device=values.device) % len(values)]


def _ranges(epochs: Sequence[int]) -> str:
    """Return the epochs in short form: `3`, `3-8` or `3, 5, ... 9`."""
    first, last = epochs[0], epochs[-1]
    if last - first + 1 == len(epochs):
        return str(first) if first == last else f"{first}-{last}"
    return f"{first}, {epochs[1]}, ... {last}" if len(epochs) > 2 else f"{first}, {last}"
