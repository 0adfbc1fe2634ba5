"""Session: one run, from its first epoch or last checkpoint to its result."""

import time
import warnings
from contextlib import ExitStack, nullcontext
from typing import Any

from unflip.compute.passes import DIVERGED_HINT, predict_probs
from unflip.compute.processes import Processes
from unflip.data.dataset import Dataset
from unflip.data.images.files import skipped_csv
from unflip.errors import DivergedError, RunFolderError, Stopped, UnflipError, UnflipWarning
from unflip.files import write_json, write_text
from unflip.interruption import Interruption
from unflip.networks.base import bare
from unflip.progress import make_reporter
from unflip.runs import layout
from unflip.runs.config import RunConfig
from unflip.runs.folder import Run
from unflip.runs.options import Execution
from unflip.training.board import Board
from unflip.training.building import make_trainer
from unflip.training.checkpoint import Checkpoints
from unflip.training.epoch_progress import EpochProgress
from unflip.training.evaluation import Truth, accuracies, accuracy
from unflip.training.finish import write_results
from unflip.training.state import BestEpoch, RunState
from unflip.training.trainer import Trainer

_RESTORES = 6  # how often a run may be restored; the learning rate is then 1/64 of the original


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
        self.truth = Truth.of(dataset, processes)
        self.reporter = make_reporter(execution.quiet or not processes.is_first)
        self.checkpoints = Checkpoints(run.checkpoints, execution.keep, execution.checkpoint_minutes)
        self.interruption = Interruption()
        self.state = RunState()
        self.unfinished: EpochProgress | None = None  # the partly trained epoch that a resumed run continues
        self._build()

    def _build(self) -> None:
        """Build method, networks and trainer as before the first epoch; every restore halves the learning rate."""
        scale = 0.5 ** len(self.state.restores)
        self.trainer = make_trainer(self.config, self.dataset, self.processes, self.reporter, Trainer, scale)

    def execute(self, *, resume: bool, force: bool) -> Run:
        """Train to the end and write everything."""
        common = self.config.common
        with ExitStack() as claim:
            self._claim_folder(claim, resume=resume, force=force)
            if resume:
                self._load(self.checkpoints.load_last())
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
            write_results(self.run, self.config, self.dataset, self.trainer, self.state, self.truth)
            self.processes.fabric.barrier()
        return self.run

    def _run_epoch(self, epoch: int) -> None:
        """Train one epoch or the rest of it, evaluate it, and save."""
        progress, self.unfinished = self.unfinished or EpochProgress(), None
        alone = self.processes.count == 1  # several processes would have to agree on the step
        line = self.trainer.run_epoch(epoch, progress, self._after_step if alone else None) | self._evaluate()
        self._check_weights(f"at the end of epoch {epoch}")
        self.state.best.consider(self.config.common.select, line, self.trainer.networks)
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
        figures: dict[str, Any] = {"val_accuracy": None, "test_accuracy": None}
        if len(val):
            probs = predict_probs(trainer.networks, trainer.source, self.processes, val)
            figures["val_accuracy"] = accuracy(probs, trainer.labels.initial[val])
            if truth.clean is not None:
                figures["clean_val_accuracy"] = accuracy(probs, truth.clean[val])
            elif truth.clean_val:
                figures["clean_val_accuracy"] = figures["val_accuracy"]
        if truth.tests:
            figures["tests"] = accuracies(trainer.networks, truth, self.processes)
            figures["test_accuracy"] = next(iter(figures["tests"].values()))
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

    def _check_weights(self, when: str) -> None:
        """Raise if weights are not finite, so that they are never saved."""
        for network in self.trainer.networks:
            if not all(bool(weight.isfinite().all()) for weight in network.parameters()):
                raise DivergedError(f"the weights became NaN or infinite {when}; {DIVERGED_HINT}")

    def _go_back(self, error: DivergedError) -> None:
        """Restore the last saved epoch, or the start, with half the learning rate; raise if ``on_nan`` says stop."""
        restores = self.state.restores
        if self.execution.on_nan == "stop":
            raise error
        if len(restores) == _RESTORES:
            raise DivergedError(f"{error} (restored {_RESTORES} times, halving the learning rate each time)")
        restores = [*restores, {"epoch": self.state.epochs_done + 1, "reason": str(error).partition(";")[0]}]
        self._load(self.checkpoints.load_last(whole=True), restores)
        warnings.warn(
            f"{restores[-1]['reason']}; continuing after epoch {self.state.epochs_done} with half the learning rate",
            UnflipWarning,
            stacklevel=2,
        )

    def _claim_folder(self, claim: ExitStack, *, resume: bool, force: bool) -> None:
        """Lock the folder for the first process; if that fails, stop all processes."""
        message = None
        if self.processes.is_first:
            try:
                claim.enter_context(self.run.claimed(resume=resume, force=force))
                self.run.write_config(self.config.to_toml())
                if self.dataset.noise_record is not None:
                    write_json(self.run.folder / layout.NOISE, self.dataset.noise_record)
                if self.dataset.skipped:
                    write_text(self.run.folder / layout.SKIPPED, skipped_csv(self.dataset.skipped))
            except UnflipError as error:
                message = str(error)
        message = self.processes.agree(message)
        if message is not None:
            raise RunFolderError(message)

    def _save(self, epoch: int, progress: EpochProgress | None = None) -> None:
        trainer, state = self.trainer, self.state
        content = {
            "networks": [bare(network).state_dict() for network in trainer.networks],
            "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "method": trainer.method.state_dict(),
            "precision": self.processes.state_dict(),
            "labels": trainer.labels.state_dict(),
            "best": {"epoch": state.best.epoch, "score": state.best.score, "states": state.best.states},
            "metrics": state.metrics,
            "restores": state.restores,
            "seconds": state.seconds,
            "progress": progress and progress.state_dict(),
        }
        try:
            self.checkpoints.save(content, epoch, None if progress is None else (progress.phase, progress.steps))
        except RunFolderError as error:
            raise RunFolderError(
                f"{error}; earlier checkpoints are intact: fix the cause and continue with --resume"
            ) from error

    def _load(self, saved: dict[str, Any] | None, restores: list[dict[str, Any]] | None = None) -> None:
        """Restore a saved state, or start from the beginning if there is none; ``restores`` replaces the saved list."""
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
