"""Label changes: given against corrected labels, by pair and by class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow

from unflip.data.arrays import Array

_NAMED = 20  # largest number of classes shown as a table with names
_DRAWN = 150  # largest number of classes drawn in full
_PAIRS = 12


@dataclass(frozen=True)
class Pair:
    """Labels of one class that were changed to another; ``share`` is that of the labels with this given class."""

    given: str
    now: str
    count: int
    share: float


@dataclass(frozen=True)
class ClassRow:
    """The figures of one class.

    Attributes:
        name: of the class.
        given: how many given labels name it.
        now: how many current labels do.
        left: fraction of the labels given as this class that were changed; None if the run changed no label.
        noise: estimated fraction of its true examples that were given another label; None where there is no estimate.
        accuracy: on the first test set.
    """

    name: str
    given: int
    now: int
    left: float | None
    noise: float | None
    accuracy: float | None


@dataclass(frozen=True)
class LabelChanges:
    """Given labels against those that replace them.

    Attributes:
        kind: what replaces them: ``current_label`` if the run corrected any, otherwise ``suggested_label``.
        counts: (k, k), given labels by row; with very many classes, only those with the most changes.
        names: of the classes in ``counts``.
        total: number of examples.
        changed: number of labels that differ.
        num_classes: of the run, shown or not.
        pairs: the most frequent changes.
    """

    kind: str
    counts: Array
    names: tuple[str, ...]
    total: int
    changed: int
    num_classes: int
    pairs: tuple[Pair, ...]

    @property
    def is_small(self) -> bool:
        """Whether the matrix is small enough for a table with names."""
        return len(self.counts) <= _NAMED

    @property
    def shares(self) -> Array:
        """The matrix as fractions of its rows."""
        shares: Array = self.counts / np.maximum(1, self.counts.sum(1, keepdims=True))
        return shares


def count_changes(table: pyarrow.Table, names: Sequence[str]) -> LabelChanges:
    """Count which labels replace which given ones."""
    given = table["given_label"].to_numpy()
    kind = "current_label" if bool(table["changed"].to_numpy().any()) else "suggested_label"
    now = table[kind].to_numpy()
    size = int(max(given.max(), now.max())) + 1
    counts = np.bincount(given * size + now, minlength=size * size).reshape(size, size)
    moved = counts.copy()
    np.fill_diagonal(moved, 0)
    order = np.argsort(-moved, axis=None, kind="stable")[:_PAIRS]
    totals = counts.sum(1)
    pairs = [
        Pair(names[a], names[b], int(moved[a, b]), float(moved[a, b] / totals[a]))
        for a, b in (divmod(int(place), size) for place in order)
        if moved[a, b]
    ]
    shown = np.arange(size)
    if size > _DRAWN:
        shown = np.sort(np.argsort(-(moved.sum(0) + moved.sum(1)), kind="stable")[:_DRAWN])
    return LabelChanges(
        kind=kind,
        counts=counts[np.ix_(shown, shown)],
        names=tuple(names[c] for c in shown.tolist()),
        total=len(given),
        changed=int(moved.sum()),
        num_classes=size,
        pairs=tuple(pairs),
    )


def class_rows(
    table: pyarrow.Table, names: Sequence[str], noise: Sequence[float] | None, accuracy: Sequence[float] | None
) -> list[ClassRow]:
    """Return one row per class, the noisiest first."""
    given, current = table["given_label"].to_numpy(), table["current_label"].to_numpy()
    size = max(int(max(given.max(), current.max())) + 1, len(noise or ()), len(accuracy or ()))
    before, after = np.bincount(given, minlength=size), np.bincount(current, minlength=size)
    left = np.bincount(given[given != current], minlength=size)
    judged = np.bincount(given[~np.isnan(table["label_quality"].to_numpy())], minlength=size)
    some = bool(left.any())
    rows = [
        ClassRow(
            name=names[c],
            given=int(before[c]),
            now=int(after[c]),
            left=float(left[c] / before[c]) if some and before[c] else None,
            noise=noise[c] if noise is not None and judged[c] else None,
            accuracy=None if accuracy is None else accuracy[c],
        )
        for c in range(size)
    ]
    return sorted(rows, key=lambda row: -(row.noise or 0.0))
