"""result.json: the results of a run, as fractions; null where the truth is unknown."""

import platform
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unflip._version import __version__
from unflip.data.dataset import Dataset
from unflip.data.loader import is_built_in
from unflip.labels.store import LabelStore
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.runs.config import RunConfig
from unflip.training.evaluation import Truth
from unflip.training.outcome import Outcome
from unflip.training.selection import effective_rule, protocol
from unflip.training.state import RunState
from unflip.training.trainer import Trainer


def make_result(
    config: RunConfig,
    dataset: Dataset,
    state: RunState,
    *,
    truth: Truth,
    trainer: Trainer,
    outcome: Outcome,
    tests: Mapping[str, Any],
) -> dict[str, Any]:
    """Collect the results of a finished run. Later versions add keys but rename none.

    Args:
        config: the run's configuration.
        dataset: the data it learnt from.
        state: the metrics of its epochs, and which one was selected.
        truth: clean labels and test sets, for evaluation only.
        trainer: the trainer, which holds the final labels.
        outcome: what the selected model and the method say about every example.
        tests: the result of :func:`unflip.training.evaluation.full_report` by test set.
    """
    labels, train_rows = trainer.labels, trainer.method.setting.train
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
        "pictures_path": _absolute(dataset.pictures_path),
        "classes": dataset.class_names or [str(i) for i in range(dataset.num_classes)],
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
        "restores": list(state.restores),
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
