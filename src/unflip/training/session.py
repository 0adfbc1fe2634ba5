"""Session: one run, from its first epoch (or the one after its last checkpoint) to its result."""

import time
import warnings
from contextlib import ExitStack, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch

from unflip.data.array_files import write_array
from unflip.data.dataset import Dataset
from unflip.data.image_files import skipped_csv
from unflip.errors import DivergedError, RunFolderError, Stopped, UnflipError, UnflipWarning
from unflip.files import write_json, write_text
from unflip.labels.store import LabelStore, write_labels
from unflip.methods.base import Method, Setting, bare
from unflip.methods.recipes import find_recipe
from unflip.networks.base import build_network, initial_seed
from unflip.training.board import Board
from unflip.training.checkpoint import Checkpoints
from unflip.training.config import RunConfig, Safety
from unflip.training.evaluation import Truth, accuracies, accuracy, full_report
from unflip.training.folder import Run
from unflip.training.interruption import Interruption
from unflip.training.model_file import Model
from unflip.training.outcome import Best, conclude
from unflip.training.passes import DIVERGED_HINT, predict_probs, scan
from unflip.training.processes import Processes
from unflip.training.progress import Reporter, make_reporter
from unflip.training.result import make_result
from unflip.training.standing import Standing
from unflip.training.trainer import Trainer

_Trainer = TypeVar("_Trainer", bound=Trainer)
_RESTORES = 6  # times that a run goes back; the learning rate is then 1 / 64 of what it was


class Session:
    """One run, from its first epoch (or the one after its last checkpoint) to its result."""

    def __init__(
        self, run: Run, config: RunConfig, dataset: Dataset, processes: Processes, quiet: bool, safety: Safety
    ) -> None:
        self.run, self.config, self.dataset, self.processes, self.safety = run, config, dataset, processes, safety
        self.truth = Truth.of(dataset, processes)
        self.reporter = make_reporter(quiet or not processes.is_first)
        self.checkpoints = Checkpoints(run.checkpoints, safety.keep, safety.checkpoint_minutes)
        self.interruption = Interruption()
        self.metrics: list[dict[str, Any]] = []
        self.restores: list[dict[str, Any]] = []
        self.best = Best()
        self.seconds = 0.0
        self.standing: Standing | None = None  # of the epoch in whose middle a run goes on
        self._build()

    def _build(self) -> None:
        """Make method, networks and trainer as they are before the first epoch; every restore halves the lr."""
        scale = 0.5 ** len(self.restores)
        self.trainer = make_trainer(self.config, self.dataset, self.processes, self.reporter, Trainer, scale)
        self.source, self.labels = self.trainer.source, self.trainer.labels
        self.method: Method = self.trainer.method
        self.train_rows, self.val_rows = self.method.setting.train, self.trainer.val_rows

    def execute(self, *, resume: bool, force: bool) -> Run:
        """Train to the end and write everything."""
        with ExitStack() as claim:
            self._claim_folder(claim, resume=resume, force=force)
            if resume:
                self._load(self.checkpoints.load_last())
            common = self.config.common
            with self.reporter, Board(self.run.folder, enabled=self.processes.is_first) as board:
                self.reporter.start(common.method, common.epochs, len(self.metrics) + 1)
                with self.interruption if self.processes.count == 1 else nullcontext():
                    while len(self.metrics) < common.epochs:
                        try:
                            self._run_epoch(len(self.metrics) + 1)
                        except DivergedError as error:
                            self._go_back(error)
                        else:
                            board.write(self.metrics[-1])
                            self.reporter.epoch(self.metrics[-1])
            self._finish()
            self.processes.fabric.barrier()
        return self.run

    def _run_epoch(self, epoch: int) -> None:
        """Train, evaluate and save one epoch, or the rest of it."""
        standing, self.standing = self.standing or Standing(), None
        alone = self.processes.count == 1  # several would have to agree on the step
        line = self.trainer.run_epoch(epoch, standing, self._after_step if alone else None) | self._evaluate()
        self._check_weights(f"at the end of epoch {epoch}")
        self.best.consider(self.config.common.select, line, self.trainer.networks)
        seconds = time.perf_counter() - standing.started
        self.seconds += seconds
        if self.restores:
            line["restores"] = len(self.restores)
        self.metrics.append(line | {"seconds": seconds})
        if not self.processes.is_first:
            return
        self.run.write_metrics(self.metrics)
        last, stop = epoch == self.config.common.epochs, self.interruption.signal is not None
        if last or stop or self.safety.on_nan == "restore" or self.checkpoints.is_due(midway=False):
            self._save(epoch)
        if stop:
            self._stop(f"after epoch {epoch}")

    def _after_step(self, epoch: int, standing: Standing) -> None:
        """Save within an epoch when it is time or a signal came; then stop."""
        stop = self.interruption.signal is not None
        if stop or self.checkpoints.is_due(midway=True):
            self.trainer.mean_losses(epoch, standing)  # fails where one is not finite
            self._check_weights(f"in epoch {epoch}, batch {standing.steps}")
            self._save(epoch, standing)
        if stop:
            self._stop(f"in epoch {epoch}")

    def _stop(self, where: str) -> None:
        assert self.interruption.signal is not None
        raise Stopped(
            f"stopped {where}, and saved; go on with: unflip train --out {self.run.folder} --resume",
            self.interruption.signal,
        )

    def _check_weights(self, when: str) -> None:
        """Let no checkpoint be made of weights that are lost."""
        for network in self.trainer.networks:
            if not all(bool(weight.isfinite().all()) for weight in network.parameters()):
                raise DivergedError(f"the weights became NaN or infinite {when}; {DIVERGED_HINT}")

    def _go_back(self, error: DivergedError) -> None:
        """Go on from the last saved epoch's end, or the beginning, with half the learning rate, if that is wanted."""
        if self.safety.on_nan == "stop":
            raise error
        if len(self.restores) == _RESTORES:
            raise DivergedError(f"{error} (went back {_RESTORES} times, each time with half the learning rate)")
        restores = [*self.restores, {"epoch": len(self.metrics) + 1, "reason": str(error).partition(";")[0]}]
        self._load(self.checkpoints.load_last(whole=True), restores)
        warnings.warn(
            f"{restores[-1]['reason']}; going on after epoch {len(self.metrics)} with half the learning rate",
            UnflipWarning,
            stacklevel=2,
        )

    def _claim_folder(self, claim: ExitStack, *, resume: bool, force: bool) -> None:
        """Let the first process have the folder for itself; if it cannot, all stop."""
        message = None
        if self.processes.is_first:
            try:
                claim.enter_context(self.run.claimed(resume=resume, force=force))
                write_text(self.run.config_path, self.config.to_toml())
                if self.dataset.noise is not None:
                    write_json(self.run.folder / "noise.json", self.dataset.noise.provenance)
                if self.dataset.skipped:
                    write_text(self.run.folder / "skipped.csv", skipped_csv(self.dataset.skipped))
            except UnflipError as error:
                message = str(error)
        message = self.processes.agree(message)
        if message is not None:
            raise RunFolderError(message)

    def _evaluate(self) -> dict[str, Any]:
        """Return an epoch's accuracies; the test sets and clean labels are looked at, never learnt from."""
        networks, truth = self.trainer.networks, self.truth
        figures: dict[str, Any] = {"val_accuracy": None, "test_accuracy": None}
        if len(self.val_rows):
            probs = predict_probs(networks, self.source, self.processes, self.val_rows)
            figures["val_accuracy"] = accuracy(probs, self.labels.given[self.val_rows])
            if truth.clean is not None:
                figures["clean_val_accuracy"] = accuracy(probs, truth.clean[self.val_rows])
            elif truth.clean_val:
                figures["clean_val_accuracy"] = figures["val_accuracy"]
        if truth.tests:
            figures["tests"] = accuracies(networks, truth, self.processes)
            figures["test_accuracy"] = next(iter(figures["tests"].values()))
        figures["label_accuracy"] = truth.label_accuracy(self.labels.current, self.train_rows)
        return figures

    def _save(self, epoch: int, standing: Standing | None = None) -> None:
        state = {
            "networks": [bare(network).state_dict() for network in self.trainer.networks],
            "optimizers": [optimizer.state_dict() for optimizer in self.trainer.optimizers],
            "method": self.method.state_dict(),
            "precision": self.processes.state_dict(),
            "labels": self.labels.state_dict(),
            "best": {"epoch": self.best.epoch, "score": self.best.score, "states": self.best.states},
            "metrics": self.metrics,
            "restores": self.restores,
            "seconds": self.seconds,
            "standing": standing and standing.state_dict(),
        }
        try:
            self.checkpoints.save(state, epoch, None if standing is None else (standing.phase, standing.steps))
        except RunFolderError as error:
            raise RunFolderError(f"{error}; what was saved before is whole: mend it and go on with --resume") from error

    def _load(self, state: dict[str, Any] | None, restores: list[dict[str, Any]] | None = None) -> None:
        """Go back to a saved state, without one to the beginning; ``restores`` replaces those that led to it."""
        self.restores = restores if restores is not None else state["restores"] if state else []
        self._build()
        if state is None:
            self.metrics, self.best, self.seconds = [], Best(), 0.0
            return
        for network, saved in zip(self.trainer.networks, state["networks"], strict=True):
            bare(network).load_state_dict(saved)
        for optimizer, saved in zip(self.trainer.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.method.load_state_dict(state["method"])
        self.processes.load_state_dict(state["precision"])
        self.labels.load_state_dict(state["labels"])
        self.best = Best(**state["best"])
        self.metrics, self.seconds = state["metrics"], state["seconds"]
        if state["standing"] is not None:
            self.standing = Standing.from_state_dict(state["standing"], self.processes.device)

    def _finish(self) -> None:
        """Score every example with the chosen model, correct those that validated, and write the results."""
        common, dataset, networks = self.config.common, self.dataset, self.trainer.networks
        gaussians, last_features = self.method.gaussians(), None
        if gaussians is not None and self.best.epoch != common.epochs:  # they belong to the last epoch's features
            rows = torch.arange(len(self.labels), device=self.processes.device)
            last_features = scan(networks[0], self.source, rows, self.processes).features
        probs, votes, features, noise = conclude(self.trainer, self.best, common.epochs, clean_val=dataset.clean_val)
        tests = {name: full_report(networks, test, self.processes) for name, test in self.truth.tests.items()}
        if not self.processes.is_first:
            return
        folder = self.run.folder
        if gaussians is not None:
            gaussians.save(folder / "gaussians.safetensors")
        self.run.write_features(features, last_features)
        table = self.labels.table(
            probs, votes, splits=dataset.splits(), ids=dataset.ids, class_names=dataset.class_names
        )
        write_labels(folder, table, self.labels.history())
        if noise is not None:
            write_array(folder / "transition.npy", noise.matrix.numpy().astype(np.float32))
        make_model(self.config, dataset, self.best).save(folder / "model.safetensors")
        result = make_result(
            self.config, dataset.name, self.metrics, self.best.epoch, self.truth, self.labels, self.train_rows,
            torch.tensor(table["quality"].to_numpy()), tests, noise, self.seconds, len(dataset.skipped), self.restores,
        )  # fmt: skip
        write_json(folder / "result.json", result)


def make_model(config: RunConfig, dataset: Dataset, best: Best) -> Model:
    """Return the chosen networks with all that is needed to rebuild and feed them."""
    return Model(
        network=config.common.network,
        options=config.network_options.model_dump(mode="json"),
        input_shape=dataset.source.shape,
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
        standardisation=dataset.standardisation,
        states=best.states,
        frame=dataset.frame,
        columns=dataset.columns,
    )


def make_trainer(
    config: RunConfig,
    dataset: Dataset,
    processes: Processes,
    reporter: Reporter,
    kind: type[_Trainer],
    lr_scale: float = 1.0,
) -> _Trainer:
    """Build a run's method and networks, and the trainer that trains them."""
    common, device = config.common, processes.device
    setting = Setting(
        num_classes=dataset.num_classes,
        train=(~dataset.is_val).nonzero()[:, 0].to(device),
        epochs=common.epochs,
        seed=common.seed,
        batch_size=common.optimizer.batch_size,
        lr_factor=lambda epoch: lr_scale * common.optimizer.lr_factor(epoch),
        device=device,
    )
    recipe = find_recipe(common.method)
    networks = [
        build_network(
            common.network,
            config.network_options,
            dataset.source.shape,
            dataset.num_classes,
            initial_seed(common.seed, position),
        )
        for position in range(recipe.num_networks)
    ]
    return kind(
        recipe.build(config.parts, setting),
        networks,
        dataset.source.to(device),
        LabelStore(
            dataset.given.to(device),
            dataset.num_classes,
            None if dataset.reviewed is None else dataset.reviewed.to(device),
        ),
        common.optimizer,
        processes,
        reporter,
        dataset.is_val.nonzero()[:, 0].to(device),
    )
