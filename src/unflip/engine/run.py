"""train_run: the entry point of training, for tasks and the cells of a sweep. It writes no report."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from unflip.data.arrays import write_array
from unflip.data.dataset import Dataset
from unflip.data.files import skipped_csv
from unflip.engine.checkpoints import BestEpoch, Checkpoints, EpochProgress, RunState, data_fingerprint, difference
from unflip.engine.distributed import Processes, start_processes
from unflip.engine.evaluation import (
    Truth,
    accuracies,
    accuracy,
    effective_rule,
    full_report,
    make_result,
    selection_score,
)
from unflip.engine.inference import predict_probs, scan
from unflip.engine.posterior import posterior_fit
from unflip.engine.prepare import make_model, make_trainer, prepare_data
from unflip.engine.scoring import conclude
from unflip.engine.trainer import Trainer, diverged, finite
from unflip.errors import ConfigError, DivergedError, RunFolderError, Stopped, UnflipError, UnflipWarning
from unflip.files import Interruption, write_json, write_text
from unflip.nn.base import bare
from unflip.noise.transition import NoiseProfile
from unflip.progress import Reporter, make_reporter
from unflip.runs import layout
from unflip.runs.config import RunConfig, Tree, read_toml
from unflip.runs.folder import Run
from unflip.runs.labels import label_table
from unflip.runs.model_file import Model
from unflip.runs.options import Execution


def train_run(
    run: Run,
    config: RunConfig,
    execution: Execution,
    *,
    raw: Dataset | None = None,
    resume: bool = False,
    force: bool = False,
) -> Run:
    """Train to the end and return the finished run.

    Args:
        run: the folder that everything is written to.
        config: what to learn, from what and how.
        execution: device, threads, checkpoints and the like.
        raw: the data, if it was read already; otherwise it is read from ``config.common.data.path``.
        resume: continue the run in the folder from its last checkpoint.
        force: replace a run that is already in the folder.
    """
    run.check_free(resume=resume, force=force, inputs=config.inputs())
    if resume:
        _check_same(run, config)
        if run.is_finished and run.result["epochs"] >= config.common.epochs:
            return run
    config.check()
    processes = start_processes(execution.device, execution.threads, config.common.precision)
    reporter = make_reporter(execution.quiet or not processes.is_first)
    estimate = posterior_fit(config.common.seed, processes, quiet=execution.quiet)
    dataset = prepare_data(config, estimate, raw, reporter.track)
    return Session(run, config, dataset, processes, execution).execute(resume=resume, force=force)


def _check_same(run: Run, config: RunConfig) -> None:
    """Check that a resumed run has the same configuration; only the number of epochs may grow."""
    before, now = _flat(read_toml(run.config_path)), _flat(config.tree())
    if now["epochs"] < before["epochs"]:
        raise ConfigError(f"{run.folder} was started with epochs = {before['epochs']}; --resume can only raise that")
    keys = [*before, *(key for key in now if key not in before)]  # top-level keys first: the method before its options
    for key in (key for key in keys if key != "epochs"):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{run.folder} was started with {key} = {before.get(key)}, now it is {now.get(key)}; "
                "resume with the same value, or start again with --force"
            )


def _flat(tree: Tree, prefix: str = "") -> Tree:
    flat: Tree = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


_PROBED = 256  # training examples whose outputs are looked at where there are no others to evaluate
_RESTORES = 8  # how often a run may be restored


class Session:
    """One run in its folder: trains, evaluates and saves each epoch, and writes the results at the end.

    Args:
        run: the run folder.
        config: the run's configuration.
        dataset: the prepared data.
        processes: the device, and the other processes of the run.
        execution: device, threads, checkpoints and other settings that do not affect the results.
    """

    def __init__(
        self, run: Run, config: RunConfig, dataset: Dataset, processes: Processes, execution: Execution
    ) -> None:
        self.run, self.config, self.dataset = run, config, dataset
        self.processes, self.execution = processes, execution
        self.data_fingerprint = data_fingerprint(dataset)  # before the inputs are moved to the device
        self.truth = Truth.of(dataset, processes)
        self.reporter = make_reporter(execution.quiet or not processes.is_first)
        self.checkpoints = Checkpoints(run.checkpoints, execution.keep, execution.checkpoint_minutes)
        self.interruption = Interruption()
        self.state = RunState()
        self.unfinished: EpochProgress | None = None  # the partly trained epoch that a resumed run continues
        self._build()

    def _build(self) -> None:
        """Build method, networks and trainer as before the first epoch, with the learning rate after all restores."""
        scale = _lr_scale(len(self.state.restores))
        self.trainer = make_trainer(self.config, self.dataset, self.processes, self.reporter, Trainer, scale)

    def execute(self, *, resume: bool, force: bool) -> Run:
        """Train to the end and write everything."""
        common = self.config.common
        with ExitStack() as claim:
            self._on_first(lambda: claim.enter_context(self.run.claimed(resume=resume, force=force)))
            if resume:
                self._load(self.checkpoints.load_last())
            self._on_first(self._write_start)
            with self.reporter, Board(self.run.folder / layout.TENSORBOARD, enabled=self.processes.is_first) as board:
                self.reporter.start(common.method, common.epochs, self.state.epochs_done + 1)
                with self.interruption if self.processes.count == 1 else nullcontext():
                    while self.state.epochs_done < common.epochs:
                        try:
                            self._run_epoch(self.state.epochs_done + 1)
                        except DivergedError as error:
                            self._go_back(error)
                        else:
                            board.write(self.state.metrics[-1])
                            self.reporter.epoch(self.state.metrics[-1])
            with finite("at the end of the run"):
                write_results(self.run, self.config, self.dataset, self.trainer, self.state, self.truth)
            self.processes.fabric.barrier()
        return self.run

    def _run_epoch(self, epoch: int) -> None:
        """Train one epoch or the rest of it, evaluate it, and save."""
        progress, self.unfinished = self.unfinished or EpochProgress(), None
        alone = self.processes.count == 1  # several processes would have to agree on the step
        line = self.trainer.run_epoch(epoch, progress, self._after_step if alone else None)
        where = f"at the end of epoch {epoch}"
        self._check_weights(where)
        with finite(where):
            line |= self._evaluate()
        rule = effective_rule(self.config.common.select, clean_val=self.truth.clean_val)
        self.state.best.consider(epoch, selection_score(rule, line), self.trainer.method.model())
        seconds = time.perf_counter() - progress.started
        self.state.seconds += seconds
        if self.state.restores:
            line["restores"] = len(self.state.restores)
        self.state.metrics.append(line | {"seconds": seconds})
        if not self.processes.is_first:
            return
        self.run.write_metrics(self.state.metrics)
        last, stop = epoch == self.config.common.epochs, self.interruption.signal is not None
        if last or stop or self.execution.on_nan == "restore" or self.checkpoints.is_due(midway=False):
            self._save(epoch)
        if stop:
            self._stop(f"after epoch {epoch}")

    def _evaluate(self) -> dict[str, Any]:
        """Return an epoch's accuracies; test sets and clean labels are only evaluated on, never learnt from."""
        trainer, truth, val = self.trainer, self.truth, self.trainer.val_rows
        model = trainer.method.model()
        figures: dict[str, Any] = {"val_accuracy": None, "test_accuracy": None}
        if len(val):
            probs = predict_probs(model, trainer.source, self.processes, val)
            figures["val_accuracy"] = accuracy(probs, trainer.labels.initial[val])
            if truth.clean is not None:
                figures["clean_val_accuracy"] = accuracy(probs, truth.clean[val])
            elif truth.clean_val:
                figures["clean_val_accuracy"] = figures["val_accuracy"]
        if truth.tests:
            figures["tests"] = accuracies(model, truth, self.processes)
            figures["test_accuracy"] = next(iter(figures["tests"].values()))
        if not len(val) and not truth.tests:  # nothing else would show outputs that are not finite
            predict_probs(model, trainer.source, self.processes, trainer.method.setting.train[:_PROBED])
        figures["label_accuracy"] = truth.label_accuracy(trainer.labels.current, trainer.method.setting.train)
        return figures

    def _after_step(self, epoch: int, progress: EpochProgress) -> None:
        """Save within an epoch if a checkpoint is due or a signal arrived; after a signal, stop."""
        stop = self.interruption.signal is not None
        if stop or self.checkpoints.is_due(midway=True):
            self.trainer.mean_losses(epoch, progress)  # raises if one is not finite
            self._check_weights(f"in epoch {epoch}, batch {progress.steps}")
            self._save(epoch, progress)
        if stop:
            self._stop(f"in epoch {epoch}")

    def _stop(self, where: str) -> None:
        assert self.interruption.signal is not None
        raise Stopped(
            f"stopped {where} and saved; continue with: unflip train --out {self.run.folder} --resume",
            self.interruption.signal,
        )

    def _check_weights(self, where: str) -> None:
        """Raise if weights are not finite, so that they are never saved."""
        weights = [weight for network in self.trainer.networks for weight in network.parameters()]
        if not bool(torch.stack([weight.isfinite().all() for weight in weights]).all()):  # the device is asked once
            raise diverged("the weights became NaN or infinite", where)

    def _go_back(self, error: DivergedError) -> None:
        """Restore the last saved epoch with a lower learning rate; raise if ``on_nan`` says stop.

        If the same epoch fails a third time, the weights that were saved before it are to blame: begin anew.
        """
        before, epoch, reason = self.state.restores, self.state.epochs_done + 1, str(error).partition(";")[0]
        if self.execution.on_nan == "stop":
            raise error
        if len(before) == _RESTORES:
            raise DivergedError(
                f"{reason}, although the run was restored {_RESTORES} times with ever lower learning rates; try a "
                "much smaller one (--set optimizer.lr=...)"
            )
        anew = [restore["epoch"] for restore in before[-2:]] == [epoch, epoch]
        restores = [*before, {"epoch": epoch, "reason": reason}]
        self._load(None if anew else self.checkpoints.load_last(whole=True), restores)
        if anew and self.processes.is_first:
            self.checkpoints.restart(self._content())
        lr = self.config.common.optimizer.lr * _lr_scale(len(restores))
        warnings.warn(
            f"{reason}; continuing after epoch {self.state.epochs_done} with a learning rate of {lr:g}",
            UnflipWarning,
            stacklevel=2,
        )

    def _on_first(self, act: Callable[[], object]) -> None:
        """Let the first process act on the folder; if that fails, stop all processes."""
        message = None
        if self.processes.is_first:
            try:
                act()
            except UnflipError as error:
                message = str(error)
        message = self.processes.agree(message)
        if message is not None:
            raise RunFolderError(message)

    def _write_start(self) -> None:
        """Write what is known before the first epoch."""
        self.run.write_config(self.config.to_toml())
        for folder in (layout.CHECKPOINTS, layout.TENSORBOARD):
            self.run.own(folder)
        if self.dataset.noise_record is not None:
            write_json(self.run.own(layout.NOISE), self.dataset.noise_record)
        if self.dataset.skipped:
            write_text(self.run.own(layout.SKIPPED), skipped_csv(self.dataset.skipped))

    def _save(self, epoch: int, progress: EpochProgress | None = None) -> None:
        midway = None if progress is None else (progress.phase, progress.steps)
        try:
            self.checkpoints.save(self._content(progress), epoch, midway)
        except RunFolderError as error:
            raise RunFolderError(
                f"{error}; earlier checkpoints are intact: fix the cause and continue with --resume"
            ) from error

    def _content(self, progress: EpochProgress | None = None) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        trainer, state = self.trainer, self.state
        return {
            "data": self.data_fingerprint,
            "networks": [bare(network).state_dict() for network in trainer.networks],
            "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "method": trainer.method.state_dict(),
            "precision": self.processes.state_dict(),
            "labels": trainer.labels.state_dict(),
            "best": {"epoch": state.best.epoch, "score": state.best.score, "state": state.best.state},
            "metrics": state.metrics,
            "restores": state.restores,
            "seconds": state.seconds,
            "progress": progress and progress.state_dict(),
        }

    def _load(self, saved: dict[str, Any] | None, restores: list[dict[str, Any]] | None = None) -> None:
        """Restore a saved state, or start from the beginning if there is none; ``restores`` replaces the saved list."""
        if saved is not None and (other := difference(saved["data"], self.data_fingerprint)) is not None:
            raise RunFolderError(f"{self.run.folder}: {other}; resume with the same data, or start over with --force")
        self.state = RunState(restores=restores if restores is not None else saved["restores"] if saved else [])
        self._build()
        if saved is None:
            return
        trainer = self.trainer
        for network, weights in zip(trainer.networks, saved["networks"], strict=True):
            bare(network).load_state_dict(weights)
        for optimizer, momenta in zip(trainer.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(momenta)
        trainer.method.load_state_dict(saved["method"])
        self.processes.load_state_dict(saved["precision"])
        trainer.labels.load_state_dict(saved["labels"])
        self.state.best = BestEpoch(**saved["best"])
        self.state.metrics, self.state.seconds = saved["metrics"], saved["seconds"]
        if saved["progress"] is not None:
            self.unfinished = EpochProgress.from_state_dict(saved["progress"], self.processes.device)


def _lr_scale(restores: int) -> float:
    """Return the factor on the learning rate: a half, then an eighth, a 64th, ...: each restore divides by more."""
    return float(0.5 ** (restores * (restores + 1) // 2))


def write_results(
    run: Run, config: RunConfig, dataset: Dataset, trainer: Trainer, state: RunState, truth: Truth
) -> None:
    """Score every example with the selected model, correct the validation labels, and write the results.

    Args:
        run: the run folder; only the first process writes to it.
        config: the run's configuration.
        dataset: the data it learnt from.
        trainer: the trainer after the last epoch.
        state: the metrics of the epochs, and which one was selected.
        truth: clean labels and test sets, for evaluation only.
    """
    processes, epochs = trainer.processes, config.common.epochs
    gaussians, last_features = trainer.method.gaussians(), None
    if gaussians is not None and state.best.epoch != epochs:  # they belong to the last epoch's features
        rows = torch.arange(len(trainer.labels), device=processes.device)
        last_features = scan(trainer.networks[0], trainer.source, rows, processes).features
    outcome, features = conclude(trainer, state.best, epochs, clean_val=dataset.clean_val)
    tests = {name: full_report(outcome.model, test, processes) for name, test in truth.tests.items()}
    if not processes.is_first:
        return
    if gaussians is not None:
        run.write_gaussians(gaussians)
    run.write_features(features, last_features)
    del features, last_features  # the table takes memory, too
    table = label_table(
        trainer.labels, outcome.assessment,
        splits=dataset.splits(), ids=dataset.ids, class_names=dataset.class_names,
    )  # fmt: skip
    run.write_labels(table, trainer.labels.history())
    if outcome.noise is not None:
        write_array(run.own(layout.TRANSITION), outcome.noise.matrix.numpy().astype(np.float32))
    make_model(config, dataset, state.best).save(run.own(layout.MODEL))
    result = make_result(config, dataset, state, truth=truth, trainer=trainer, outcome=outcome, tests=tests)
    write_json(run.own(layout.RESULT), result)


class MemoryRun(NamedTuple):
    """The results of a run in memory."""

    model: Model
    labels: pa.Table
    """The same table as ``labels.parquet``."""
    noise: NoiseProfile | None
    """The estimated noise of the given labels, if there is an estimate."""


def train_in_memory(config: RunConfig, raw: Dataset, processes: Processes, reviewed: Tensor | None = None) -> MemoryRun:
    """Train to the end and return the results; the selection rule is ``last`` or ``noisy-val``.

    ``reviewed`` (n,) are labels decided by people, -1 for the others.
    """
    config.check()
    common = config.common
    dataset = prepare_data(config, posterior_fit(common.seed, processes, quiet=True), raw)
    dataset = replace(dataset, reviewed=reviewed)
    trainer = make_trainer(config, dataset, processes, Reporter(), Trainer)
    best, val = BestEpoch(), trainer.val_rows
    with torch.random.fork_rng(devices=[]):  # layers draw from torch's global generator; leave the caller's unchanged
        for epoch in range(1, common.epochs + 1):
            line = trainer.run_epoch(epoch)
            if common.select == "noisy-val":
                with finite(f"at the end of epoch {epoch}"):
                    probs = predict_probs(trainer.method.model(), trainer.source, processes, val)
                line["val_accuracy"] = accuracy(probs, trainer.labels.initial[val])
            best.consider(epoch, selection_score(common.select, line), trainer.method.model())
    outcome, _ = conclude(trainer, best, common.epochs, clean_val=False)
    table = label_table(trainer.labels, outcome.assessment, splits=dataset.splits())
    return MemoryRun(make_model(config, dataset, best), table, outcome.noise)


class Board:
    """Writes to ``folder``; does nothing if the extra ``tensorboard`` is not installed."""

    def __init__(self, folder: Path, *, enabled: bool) -> None:
        self._writer: Any = None
        if enabled:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            self._folder = folder
            with self._writing():
                self._writer = SummaryWriter(str(self._folder), filename_suffix=layout.BOARD_ENDING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            with self._writing():
                self._writer.close()

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Write every number of an epoch's metrics, nested ones as ``group/name``."""
        if self._writer is None:
            return
        with self._writing():
            for key, value in metrics.items():
                for name, number in value.items() if isinstance(value, dict) else [("", value)]:
                    if isinstance(number, int | float):
                        self._writer.add_scalar(f"{key}/{name}".rstrip("/"), number, metrics["epoch"])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # may come from an earlier write: a thread does the writing
            raise RunFolderError(f"cannot write {self._folder}: {error.strerror or error}") from error
