"""Evaluation: accuracies, selection of the epoch and result.json; the only place that sees clean labels."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from unflip._version import __version__
from unflip.data.arrays import Array
from unflip.data.dataset import Dataset
from unflip.data.loaders import is_built_in
from unflip.data.sources import Source
from unflip.engine.checkpoints import RunState
from unflip.engine.distributed import Distributed
from unflip.engine.inference import predict_probs
from unflip.engine.scoring import FinalScores
from unflip.engine.trainer import Trainer
from unflip.errors import ConfigError
from unflip.methods.labels import LabelStore
from unflip.nn.ensemble import Ensemble
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.runs.config import RunConfig


@dataclass(frozen=True)
class EvaluationSet:
    """Test examples with their labels (n,)."""

    source: Source
    labels: Tensor
    leaked: Array | None = None
    """As in :class:`unflip.data.dataset.Split` (n,)."""


@dataclass(frozen=True)
class Truth:
    """The clean labels (n,) of a run's examples, if known, and its test sets."""

    clean: Tensor | None
    tests: dict[str, EvaluationSet]
    clean_val: bool = False
    """Whether the labels of the validation examples are known to be right; see ``effective_rule``."""

    @classmethod
    def of(cls, dataset: Dataset, processes: Distributed) -> "Truth":
        """Take the truth from a data set and move it to the device."""
        clean = None if dataset.clean is None else dataset.clean.to(processes.device)
        tests = {
            name: EvaluationSet(test.source.to(processes.device), test.class_numbers.to(processes.device), test.leaked)
            for name, test in dataset.tests.items()
        }
        return cls(clean, tests, dataset.clean_val)

    def label_accuracy(self, labels: Tensor, rows: Tensor | None = None) -> float | None:
        """Return the fraction of ``labels`` that are correct, among ``rows`` if given; None if the truth is unknown."""
        if self.clean is None:
            return None
        right = labels == self.clean
        return float((right if rows is None else right[rows]).float().mean())

    def quality_auroc(self, quality: Tensor, given: Tensor, rows: Tensor) -> float | None:
        """Return how well ``quality`` (n,) separates correct from wrong given labels among ``rows`` that have any."""
        if self.clean is None:
            return None
        quality = quality.to(given.device)
        rows = rows[~quality[rows].isnan()]
        return separation(quality[rows], (given == self.clean)[rows])


def separation(scores: Tensor, right: Tensor) -> float | None:
    """Return the probability that a correct label scores above a wrong one: the area under the ROC curve.

    None if all labels are correct, or none.
    """
    if bool(right.all()) or not bool(right.any()):
        return None
    return float(roc_auc_score(right.cpu().numpy(), scores.cpu().double().nan_to_num().numpy()))


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Return the fraction of examples whose most probable class is their label."""
    return float((probs.argmax(1) == labels).float().mean())


def evaluate(trainer: Trainer, truth: Truth) -> dict[str, Any]:
    """Return an epoch's accuracies; test sets and clean labels are only evaluated on, never learned from."""
    val, model, processes = trainer.val_rows, trainer.method.model(), trainer.processes
    figures: dict[str, Any] = {"val_accuracy": None, "test_accuracy": None}
    if len(val):
        probs = predict_probs(model, trainer.source, processes, val)
        figures["val_accuracy"] = accuracy(probs, trainer.labels.initial[val])
        if truth.clean is not None:
            figures["clean_val_accuracy"] = accuracy(probs, truth.clean[val])
        elif truth.clean_val:
            figures["clean_val_accuracy"] = figures["val_accuracy"]
    if truth.tests:
        figures["tests"] = accuracies(model, truth, processes)
        figures["test_accuracy"] = next(iter(figures["tests"].values()))
    figures["label_accuracy"] = truth.label_accuracy(trainer.labels.current, trainer.method.context.train)
    return figures


def accuracies(model: Ensemble, truth: Truth, processes: Distributed) -> dict[str, float]:
    """Return the accuracy on every test set."""
    return {
        name: accuracy(predict_probs(model, test.source, processes), test.labels) for name, test in truth.tests.items()
    }


def full_report(model: Ensemble, test: EvaluationSet, processes: Distributed) -> dict[str, Any]:
    """Return ``top1, top5, balanced, per_class`` of a test set; None for a class without test examples.

    Balanced accuracy is the mean over the classes that have examples. With up to five classes, top-5 is 1. Where leaks
    were looked for, ``leaked`` says how many there are, and ``top1_without_leakage`` is the accuracy on the others.
    """
    probs = predict_probs(model, test.source, processes)
    num_classes = probs.shape[1]
    right = (probs.argmax(1) == test.labels).float()
    counts = test.labels.bincount(minlength=num_classes)
    hits = test.labels.bincount(right, minlength=num_classes)
    per_class = [hit / count if count else None for hit, count in zip(hits.tolist(), counts.tolist(), strict=True)]
    known = [value for value in per_class if value is not None]
    top5 = probs.topk(min(5, num_classes)).indices.eq(test.labels[:, None]).any(1)
    leaks: dict[str, Any] = {}
    if test.leaked is not None:
        others = right[~torch.from_numpy(test.leaked).to(right.device)]
        leaks = {
            "leaked": int(test.leaked.sum()),
            "top1_without_leakage": float(others.mean()) if len(others) else None,
        }
    return {
        "top1": float(right.mean()),
        "top5": float(top5.float().mean()),
        "balanced": sum(known) / len(known),
        "per_class": per_class,
        **leaks,
    }


USES_TRUTH = {"clean-val": "clean validation labels", "best-test": "test labels"}
"""Rules that use the truth, and which labels they use; wherever their result is shown, this is stated."""


def selection_score(rule: str, metrics: Mapping[str, Any]) -> float:
    """Return the score of an epoch under a rule; the first of equal epochs is kept, with ``last`` the last epoch."""
    if rule == "last":
        return float(metrics["epoch"])
    key = {"noisy-val": "val_accuracy", "clean-val": "clean_val_accuracy", "best-test": "test_accuracy"}[rule]
    return float(metrics[key])


def check_selection(rule: str, *, has_val: bool, has_truth: bool, has_test: bool) -> None:
    """Reject a rule if the data lacks what it needs."""
    if rule in ("noisy-val", "clean-val") and not has_val:
        raise ConfigError(f"select = '{rule}' needs validation examples; raise data.val_fraction or try --select last")
    if rule == "clean-val" and not has_truth:
        raise ConfigError("select = 'clean-val' needs clean labels, and the data has none; try --select noisy-val")
    if rule == "best-test" and not has_test:
        raise ConfigError("select = 'best-test' needs a test set, and the data has none; try --select noisy-val")


def effective_rule(rule: str, *, clean_val: bool) -> str:
    """Return the rule that is in fact used: where the validation labels are clean, ``noisy-val`` is ``clean-val``."""
    return "clean-val" if rule == "noisy-val" and clean_val else rule


def protocol(rule: str, *, clean_val: bool = False) -> str:
    """Describe how the model was selected, and whether that used the truth."""
    rule = effective_rule(rule, clean_val=clean_val)
    return f"{rule} (uses the truth: {USES_TRUTH[rule]})" if rule in USES_TRUTH else rule


def make_result(
    config: RunConfig,
    dataset: Dataset,
    state: RunState,
    *,
    truth: Truth,
    trainer: Trainer,
    outcome: FinalScores,
    tests: Mapping[str, Any],
) -> dict[str, Any]:
    """Collect the results of a finished run. Later versions add keys but rename none.

    Args:
        config: the run's configuration.
        dataset: the data it learned from.
        state: the metrics of its epochs, and which one was selected.
        truth: clean labels and test sets, for evaluation only.
        trainer: the trainer, which holds the final labels.
        outcome: what the selected model and the method say about every example.
        tests: the result of :func:`unflip.engine.evaluation.full_report` by test set.
    """
    labels, train_rows = trainer.labels, trainer.method.context.train
    metrics, selected_epoch = state.metrics, state.best.epoch
    common = config.common
    selected = metrics[selected_epoch - 1]
    test_series = [line["test_accuracy"] for line in metrics]
    kept = torch.cat([train_rows, trainer.val_rows])  # not those that people removed
    given_accuracy = truth.label_accuracy(labels.given, kept)
    judged, noise = train_rows[~labels.trusted[train_rows]], outcome.noise
    return {
        "method": common.method,
        "data": dataset.name,
        "data_path": _absolute(common.data.path),
        "pictures_path": _absolute(dataset.images_path),
        "classes": list(dataset.class_names or ()) or [str(i) for i in range(dataset.num_classes)],
        "seed": common.seed,
        "epochs": common.epochs,
        "selection": effective_rule(common.select, clean_val=truth.clean_val),
        "protocol": protocol(common.select, clean_val=truth.clean_val),
        "selected_epoch": selected_epoch,
        "noise": common.noise.recipe,
        "noise_rate": None if given_accuracy is None else 1.0 - given_accuracy,
        "noise_rate_estimate": None if noise is None else noise.rate,
        "noise_rate_by_class": None if noise is None else noise.class_rates.tolist(),
        "transition_error": _transition_error(noise, truth, labels, kept),
        "test_accuracy": {
            "selected": selected["test_accuracy"],
            "last": test_series[-1],
            "best": max(test_series) if truth.tests else None,
        },
        "tests": tests,
        "val_accuracy": selected["val_accuracy"],
        "label_accuracy": {
            "given": truth.label_accuracy(labels.given, train_rows),
            "current": truth.label_accuracy(labels.current, train_rows),
        },
        "label_accuracy_all": {"given": given_accuracy, "current": truth.label_accuracy(labels.current, kept)},
        "quality_auroc": truth.quality_auroc(outcome.assessment.log_odds, labels.initial, judged),
        "score_auroc": truth.quality_auroc(outcome.score, labels.initial, judged),
        "judged_out_of_sample": float(outcome.assessment.out_of_sample[judged].float().mean()) if len(judged) else None,
        "reviewed": int(labels.trusted.sum()),
        "removed": int(dataset.removed.sum()),
        "skipped": len(dataset.skipped),
        "seconds": state.seconds,
        "seconds_per_epoch": state.seconds / common.epochs,
        "peak_rss_mb": _peak_rss_mb(),
        "versions": {
            "unflip": __version__,
            "torch": torch.__version__,
            "lightning-fabric": version("lightning-fabric"),
            "python": platform.python_version(),
        },
    }


def _absolute(path: str | None) -> str | None:
    """Return where data is, whatever folder a run was started from; built-in data keeps its name."""
    return path if path is None or is_built_in(path) else str(Path(path).absolute())


def _transition_error(noise: NoiseProfile | None, truth: Truth, labels: LabelStore, rows: Tensor) -> float | None:
    """Return the total variation distance between estimated and true rows of the transition matrix, averaged."""
    if noise is None or truth.clean is None:
        return None
    true = measure_noise(truth.clean[rows].cpu(), labels.given[rows].cpu(), labels.num_classes)
    return float((noise.matrix - true.matrix).abs().sum(1).mean() / 2)


def _peak_rss_mb() -> float | None:
    try:
        resource = import_module("resource")
    except ImportError:  # Windows has none
        return None
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
