"""Finished runs for checks, made up: features, labels, and a table as a run writes it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from unflip.data.dataset import Dataset, Split
from unflip.issues.audit import AuditInput, CheckResult
from unflip.methods.base import LabelStore
from unflip.runs.labels import Assessment, label_table

Array = np.ndarray[Any, Any]


def made(
    features: Array,
    given: Array,
    names: Sequence[str],
    *,
    top2: Array | None = None,
    probs: Array | None = None,
    quality: Array | None = None,
    out_of_sample: bool = True,
    val: int = 0,
    image_stats: Array | None = None,
) -> AuditInput:
    """Return a run on rows whose labels were kept; the last ``val`` of them are validation examples.

    ``top2`` are the two most likely classes (n, 2), by default the given one and the next; ``probs`` theirs.
    """
    count, classes = len(given), len(names)
    labels = torch.from_numpy(given)
    top2 = np.stack([given, (given + 1) % classes], 1) if top2 is None else top2
    probs = np.tile([0.9, 0.1], (count, 1)) if probs is None else probs
    quality = np.full(count, 0.9) if quality is None else quality
    probs_of_given = torch.full((count, 3), 0.9)
    assessment = Assessment(
        probs_of_given, probs_of_given, None, torch.from_numpy(top2), torch.from_numpy(probs).float(),
        torch.from_numpy(quality).logit(), labels, torch.full((count,), out_of_sample), torch.full((count,), -1),
    )  # fmt: skip
    splits = ["train"] * (count - val) + ["val"] * val
    table = label_table(LabelStore(labels, classes), assessment, splits=splits, class_names=names)
    whole = Split(features, given, image_stats=image_stats)
    data = Dataset(whole[: count - val], whole[count - val :] if val else None, class_names=tuple(names))
    return AuditInput(table, names, replace(data, name="made"))


def clusters(count: int, classes: int, width: int = 8, seed: int = 0) -> tuple[Array, Array]:
    """Return rows of Gaussian classes that lie apart, and their labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    return 6 * random.standard_normal((classes, width))[labels] + random.standard_normal((count, width)), labels


def reasons(result: CheckResult, positions: Array | None = None) -> list[str]:
    """Return the reasons at some positions (p,); at all by default."""
    return [result.reason(at) for at in range(len(result.rows)) if positions is None or at in positions]
