"""Evaluation: accuracies, and the only place that knows the true labels."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unflip.compute.passes import predict_probs
from unflip.compute.processes import Processes
from unflip.data.dataset import Dataset
from unflip.data.labelled import EvaluationSet
from unflip.nn.ensemble import Ensemble


@dataclass(frozen=True)
class Truth:
    """The clean labels (n,) of a run's examples, if known, and its test sets."""

    clean: Tensor | None
    tests: dict[str, EvaluationSet]
    clean_val: bool = False
    """Whether the labels of the validation examples are known to be right; see ``effective_rule``."""

    @classmethod
    def of(cls, dataset: Dataset, processes: Processes) -> "Truth":
        """Take the truth from a data set and move it to the device."""
        clean = None if dataset.clean is None else dataset.clean.to(processes.device)
        tests = {
            name: replace(test, source=test.source.to(processes.device), labels=test.labels.to(processes.device))
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
    """Return the probability that a correct label scores above a wrong one: the area under the ROC curve, ties half.

    With m correct labels among n, whose mean ranks are r_i, it is ``(sum r_i - m (m + 1) / 2) / (m (n - m))`` (Mann and
    Whitney 1947). None if all labels are correct, or none.
    """
    _, position, counts = scores.double().unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[position]  # from 1; equal scores share their mean rank
    hits, count = int(right.sum()), len(right)
    if hits in (0, count):
        return None
    return float((ranks[right].double().sum() - hits * (hits + 1) / 2) / (hits * (count - hits)))


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Return the fraction of examples whose most probable class is their label."""
    return float((probs.argmax(1) == labels).float().mean())


def accuracies(model: Ensemble, truth: Truth, processes: Processes) -> dict[str, float]:
    """Return the accuracy on every test set."""
    return {
        name: accuracy(predict_probs(model, test.source, processes), test.labels) for name, test in truth.tests.items()
    }


def full_report(model: Ensemble, test: EvaluationSet, processes: Processes) -> dict[str, Any]:
    """Return ``top1, top5, balanced, per_class`` of a test set; None for a class without test examples.

    Balanced accuracy is the mean over the classes that have examples. With up to five classes, top-5 is 1. Where leaks
    were looked for, ``leaked`` says how many there are, and ``top1_without_leaked`` is the accuracy on the others.
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
            "top1_without_leaked": float(others.mean()) if len(others) else None,
        }
    return {
        "top1": float(right.mean()),
        "top5": float(top5.float().mean()),
        "balanced": sum(known) / len(known),
        "per_class": per_class,
        **leaks,
    }
