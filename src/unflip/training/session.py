"""Session: one run, from its first epoch (or the one after its last checkpoint) to its result."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unflip.data.array_files import write_array
from unflip.data.dataset import Dataset
from unflip.data.image_files import skipped_csv
from unflip.errors import RunFolderError, UnflipError
from unflip.files import write_json, write_text
from unflip.labels.store import LabelStore, write_labels
from unflip.methods.base import Method, Setting, bare
from unflip.methods.recipes import find_recipe
from unflip.networks.base import build_network, initial_seed
from unflip.noise.transition import Realised, realised
from unflip.stats.discriminant import fit_discriminant
from unflip.training.board import Board
from unflip.training.checkpoint import copy_state, load_last_checkpoint, save_checkpoint
from unflip.training.config import RunConfig
from unflip.training.evaluation import Truth, accuracies, accuracy, full_report
from unflip.training.folder import Run
from unflip.training.model_file import Model
from unflip.training.passes import predict_probs, scan
from unflip.training.processes import Processes
from unflip.training.progress import Reporter, make_reporter
from unflip.training.result import make_result
from unflip.training.selection import selection_score
from unflip.training.trainer import Trainer

_Trainer = TypeVar("_Trainer", bound=Trainer)


@dataclass
class _Best:
    """The epoch that the selection rule likes best so far."""

    epoch: int = 0
    score: float = float("-inf")
    states: list[dict[str, Tensor]] = field(default_factory=list)


class Session:
    """One run, from its first epoch (or the one after its last checkpoint) to its result."""

    def __init__(self, run: Run, config: RunConfig, dataset: Dataset, processes: Processes, quiet: bool) -> None:
        self.run, self.config, self.dataset, self.processes = run, config, dataset, processes
        self.truth = Truth.of(dataset, processes)
        self.reporter = make_reporter(quiet or not processes.is_first)
        self.trainer = make_trainer(config, dataset, processes, self.reporter, Trainer)
        self.source, self.labels = self.trainer.source, self.trainer.labels
        self.method: Method = self.trainer.method
        self.train_rows, self.val_rows = self.method.setting.train, self.trainer.val_rows
        self.metrics: list[dict[str, Any]] = []
        self.best = _Best()
        self.seconds = 0.0

    def execute(self, *, resume: bool, force: bool) -> Run:
        """Train to the end and write everything."""
        self._claim_folder(resume=resume, force=force)
        if resume:
            self._restore()
        common = self.config.common
        first = len(self.metrics) + 1
        with self.reporter, Board(self.run.folder, enabled=self.processes.is_first) as board:
            self.reporter.start(common.method, common.epochs, first)
            for epoch in range(first, common.epochs + 1):
                started = time.perf_counter()
                line = self.trainer.run_epoch(epoch) | self._evaluate()
                self._select(line)
                self.seconds += time.perf_counter() - started
                self.metrics.append(line | {"seconds": time.perf_counter() - started})
                if self.processes.is_first:
                    self.run.write_metrics(self.metrics)
                    save_checkpoint(self.run.checkpoints, epoch, self._state())
                    board.write(self.metrics[-1])
                self.reporter.epoch(self.metrics[-1])
        self._finish()
        self.processes.fabric.barrier()
        return self.run

    def _claim_folder(self, *, resume: bool, force: bool) -> None:
        """Let the first process make the folder; if it cannot, all stop."""
        message = None
        if self.processes.is_first:
            try:
                self.run.check_free(resume=resume, force=force)
                self.run.prepare(force=force)
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

    def _state(self) -> dict[str, Any]:
        return {
            "networks": [bare(network).state_dict() for network in self.trainer.networks],
            "optimizers": [optimizer.state_dict() for optimizer in self.trainer.optimizers],
            "method": self.method.state_dict(),
            "precision": self.processes.state_dict(),
            "labels": self.labels.state_dict(),
            "best": {"epoch": self.best.epoch, "score": self.best.score, "states": self.best.states},
            "metrics": self.metrics,
            "seconds": self.seconds,
        }

    def _restore(self) -> None:
        state = load_last_checkpoint(self.run.checkpoints)
        if state is None:
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

    def _finish(self) -> None:
        """Score every example with the chosen model, correct those that validated, and write the results."""
        common, dataset, networks = self.config.common, self.dataset, self.trainer.networks
        gaussians, features = self.method.gaussians(), None
        if gaussians is not None:  # they belong to the last epoch's features, whichever model is chosen
            rows = torch.arange(len(self.labels), device=self.processes.device)
            features = scan(networks[0], self.source, rows, self.processes).features
        for network, state in zip(networks, self.best.states, strict=True):
            bare(network).load_state_dict(state)
        probs, votes = self._judge()
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
        if gaussians is not None and features is not None:
            gaussians.save(folder / "gaussians.safetensors")
            write_array(folder / "features.npy", features.half().cpu().numpy())
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
        ).save(folder / "model.safetensors")
        result = make_result(
            self.config, dataset.name, self.metrics, self.best.epoch, self.truth, self.labels, self.train_rows,
            torch.tensor(table["quality"].to_numpy()), tests, noise, self.seconds, len(dataset.skipped),
        )  # fmt: skip
        write_json(folder / "result.json", result)

    def _judge(self) -> tuple[Tensor, Tensor]:
        """Return what the networks (n, k), and Gaussians fitted to their features (n, k), say of every example's class.

        The Gaussians are fitted under the corrected labels of the training examples. With two networks, their mean.
        """
        train, num_classes = self.train_rows, self.dataset.num_classes
        rows = torch.arange(len(self.labels), device=self.processes.device)
        current = self.labels.current[train]
        probs, votes = [], []
        for network in self.trainer.networks:
            features, logits = scan(network, self.source, rows, self.processes)
            discriminant = fit_discriminant(features[train], current, num_classes)
            probs.append(logits.softmax(1))
            votes.append(discriminant.posterior(features))
            votes[-1][train] = discriminant.posterior(features[train], current)
        return torch.stack(probs).mean(0), torch.stack(votes).mean(0)

    def _estimate_noise(self, probs: Tensor) -> Realised | None:
        """What the run believes about the given labels: rate, rate by class, and which class is called what.

        Where labels were corrected, the corrected ones stand for the truth. Where none was, the chosen model's
        predictions do, on the validation examples alone: of those it did not learn the labels.
        """
        given, current, val = self.labels.given, self.labels.current, self.val_rows
        if bool((given != current).any()):
            return realised(current.cpu(), given.cpu(), self.dataset.num_classes)
        if len(val) and not self.dataset.clean_val:
            return realised(probs[val].argmax(1).cpu(), given[val].cpu(), self.dataset.num_classes)
        return None


def make_trainer(
    config: RunConfig, dataset: Dataset, processes: Processes, reporter: Reporter, kind: type[_Trainer]
) -> _Trainer:
    """Build a run's method and networks, and the trainer that trains them."""
    common, device = config.common, processes.device
    setting = Setting(
        num_classes=dataset.num_classes,
        train=(~dataset.is_val).nonzero()[:, 0].to(device),
        epochs=common.epochs,
        seed=common.seed,
        batch_size=common.optimizer.batch_size,
        lr_factor=common.optimizer.lr_factor,
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
        LabelStore(dataset.given.to(device), dataset.num_classes),
        common.optimizer,
        processes,
        reporter,
        dataset.is_val.nonzero()[:, 0].to(device),
    )
