"""Evaluation: accuracies and result.json; the only module that reads clean labels."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from unflip._version import __version__
from unflip.data.dataset import Dataset, Split
from unflip.data.loaders import is_built_in
from unflip.engine.checkpoints import RunState
from unflip.engine.distributed import Distributed
from unflip.engine.inference import predict_probs
from unflip.engine.scoring import FinalScores, effective_rule, protocol, transition_matrix
from unflip.engine.trainer import Trainer
from unflip.methods.base import LabelStore
from unflip.nn.base import Ensemble
from unflip.runs.config import RunConfig
from unflip.runs.labels import label_results


@dataclass(frozen=True)
class Truth:
    """The clean labels (n,) of a run's examples, if known, and its test sets."""

    clean: Tensor | None
    tests: dict[str, Split]
    clean_val: bool = False
    """Whether the validation labels are known to be correct; see :func:`unflip.engine.scoring.effective_rule`."""

    @classmethod
    def of(cls, dataset: Dataset, processes: Distributed) -> "Truth":
        """Take the truth from a data set and move it to the device."""
        device = processes.device
        tests = {name: replace(test, opened=test.source.to(device)) for name, test in dataset.tests.items()}
        return cls(None if dataset.clean is None else dataset.clean.to(device), tests, dataset.clean_val)

    def label_accuracy(self, labels: Tensor, rows: Tensor | None = None) -> float | None:
        """Return the fraction of ``labels`` that are correct, among ``rows`` if given; None if the truth is unknown."""
        if self.clean is None:
            return None
        correct = labels == self.clean
        return float((correct if rows is None else correct[rows]).float().mean())

    def quality_auroc(self, quality: Tensor, given: Tensor, rows: Tensor) -> float | None:
        """Return the AUROC of ``quality`` (n,) against whether given labels are correct, where it is not NaN.

        None if the truth is unknown, or if all labels are correct, or none.
        """
        if self.clean is None:
            return None
        rows = rows[~quality.to(given.device)[rows].isnan()]
        correct = (given == self.clean)[rows].cpu().numpy()
        if correct.all() or not correct.any():
            return None
        from sklearn.metrics import roc_auc_score  # slow to import, and few people know the clean labels

        return float(roc_auc_score(correct, quality.to(given.device)[rows].cpu().double().nan_to_num().numpy()))


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Return the fraction of examples whose most probable class is their label."""
    return float((probs.argmax(1) == labels.to(probs.device)).float().mean())


def evaluate(trainer: Trainer, model: Ensemble, truth: Truth) -> dict[str, Any]:
    """Return an epoch's accuracies: on validation examples, on each test set, and of the current labels."""
    val, processes = trainer.val_rows, trainer.processes
    metrics: dict[str, Any] = {"val_accuracy": None, "test_accuracy": None}
    if len(val):
        probs = predict_probs(model, trainer.source, processes, val)
        metrics["val_accuracy"] = accuracy(probs, trainer.labels.initial[val])
        if truth.clean is not None:
            metrics["clean_val_accuracy"] = accuracy(probs, truth.clean[val])
        elif truth.clean_val:
            metrics["clean_val_accuracy"] = metrics["val_accuracy"]
    if truth.tests:
        metrics["tests"] = accuracies(model, truth, processes)
        metrics["test_accuracy"] = next(iter(metrics["tests"].values()))
    metrics["label_accuracy"] = truth.label_accuracy(trainer.labels.current, trainer.method.context.train)
    return metrics


def accuracies(model: Ensemble, truth: Truth, processes: Distributed) -> dict[str, float]:
    """Return the accuracy on every test set."""
    tests = truth.tests.items()
    return {name: accuracy(predict_probs(model, test.source, processes), test.class_numbers) for name, test in tests}


def full_report(model: Ensemble, test: Split, processes: Distributed) -> dict[str, Any]:
    """Return ``top1``, ``top5``, ``balanced`` and ``per_class`` accuracy on a test set.

    A class without test examples has the accuracy None and does not count in the balanced one. With up to five
    classes, top-5 is 1. If leakage was checked, ``leaked`` is the number of leaked examples, and
    ``top1_without_leakage`` the accuracy on the others.
    """
    probs = predict_probs(model, test.source, processes)
    num_classes, labels = probs.shape[1], test.class_numbers.to(probs.device)
    correct = (probs.argmax(1) == labels).float()
    counts = labels.bincount(minlength=num_classes).tolist()
    hits = labels.bincount(correct, minlength=num_classes).tolist()
    per_class = [hit / count if count else None for hit, count in zip(hits, counts, strict=True)]
    known = [value for value in per_class if value is not None]
    top5 = probs.topk(min(5, num_classes)).indices.eq(labels[:, None]).any(1)
    report: dict[str, Any] = {"top1": float(correct.mean()), "top5": float(top5.float().mean())}
    report |= {"balanced": sum(known) / len(known), "per_class": per_class}
    if test.leaked is not None:
        others = correct[~torch.from_numpy(test.leaked).to(correct.device)]
        without_leakage = float(others.mean()) if len(others) else None
        report |= {"leaked": int(test.leaked.sum()), "top1_without_leakage": without_leakage}
    return report


def make_result(
    config: RunConfig, dataset: Dataset, state: RunState, truth: Truth, trainer: Trainer,
    scores: FinalScores, table: pa.Table, tests: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the content of ``result.json``.

    Args:
        config: the run's configuration.
        dataset: the prepared data.
        state: the metrics of all epochs, and the selected one.
        truth: clean labels and test sets.
        trainer: the trainer, which holds the final labels.
        scores: the scores of every example.
        table: the label table.
        tests: the result of :func:`full_report` by test set.
    """
    common, labels, train = config.common, trainer.labels, trainer.method.context.train
    rule = effective_rule(common.select, clean_val=truth.clean_val)
    selected = state.metrics[state.best.epoch - 1]
    test_series = [line["test_accuracy"] for line in state.metrics]
    best = max(test_series) if truth.tests else None
    rows = torch.cat([train, trainer.val_rows])  # all but removed and unlabeled examples
    labeled, rows = (part[labels.given[part] >= 0] for part in (train, rows))  # not those that reviewers labeled
    both = {"given": labels.given, "current": labels.current}
    accuracy_all = {name: truth.label_accuracy(part, rows) for name, part in both.items()}
    unreviewed = train[~labels.trusted[train]]
    out_of_sample = scores.assessment.out_of_sample[unreviewed].float()
    return {
        "method": common.method,
        "data": dataset.name,
        "data_path": data_path(common.data.path),
        "pictures_path": None if dataset.images_path is None else data_path(dataset.images_path),
        "classes": list(dataset.class_names or ()) or [str(i) for i in range(dataset.num_classes)],
        "seed": common.seed,
        "epochs": common.epochs,
        "selection": rule,
        "protocol": protocol(rule),
        "selected_epoch": state.best.epoch,
        "noise": common.noise.recipe,
        "noise_rate": None if accuracy_all["given"] is None else 1.0 - accuracy_all["given"],
        **label_results(table, scores.errors, dataset.num_classes),
        "transition_error": _transition_error(scores.transition, truth, labels, rows),
        "test_accuracy": {"selected": selected["test_accuracy"], "last": test_series[-1], "best": best},
        "tests": tests,
        "val_accuracy": selected["val_accuracy"],
        "label_accuracy": {name: truth.label_accuracy(part, labeled) for name, part in both.items()},
        "label_accuracy_all": accuracy_all,
        "quality_auroc": truth.quality_auroc(scores.assessment.log_odds, labels.initial, unreviewed),
        "score_auroc": truth.quality_auroc(scores.score, labels.initial, unreviewed),
        "out_of_sample": float(out_of_sample.mean()) if len(unreviewed) else None,
        "removed": int(dataset.removed.sum()),
        "skipped": len(dataset.skipped),
        "other_issues": None,
        "since_last": None,
        "seconds": state.seconds,
        "seconds_per_epoch": state.seconds / common.epochs,
        "versions": {
            "unflip": __version__,
            "torch": torch.__version__,
            "lightning-fabric": version("lightning-fabric"),
            "python": platform.python_version(),
        },
    }


def data_path(path: str) -> str:
    """Return the absolute path of data; a built-in data set keeps its name."""
    return path if is_built_in(path) else str(Path(path).absolute())


def _transition_error(estimate: Tensor | None, truth: Truth, labels: LabelStore, rows: Tensor) -> float | None:
    """Return the mean total variation distance between the rows of the estimated and the true transition matrix."""
    if estimate is None or truth.clean is None:
        return None
    true = transition_matrix(truth.clean[rows], labels.given[rows], labels.num_classes)
    return float((estimate - true).abs().sum(1).mean() / 2)
