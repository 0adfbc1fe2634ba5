"""result.json: what came out of a run, in fractions; null where the truth is not known."""

import platform
import resource
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unflip._version import __version__
from unflip.data.dataset import Dataset
from unflip.data.loader import is_embedded
from unflip.labels.store import LabelStore
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.runs.config import RunConfig
from unflip.training.evaluation import Truth
from unflip.training.selection import protocol
from unflip.training.state import RunState
from unflip.training.trainer import Trainer


def make_result(
    config: RunConfig,
    dataset: Dataset,
    state: RunState,
    *,
    truth: Truth,
    trainer: Trainer,
    quality: Tensor,
    noise: NoiseProfile | None,
    tests: Mapping[str, Any],
) -> dict[str, Any]:
    """Gather the figures of a finished run. Later versions add keys and rename none.

    Args:
        config: of the run.
        dataset: what it learnt from.
        state: its epochs, and which of them was chosen.
        truth: clean labels and test sets, for evaluation.
        trainer: with the labels as they are in the end.
        quality: (n,) of every given label.
        noise: what is believed of the given labels.
        tests: by test set, what :func:`unflip.training.evaluation.full_report` says.
    """
    labels, train_rows = trainer.labels, trainer.method.setting.train
    metrics, selected_epoch = state.metrics, state.best.epoch
    common = config.common
    selected = metrics[selected_epoch - 1]
    test_series = [line["test_accuracy"] for line in metrics]
    given_accuracy = truth.label_accuracy(labels.given)
    judged = train_rows[~labels.trusted[train_rows]]
    return {
        "method": common.method,
        "data": dataset.name,
        "data_path": None if is_embedded(common.data.path) else str(Path(common.data.path).absolute()),
        "images_path": dataset.images_path,
        "classes": dataset.class_names or [str(i) for i in range(dataset.num_classes)],
        "seed": common.seed,
        "epochs": common.epochs,
        "selection": common.select,
        "protocol": protocol(common.select, clean_val=truth.clean_val),
        "selected_epoch": selected_epoch,
        "noise": common.noise.recipe,
        "noise_rate": None if given_accuracy is None else 1.0 - given_accuracy,
        "noise_rate_estimate": None if noise is None else noise.rate,
        "noise_rate_by_class": None if noise is None else noise.class_rates.tolist(),
        "transition_error": _transition_error(noise, truth, labels),
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
        "label_accuracy_all": {"given": given_accuracy, "current": truth.label_accuracy(labels.current)},
        "quality_auroc": truth.quality_auroc(quality, labels.initial, judged),
        "reviewed": int(labels.trusted.sum()),
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


def _transition_error(noise: NoiseProfile | None, truth: Truth, labels: LabelStore) -> float | None:
    """Mean over classes of the total variation between the estimated and the true row of the transition matrix."""
    if noise is None or truth.clean is None:
        return None
    true = measure_noise(truth.clean.cpu(), labels.given.cpu(), labels.num_classes)
    return float((noise.matrix - true.matrix).abs().sum(1).mean() / 2)


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
