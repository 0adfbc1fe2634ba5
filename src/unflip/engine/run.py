"""A run: train_run in a folder, with checkpoints; train_in_memory without. Both use the same trainer and scoring."""

import logging
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from torch import Tensor

from unflip.data.annotations import long_form
from unflip.data.arrays import write_array
from unflip.data.corrupt import corrupt_labels
from unflip.data.dataset import Dataset
from unflip.data.labeling import settle_scale
from unflip.data.split import split
from unflip.engine.checkpoints import BestEpoch, Checkpoints, EpochProgress, RunState, data_fingerprint, difference
from unflip.engine.distributed import Distributed
from unflip.engine.evaluation import Truth, evaluate, full_report, make_result
from unflip.engine.posterior import find_posterior
from unflip.engine.scoring import FinalScores, check_selection, effective_rule, score_examples, selection_score
from unflip.engine.trainer import Trainer, finite, lr_factor
from unflip.errors import ConfigError, RunFolderError, Stopped
from unflip.files import Interruption, write_json
from unflip.methods import find_method
from unflip.methods.base import LabelStore, TrainContext
from unflip.nn.base import Network, build_network, initial_seed, unwrap
from unflip.progress import Reporter, make_reporter, summary
from unflip.runs import layout
from unflip.runs.annotators import AnnotatorTables, Unlabeled, annotator_tables
from unflip.runs.config import RunConfig, flatten, read_toml
from unflip.runs.folder import Claim, Run
from unflip.runs.labels import LabelSummary, label_table, summarize_labels
from unflip.runs.model_file import Model
from unflip.runs.options import Execution

_log = logging.getLogger(__name__)


def train_run(claim: Claim, config: RunConfig, execution: Execution, *, data: Dataset | None = None) -> Run:
    """Train all epochs, write everything but the report, and return the finished run.

    Args:
        claim: the run folder, and whether the run in it is resumed, from its last checkpoint, or replaced.
        config: the run's configuration.
        execution: device, threads and checkpoints; they do not affect the results.
        data: from ``config.load_data``; by default it is loaded here.
    """
    run = claim.run
    run.check_free(resume=claim.resume, force=claim.force, inputs=config.inputs())
    if claim.resume:
        _check_same(run, config)
        if run.is_finished and run.result["epochs"] >= config.common.epochs:
            return run
    config.check()
    processes = Distributed(execution.device, config.common.precision, execution.threads)
    if data is None:
        data = config.load_data(track=make_reporter(execution.quiet).track)
    config.check_size(len(data.given), data.num_classes, processes.device.type)
    dataset = prepare_data(config, processes, data, quiet=execution.quiet)
    session = Session(run, config, dataset, processes, execution)
    claim.hold()
    if claim.resume:
        session.load()
    if processes.is_first:
        session.write_start(replace=claim.force)
    signals = session.interruption if processes.count == 1 else nullcontext()
    with session.reporter, signals:
        done = len(session.state.metrics)
        session.reporter.start(config.common.method, config.common.epochs, done + 1)
        for line in session.trainer.fit(done + 1, session.unfinished, session.after_step):
            session.end_epoch(line)
            session.reporter.epoch(line)
    with finite("at the end of the run"):
        session.write_results()
    if processes.count > 1:
        processes.fabric.barrier()
    return run


def prepare_data(config: RunConfig, processes: Distributed, data: Dataset, *, quiet: bool | None = True) -> Dataset:
    """Corrupt and split the labeled data of a run.

    Args:
        config: the run's configuration.
        processes: the device on which posteriors for pmd noise are estimated.
        data: from ``config.load_data``.
        quiet: show no progress.
    """
    common = config.common
    if common.noise.recipe is not None:
        posterior = find_posterior(data, common.noise, common.seed, processes, quiet=quiet)
        data = corrupt_labels(data, common.noise, posterior, common.seed)  # those for validation, too
        data = settle_scale(data) if common.data.standardize == "auto" else data
    dataset = split(data, common.data.val_fraction, common.seed)
    has_val, has_truth = bool(dataset.is_val.any()), dataset.clean is not None or dataset.clean_val
    check_selection(common.select, has_val=has_val, has_truth=has_truth, has_test=bool(dataset.tests))
    return dataset


def make_model(config: RunConfig, dataset: Dataset, best: BestEpoch) -> Model:
    """Return the model of the selected epoch, with everything needed to rebuild it and to prepare its inputs."""
    return Model(
        network=config.common.network,
        options=config.network_options.model_dump(mode="json"),
        input_shape=dataset.source.shape,
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
        standardization=dataset.standardization,
        state=best.state,
        frame=dataset.frame,
        encoding=dataset.encoding,
    )


def make_trainer(config: RunConfig, dataset: Dataset, processes: Distributed, reporter: Reporter) -> Trainer:
    """Build a run's method and networks, and the trainer that trains them.

    Args:
        config: the run's configuration.
        dataset: the prepared data.
        processes: the device and the processes of the run.
        reporter: receives every step.
    """
    common, device = config.common, processes.device
    of_review = dataset.reviewed, dataset.review_weights
    reviewed, weights = (None if column is None else column.to(device) for column in of_review)
    train = dataset.trains.nonzero()[:, 0].to(device)
    context = TrainContext(
        num_classes=dataset.num_classes,
        train=train,
        epochs=common.epochs,
        seed=common.seed,
        batch_size=common.optimizer.batch_size,
        lr_factor=partial(lr_factor, common.optimizer, epochs=common.epochs),
        device=device,
        has_val=bool(dataset.is_val.any()),
        clean_val=dataset.clean_val,
        of_rows=len(dataset.source.shape) == 1,
        groups=None if dataset.same is None else dataset.same.to(device)[train],
        ordinal=common.data.ordinal,
        unlabeled=(dataset.is_unlabeled & ~dataset.removed).nonzero()[:, 0].to(device),
    )
    spec = find_method(common.method)
    if context.ordinal and not spec.method.uses_order:
        raise ConfigError(f"data.ordinal is not used: method {common.method} knows no order of classes; use unflip")
    annotations = None
    if dataset.train.annotations is not None:
        if not (spec.method.uses_annotations and context.of_rows):
            raise ConfigError(f"method {common.method}: takes one label per example; use unflip on features instead")
        annotations = long_form(dataset).to(device)

    def build(position: int) -> Network:
        shape, seed = dataset.source.shape, initial_seed(common.seed, position)
        return build_network(common.network, config.network_options, shape, dataset.num_classes, seed)

    return Trainer(
        spec.build(config.parts, context),
        spec.method.build_networks(config.parts[spec.name], context, build),
        dataset.source.to(device),
        LabelStore(dataset.given.to(device), dataset.num_classes, reviewed, weights, annotations),
        common.optimizer,
        processes,
        reporter,
        dataset.is_val.nonzero()[:, 0].to(device),
    )


class MemoryRun(NamedTuple):
    """The results of a run in memory."""

    model: Model
    labels: pa.Table
    """The same table as ``labels.parquet``."""
    transition: Tensor | None
    """The estimated transition matrix of the given labels, if there is an estimate."""
    summary: LabelSummary
    annotators: AnnotatorTables | None
    """What is known about annotators, if there are several."""


def train_in_memory(
    config: RunConfig, raw: Dataset, processes: Distributed, reviewed: Tensor | None = None
) -> MemoryRun:
    """Train all epochs without folder and checkpoints; the selection rule is ``last`` or ``noisy-val``.

    Args:
        config: the run's configuration.
        raw: the data.
        processes: the device and the processes of the run.
        reviewed: reviewed labels (n,), -1 for the other examples.
    """
    config.check()
    common = config.common
    data = config.load_data(raw)
    config.check_size(len(data.given), data.num_classes, processes.device.type)
    dataset = replace(prepare_data(config, processes, data), reviewed=reviewed)
    trainer = make_trainer(config, dataset, processes, Reporter())
    best = BestEpoch()
    for line in trainer.fit():
        model = trainer.method.model()
        if common.select == "noisy-val":
            with finite(f"at the end of epoch {line['epoch']}"):
                line |= evaluate(trainer, model, Truth(None, {}))
        best.update(line["epoch"], selection_score(common.select, line), model)
    scores, _ = score_examples(trainer, best, common.epochs, clean_val=False)
    table = label_table(trainer.labels, scores.assessment, splits=dataset.splits())
    annotators = _annotator_tables(trainer, scores, table, dataset)
    summary = summarize_labels(table, scores.errors)
    return MemoryRun(make_model(config, dataset, best), table, scores.transition, summary, annotators)


def _annotator_tables(
    trainer: Trainer, scores: FinalScores, table: pa.Table, dataset: Dataset
) -> AnnotatorTables | None:
    """Return what is known about annotators; None with one label per example."""
    labels, train = trainer.labels, trainer.method.context.train
    if scores.annotators is None or labels.annotations is None:
        return None
    ids, names = table["id"].to_pylist(), dataset.class_names or ()
    rows, assessment = trainer.method.context.unlabeled, scores.assessment
    unlabeled = Unlabeled(rows, assessment.top2[rows], assessment.top2_probs[rows])
    annotations = labels.annotations.at(train, len(labels))
    return annotator_tables(scores.annotators, annotations, train, ids, names, unlabeled)


def _check_same(run: Run, config: RunConfig) -> None:
    """Raise ConfigError unless a resumed run has the same configuration; only the number of epochs may grow."""
    before, now = flatten(read_toml(run.config_path)), flatten(config.tree())
    if now["epochs"] < before["epochs"]:
        raise ConfigError(f"{run.folder} was started with epochs = {before['epochs']}; --resume can only raise that")
    for key in before | now:  # top-level keys first: the method before its options
        if key != "epochs" and before.get(key) != now.get(key):
            told = f"{run.folder} was started with {key} = {before.get(key)}, now it is {now.get(key)}"
            raise ConfigError(f"{told}; resume with the same value, or start over with --force")


class Session:
    """The training of a run in its folder: evaluation, selection of the epoch, checkpoints and signals.

    Args:
        run: the run folder.
        config: the run's configuration.
        dataset: the prepared data.
        processes: the device and the processes of the run.
        execution: device, threads and checkpoints; they do not affect the results.
    """

    def __init__(
        self, run: Run, config: RunConfig, dataset: Dataset, processes: Distributed, execution: Execution
    ) -> None:
        self.run, self.config, self.dataset, self.processes = run, config, dataset, processes
        self.data_fingerprint = data_fingerprint(dataset)  # before the inputs are moved to the device
        self.truth = Truth.of(dataset, processes)
        self.reporter = make_reporter(execution.quiet)
        self.checkpoints = Checkpoints(run.checkpoints, execution.keep_checkpoints, execution.checkpoint_minutes)
        self.interruption = Interruption()
        self.state = RunState()
        self.unfinished: EpochProgress | None = None  # the partly trained epoch of a resumed run
        self.trainer = make_trainer(config, dataset, processes, self.reporter)

    def after_step(self, epoch: int, progress: EpochProgress) -> None:
        """Save within an epoch if a checkpoint is due; after a signal, save and stop."""
        if self.processes.count > 1:  # they would have to agree on the step
            return
        if self.interruption.signal is not None or self.checkpoints.is_due(midway=True):
            self.trainer.mean_losses(epoch)  # raises if one is not finite
            self.trainer.check_weights(f"in epoch {epoch}, batch {progress.steps}")
            self._save(epoch, progress)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Evaluate an epoch, add the results to its metrics ``line``, select, and save."""
        epoch, trainer, state = line["epoch"], self.trainer, self.state
        trainer.check_weights(f"at the end of epoch {epoch}")
        model = trainer.method.model()
        with finite(f"at the end of epoch {epoch}"):
            line |= evaluate(trainer, model, self.truth)
        rule = effective_rule(self.config.common.select, clean_val=self.truth.clean_val)
        state.best.update(epoch, selection_score(rule, line), model)
        line["seconds"] = time.perf_counter() - trainer.progress.started
        state.seconds += line["seconds"]
        _log.info("epoch %d of %d: %s", epoch, self.config.common.epochs, summary(line))
        state.metrics.append(line)
        if self.processes.is_first:
            self.run.write_metrics(state.metrics)
            last, stop = epoch == self.config.common.epochs, self.interruption.signal is not None
            if last or stop or self.checkpoints.is_due(midway=False):
                self._save(epoch)

    def write_start(self, *, replace: bool) -> None:
        """Write what is known before the first epoch; with ``replace``, remove the previous run first."""
        if replace:
            self.run.clear()
        self.run.begin()
        self.run.write_config(self.config.to_toml())
        self.run.own(layout.CHECKPOINTS)
        if self.dataset.noise_record is not None:
            write_json(self.run.own(layout.NOISE), self.dataset.noise_record)
        if self.dataset.skipped:
            self.run.write_skipped(self.dataset.skipped)

    def _save(self, epoch: int, progress: EpochProgress | None = None) -> None:
        """Write a checkpoint of the end of ``epoch``, or of its ``progress``; then stop if a signal arrived."""
        trainer, state = self.trainer, self.state
        tree = {
            "data": self.data_fingerprint,
            "networks": [unwrap(network).state_dict() for network in trainer.networks],
            "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "method": trainer.method.state_dict(),
            "precision": self.processes.scaler and self.processes.scaler.state_dict(),
            "labels": trainer.labels.state_dict(),
            "best": vars(state.best),
            "metrics": state.metrics,
            "seconds": state.seconds,
            "progress": progress and progress.state_dict(),
        }
        midway = None if progress is None else (progress.phase, progress.steps)
        command = f"unflip train --out {self.run.folder} --resume"
        try:
            self.checkpoints.save(tree, epoch, midway)
        except RunFolderError as error:
            intact = f"earlier checkpoints are intact: fix the cause and resume with: {command}"
            raise RunFolderError(f"{error}; {intact}") from error
        if self.interruption.signal is not None:
            where = f"after epoch {epoch}" if progress is None else f"in epoch {epoch}"
            raise Stopped(f"stopped {where} and saved; resume with: {command}", self.interruption.signal)

    def load(self) -> None:
        """Restore the last checkpoint; without one, the run starts from the beginning."""
        saved, trainer = self.checkpoints.load_last(), self.trainer
        if saved is None:
            return
        if (change := difference(saved["data"], self.data_fingerprint)) is not None:
            raise RunFolderError(f"{self.run.folder}: {change}; resume with the same data, or start over with --force")
        for network, weights in zip(trainer.networks, saved["networks"], strict=True):
            unwrap(network).load_state_dict(weights)
        for optimizer, state in zip(trainer.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        trainer.method.load_state_dict(saved["method"])
        if self.processes.scaler:
            self.processes.scaler.load_state_dict(saved["precision"])
        trainer.labels.load_state_dict(saved["labels"])
        self.state = RunState(saved["metrics"], BestEpoch(**saved["best"]), saved["seconds"])
        if saved["progress"] is not None:
            self.unfinished = EpochProgress.from_state_dict(saved["progress"], self.processes.device)

    def write_results(self) -> None:
        """Score every example with the selected model, correct the validation labels, and write the results."""
        trainer, best, dataset, processes = self.trainer, self.state.best, self.dataset, self.processes
        epochs = self.config.common.epochs
        gaussians = trainer.method.gaussians()
        scores, features = score_examples(trainer, best, epochs, clean_val=dataset.clean_val)
        tests = {name: full_report(scores.model, test, processes) for name, test in self.truth.tests.items()}
        if not processes.is_first:
            return
        if gaussians is not None:
            self.run.write_gaussians(gaussians)
        self.run.write_features(features)
        del features  # free the memory for the table
        table = label_table(
            trainer.labels,
            scores.assessment,
            splits=dataset.splits(),
            ids=dataset.ids,
            digests=dataset.content_digests(),
            class_names=dataset.class_names,
        )
        self.run.write_labels(table, trainer.labels.history())
        if (tables := _annotator_tables(trainer, scores, table, dataset)) is not None:
            self.run.write_annotators(tables)
        if scores.transition is not None:
            write_array(self.run.own(layout.TRANSITION), scores.transition.numpy().astype(np.float32))
        make_model(self.config, dataset, best).save(self.run.own(layout.MODEL))
        result = make_result(self.config, dataset, self.state, self.truth, trainer, scores, table, tests)
        write_json(self.run.own(layout.RESULT), result)
