"""Session: one run, from its first epoch (or the one after its last checkpoint) to its result."""

import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unflip.data.array_files import write_array
from unflip.data.dataset import Dataset
from unflip.data.image_files import skipped_csv
from unflip.errors import DivergedError, RunFolderError, Stopped, UnflipError, UnflipWarning
from unflip.files import write_json, write_text
from unflip.labels.store import LabelStore, write_labels
from unflip.methods.base import Method, Setting, bare
from unflip.methods.recipes import find_recipe
from unflip.networks.base import build_network, initial_seed
from unflip.noise.transition import Realised, realised
from unflip.stats.discriminant import fit_discriminant
from unflip.training.board import Board
from unflip.training.checkpoint import Checkpoints, copy_state
from unflip.training.config import RunConfig, Safety
from unflip.training.evaluation import Truth, accuracies, accuracy, full_report
from unflip.training.folder import Run
from unflip.training.interruption import Interruption
from unflip.training.model_file import Model
from unflip.training.passes import DIVERGED_HINT, predict_probs, scan
from unflip.training.processes import Processes
from unflip.training.progress import Reporter, make_reporter
from unflip.training.result import make_result
from unflip.training.selection import selection_score
from unflip.training.standing import Standing
from unflip.training.trainer import Trainer

_Trainer = TypeVar("_Trainer", bound=Trainer)
_RESTORES = 6  # times that a run goes back; the learning rate is then 1 / 64 of what it was


@dataclass
class _Best:
    """The epoch that the selection rule likes best so far."""

    epoch: int = 0
    score: float = float("-inf")
    states: list[dict[str, Tensor]] = field(default_factory=list)


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
        self.best = _Best()
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
        self._select(line)
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

    def _select(self, line: Mapping[str, Any]) -> None:
        score = selection_score(self.config.common.select, line)
        if score > self.best.score:
            states = [copy_state(bare(network)) for network in self.trainer.networks]
            self.best = _Best(line["epoch"], score, states)

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
            self.metrics, self.best, self.seconds = [], _Best(), 0.0
            return
        for network, saved in zip(self.trainer.networks, state["networks"], strict=True):
            bare(network).load_state_dict(saved)
        for optimizer, saved in zip(self.trainer.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.method.load_state_dict(state["method"])
        self.processes.load_state_dict(state["precision"])
        self.labels.load_state_dict(state["labels"])
        self.best = _Best(**state["best"])
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
        for network, state in zip(networks, self.best.states, strict=True):
            bare(network).load_state_dict(state)
        probs, votes, features = self._judge()
        val, given = self.val_rows, self.labels.given
        if len(val) and not dataset.clean_val:
            corrected = self.method.correct(probs[val], given[val], votes[val])
            confidence = probs[val].gather(1, corrected[:, None])[:, 0]
            self.labels.change(common.epochs, val, corrected, confidence)
        noise = self._estimate_noise(probs)
        beliefs = self.method.beliefs()
        if beliefs is not None:
            probs[self.train_rows] = beliefs.to(probs)
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
        Model(
            network=common.network,
            options=self.config.network_options.model_dump(mode="json"),
            input_shape=dataset.source.shape,
            num_classes=dataset.num_classes,
            class_names=dataset.class_names,
            standardisation=dataset.standardisation,
            states=self.best.states,
            frame=dataset.frame,
            columns=dataset.columns,
        ).save(folder / "model.safetensors")
        result = make_result(
            self.config, dataset.name, self.metrics, self.best.epoch, self.truth, self.labels, self.train_rows,
            torch.tensor(table["quality"].to_numpy()), tests, noise, self.seconds, len(dataset.skipped), self.restores,
        )  # fmt: skip
        write_json(folder / "result.json", result)

    def _judge(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the networks (n, k), and Gaussians fitted to their features (n, k), say of every example's class.

        The Gaussians are fitted under the corrected labels of the training examples. With two networks, their mean.
        Third come the features of every example (n, d), with two networks the first's.
        """
        train, num_classes = self.train_rows, self.dataset.num_classes
        rows = torch.arange(len(self.labels), device=self.processes.device)
        current = self.labels.current[train]
        probs, votes = [], []
        kept: list[Tensor] = []
        for network in self.trainer.networks:
            features, logits = scan(network, self.source, rows, self.processes)
            discriminant = fit_discriminant(features[train], current, num_classes)
            probs.append(logits.softmax(1))
            votes.append(discriminant.posterior(features))
            votes[-1][train] = discriminant.posterior(features[train], current)
            kept = kept or [features]
        return torch.stack(probs).mean(0), torch.stack(votes).mean(0), kept[0]

    def _estimate_noise(self, probs: Tensor) -> Realised | None:
        """What the run believes about the given labels: rate, rate by class, and which class is called what.

        Where labels were corrected, the corrected ones stand for the truth. Where none was, the chosen model's
        predictions do, on the validation examples alone: of those it did not learn the labels.
        """
        original, current, val = self.labels.original, self.labels.current, self.val_rows
        if bool((self.labels.given != current).any()):  # beyond what people decided
            return realised(current.cpu(), original.cpu(), self.dataset.num_classes)
        if len(val) and not self.dataset.clean_val:
            return realised(probs[val].argmax(1).cpu(), original[val].cpu(), self.dataset.num_classes)
        return None


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
