"""train: from a configuration to a finished run folder."""

import platform
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unflip._version import __version__
from unflip.data.dataset import Dataset, open_dataset
from unflip.errors import ConfigError, RunFolderError, UnflipError
from unflip.files import write_json, write_text
from unflip.labels.store import LabelStore, write_labels
from unflip.methods.base import Method, Setting, bare
from unflip.methods.recipes import find_recipe
from unflip.networks.base import build_network, initial_seed
from unflip.training.board import Board
from unflip.training.checkpoint import copy_state, load_last_checkpoint, save_checkpoint
from unflip.training.config import RunConfig, Tree, parse_setting, read_preset, read_toml
from unflip.training.evaluation import Truth, accuracies, accuracy, full_report
from unflip.training.folder import Run
from unflip.training.model_file import Model
from unflip.training.passes import predict_probs
from unflip.training.posterior import PosteriorFit
from unflip.training.processes import Processes
from unflip.training.progress import make_reporter
from unflip.training.selection import check_selection, protocol, selection_score
from unflip.training.trainer import Trainer


def train(
    data: str | Path | None,
    out: str | Path,
    *,
    labels: str | Path | None = None,
    take: int | None = None,
    noise: str | None = None,
    method: str | None = None,
    network: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    select: str | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] = (),
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = True,
) -> Run:
    """Train on data whose labels may be wrong; write a run folder and return it.

    Does what ``unflip train`` does, with the same defaults and the same errors, as exceptions of
    :class:`unflip.errors.UnflipError`. ``settings`` are what ``--set`` takes: ``"key=value"`` strings, or a mapping
    from dotted keys to values. Arguments left at None come from ``settings``, ``config``, ``preset`` or the
    defaults, in this order. With ``resume``, ``data`` may be None: everything comes from the run folder.
    """
    run = Run(Path(out))
    run.check_free(resume=resume, force=force)
    flags = {"method": method, "network": network, "epochs": epochs, "seed": seed, "select": select}
    paths = {"path": data, "labels": labels}
    data_flags: Tree = {key: str(Path(path)) for key, path in paths.items() if path is not None} | {"take": take}
    resolved = resolve_config(
        base=read_toml(run.config_path) if resume else {},
        preset=preset,
        config=None if config is None else Path(config),
        settings=settings,
        flags=_given(flags) | {"data": _given(data_flags), "noise": _given({"recipe": noise})},
    )
    if resume:
        _check_same(run, resolved)
        if run.is_finished and run.result["epochs"] >= resolved.common.epochs:
            return run
    if threads is not None:
        torch.set_num_threads(threads)
    processes = Processes(device)
    common = resolved.common
    estimate = PosteriorFit(
        network=common.network,
        network_options=resolved.parts[common.network],
        optimizer=common.optimizer,
        seed=common.seed,
        processes=processes,
        reporter=make_reporter(quiet or not processes.is_first),
    )
    dataset = open_dataset(common.data, common.seed, common.noise, estimate)
    return _Training(run, resolved, dataset, processes, quiet).execute(resume=resume, force=force)


def resolve_config(
    *,
    base: Tree,
    preset: str | None,
    config: Path | None,
    settings: Iterable[str] | Mapping[str, Any],
    flags: Tree,
) -> RunConfig:
    """Lay preset, config file, settings and flags over each other: the later wins."""
    if isinstance(settings, Mapping):
        typed = [_nest(key, value) for key, value in settings.items()]
    else:
        typed = [parse_setting(text) for text in settings]
    layers = [base, read_preset(preset) if preset else {}, read_toml(config) if config else {}, *typed, flags]
    explicit = [key for layer in typed for key, value in layer.items() if isinstance(value, dict)]
    return RunConfig.resolve(layers, explicit)


def _nest(key: str, value: Any) -> Tree:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def _given(values: Mapping[str, Any]) -> Tree:
    return {key: value for key, value in values.items() if value is not None}


def _check_same(run: Run, resolved: RunConfig) -> None:
    """A resumed run is the same run; it may only be made longer."""
    before, now = _flat(read_toml(run.config_path)), _flat(resolved.tree())
    for key in sorted({*before, *now} - {"epochs"}):
        if before.get(key) != now.get(key):
            raise ConfigError(f"{run.folder} was started with {key} = {before.get(key)}, now it is {now.get(key)}; "
                              "resume with the same, or start anew with --force")  # fmt: skip


def _flat(tree: Tree, prefix: str = "") -> Tree:
    flat: Tree = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


@dataclass
class _Best:
    """The epoch that the selection rule likes best so far."""

    epoch: int = 0
    score: float = float("-inf")
    states: list[dict[str, Tensor]] = field(default_factory=list)


class _Training:
    """One run, from its first epoch (or the one after its last checkpoint) to its result."""

    def __init__(self, run: Run, config: RunConfig, dataset: Dataset, processes: Processes, quiet: bool) -> None:
        self.run, self.config, self.dataset, self.processes = run, config, dataset, processes
        common = config.common
        device = processes.device
        self.truth = Truth.of(dataset, processes)
        check_selection(
            common.select,
            has_val=bool(dataset.is_val.any()),
            has_truth=dataset.clean is not None,
            has_test=bool(dataset.tests),
        )
        self.source = dataset.source.to(device)
        self.labels = LabelStore(dataset.given.to(device), dataset.num_classes)
        self.train_rows = (~dataset.is_val).nonzero()[:, 0].to(device)
        self.val_rows = dataset.is_val.nonzero()[:, 0].to(device)
        setting = Setting(
            num_classes=dataset.num_classes,
            train=self.train_rows,
            epochs=common.epochs,
            seed=common.seed,
            batch_size=common.optimizer.batch_size,
            lr_factor=common.optimizer.lr_factor,
            device=device,
        )
        recipe = find_recipe(common.method)
        self.method: Method = recipe.build(config.parts, setting)
        networks = [
            build_network(
                common.network,
                config.parts[common.network],
                dataset.source.shape,
                dataset.num_classes,
                initial_seed(common.seed, position),
            )
            for position in range(recipe.num_networks)
        ]
        self.reporter = make_reporter(quiet or not processes.is_first)
        self.trainer = Trainer(
            self.method, networks, self.source, self.labels, common.optimizer, processes, self.reporter
        )
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
        self.labels.load_state_dict(state["labels"])
        self.best = _Best(**state["best"])
        self.metrics, self.seconds = state["metrics"], state["seconds"]

    def _finish(self) -> None:
        """Score every example with the chosen model, correct those that validated, and write the results."""
        common, dataset, networks = self.config.common, self.dataset, self.trainer.networks
        for network, state in zip(networks, self.best.states, strict=True):
            bare(network).load_state_dict(state)
        probs = predict_probs(networks, self.source, self.processes)
        val, given = self.val_rows, self.labels.given
        if len(val):
            corrected = self.method.correct(probs[val], given[val])
            confidence = probs[val].gather(1, corrected[:, None])[:, 0]
            self.labels.change(common.epochs, val, corrected, confidence)
        beliefs = self.method.beliefs()
        if beliefs is not None:
            probs[self.train_rows] = beliefs.to(probs)
        tests = {name: full_report(networks, test, self.processes) for name, test in self.truth.tests.items()}
        if not self.processes.is_first:
            return
        table = self.labels.table(probs, splits=dataset.splits(), ids=dataset.ids, class_names=dataset.class_names)
        write_labels(self.run.folder, table, self.labels.history())
        Model(
            network=common.network,
            options=self.config.parts[common.network].model_dump(mode="json"),
            input_shape=dataset.source.shape,
            num_classes=dataset.num_classes,
            class_names=dataset.class_names,
            standardisation=dataset.standardisation,
            states=self.best.states,
        ).save(self.run.folder / "model.safetensors")
        write_json(self.run.folder / "result.json", self._result(tests, probs))

    def _result(self, tests: dict[str, Any], probs: Tensor) -> dict[str, Any]:
        common, truth, labels = self.config.common, self.truth, self.labels
        selected = self.metrics[self.best.epoch - 1]
        test_series = [line["test_accuracy"] for line in self.metrics]
        has_test = test_series[-1] is not None
        given_accuracy = truth.label_accuracy(labels.given)
        return {
            "method": common.method,
            "data": self.dataset.name,
            "seed": common.seed,
            "epochs": common.epochs,
            "selection": common.select,
            "protocol": protocol(common.select),
            "selected_epoch": self.best.epoch,
            "noise": common.noise.recipe,
            "noise_rate": None if given_accuracy is None else 1.0 - given_accuracy,
            "noise_rate_estimate": self._noise_rate_estimate(probs),
            "test_accuracy": {
                "selected": selected["test_accuracy"],
                "last": test_series[-1],
                "best": max(test_series) if has_test else None,
            },
            "tests": tests,
            "val_accuracy": selected["val_accuracy"],
            "label_accuracy": {
                "given": truth.label_accuracy(labels.given, self.train_rows),
                "current": truth.label_accuracy(labels.current, self.train_rows),
            },
            "label_accuracy_all": {"given": given_accuracy, "current": truth.label_accuracy(labels.current)},
            "seconds": self.seconds,
            "seconds_per_epoch": self.seconds / common.epochs,
            "peak_rss_mb": _peak_rss_mb(),
            "versions": {
                "unflip": __version__,
                "torch": torch.__version__,
                "lightning-fabric": version("lightning-fabric"),
                "python": platform.python_version(),
            },
        }

    def _noise_rate_estimate(self, probs: Tensor) -> float | None:
        """What the chosen model thinks of labels it did not learn: one minus its mean confidence in them."""
        if not len(self.val_rows):
            return None
        given = self.labels.given[self.val_rows]
        return float(1.0 - probs[self.val_rows].gather(1, given[:, None]).mean())


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
