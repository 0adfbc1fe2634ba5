"""Label-error detection on cleanlab's public benchmark, with the very same predicted probabilities.

The benchmark is the repository cleanlab/label-error-detection-benchmarks. Its license is AGPL, so it is not part of
this package: clone it, and name its folder.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import f1_score, roc_auc_score

from unflip.data.arrays import Array, read_array
from unflip.errors import InputError
from unflip.methods.unflip.posterior import score_labels
from unflip.reproduce.table_text import markdown_table

_FOUND = "src/experiments/*/*_cv_*/pred_probs.npy"


class Detection(NamedTuple):
    """How well wrong labels of one set are found: AUROC of three scores, and F1 of what we flag."""

    data: str
    model: str
    labels: int
    wrong: int
    unflip: float
    self_confidence: float
    normalized_margin: float
    f1: float


def label_error_benchmark(folder: Path) -> str:
    """Return the results of all sets and models as a Markdown table.

    AUROC tells how well a score separates right labels from wrong ones. *Self-confidence* is p_y, the probability of
    the label; *normalized margin* ``p_y - max_{c != y} p_c`` (Northcutt, Jiang and Chuang 2021, JAIR). F1 is that of
    the label issues that unflip reports.
    """
    results = [detect(*read_set(path.parent)) for path in sorted(folder.glob(_FOUND))]
    if not results:
        raise InputError(f"{folder}: no {_FOUND}; clone cleanlab/label-error-detection-benchmarks and name its folder")
    header = ["data", "model", "labels", "wrong", "unflip", "self-confidence", "normalized margin", "F1"]
    rows = [
        [each.data, each.model, f"{each.labels:,}", f"{each.wrong:,}", *(f"{value:.4f}" for value in each[4:])]
        for each in results
    ]
    best = sum(each.unflip > max(each.self_confidence, each.normalized_margin) for each in results)
    return f"{markdown_table([header, *rows])}\n\nunflip is best in {best} of {len(results)}."


def read_set(folder: Path) -> tuple[str, str, Array, Array, Array]:
    """Return names of data and model, probabilities (n, k), labels (n,) and which of them are wrong (n,)."""
    probs = read_array(folder / "pred_probs.npy")
    if (folder / "noisy_labels.npy").exists():
        labels, truth = read_array(folder / "noisy_labels.npy"), read_array(folder / "true_labels.npy")
        wrong = labels != truth
    else:
        labels, wrong = read_array(folder / "labels.npy"), read_array(folder / "label_errors_mask.npy").astype(bool)
    if probs.ndim != 2 or not len(probs) == len(labels) == len(wrong):
        raise InputError(f"{folder}: {probs.shape} probabilities, {len(labels)} labels, {len(wrong)} known errors")
    return folder.parent.name, folder.name.partition("_cv_")[2], probs, labels.astype(np.int64), wrong


def detect(data: str, model: str, probs: Array, labels: Array, wrong: Array) -> Detection:
    """Score the labels of one set."""
    rows = np.arange(len(labels))
    own, others = probs[rows, labels], probs.copy()
    others[rows, labels] = -np.inf
    best, log_odds, _ = score_labels(torch.from_numpy(probs.astype(np.float32)), torch.from_numpy(labels))
    scores = (log_odds.numpy(), own, own - others.max(1))
    ours, confidence, margin = (float(roc_auc_score(~wrong, score)) for score in scores)
    flagged = best.numpy() != labels
    found = float(f1_score(wrong, flagged))
    return Detection(data, model, len(labels), int(wrong.sum()), ours, confidence, margin, found)
