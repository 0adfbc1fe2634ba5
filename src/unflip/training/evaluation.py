"""Evaluation: accuracies, and the only place that holds the truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from unflip.data.dataset import Dataset, TestSet
from unflip.training.passes import predict_probs
from unflip.training.processes import Processes


@dataclass(frozen=True)
class Truth:
    """The clean labels (n,) of a run's examples, where they are known, and its test sets."""

    clean: Tensor | None
    tests: dict[str, TestSet]

    @classmethod
    def of(cls, dataset: Dataset, processes: Processes) -> "Truth":
        """Take the truth out of a data set, onto the device."""
        clean = None if dataset.clean is None else dataset.clean.to(processes.device)
        tests = {
            name: TestSet(test.source.to(processes.device), test.labels.to(processes.device))
            for name, test in dataset.tests.items()
        }
        return cls(clean, tests)

    def label_accuracy(self, labels: Tensor, rows: Tensor | None = None) -> float | None:
        """Return the share of ``labels`` that are right, among ``rows`` if given; None where nobody knows."""
        if self.clean is None:
            return None
        right = labels == self.clean
        return float((right if rows is None else right[rows]).float().mean())


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Return the share of examples whose most probable class is their label."""
    return float((probs.argmax(1) == labels).float().mean())


def accuracies(networks: Sequence[nn.Module], truth: Truth, processes: Processes) -> dict[str, float]:
    """Return the accuracy on every test set."""
    return {
        name: accuracy(predict_probs(networks, test.source, processes), test.labels)
        for name, test in truth.tests.items()
    }


def full_report(networks: Sequence[nn.Module], test: TestSet, processes: Processes) -> dict[str, Any]:
    """Return ``top1, top5, balanced, per_class`` of a test set; a class without test examples is None.

    Balanced accuracy is the mean over classes that have examples. With fewer than five classes, top-5 is 1.
    """
    probs = predict_probs(networks, test.source, processes)
    num_classes = probs.shape[1]
    right = (probs.argmax(1) == test.labels).float()
    counts = test.labels.bincount(minlength=num_classes)
    hits = test.labels.bincount(right, minlength=num_classes)
    per_class = [hit / count if count else None for hit, count in zip(hits.tolist(), counts.tolist(), strict=True)]
    known = [value for value in per_class if value is not None]
    top5 = probs.topk(min(5, num_classes)).indices.eq(test.labels[:, None]).any(1)
    return {
        "top1": float(right.mean()),
        "top5": float(top5.float().mean()),
        "balanced": sum(known) / len(known),
        "per_class": per_class,
    }
