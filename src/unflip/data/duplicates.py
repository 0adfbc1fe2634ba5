"""Duplicates: the same example under different labels."""

import numpy as np

from unflip.data.files.arrays import Array
from unflip.data.images.files import ImageFiles
from unflip.data.raw import LabelledSet


def identities(part: LabelledSet) -> Array:
    """Return a key per example (n,), equal for equal examples: the digest of its picture, or its row as bytes."""
    if part.digests is not None:
        return part.digests
    assert not isinstance(part.inputs, ImageFiles)
    rows = np.ascontiguousarray(part.inputs).reshape(len(part.inputs), -1)
    found: Array = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    return found


def conflicting_groups(same: Array, labels: Array) -> list[Array]:
    """Return the rows of each group of equal examples whose labels differ, in the order of their first rows."""
    _, group, counts = np.unique(same, return_inverse=True, return_counts=True)
    rows = np.arange(len(same))[counts[group] > 1]
    rows = rows[group[rows].argsort(kind="stable")]
    groups = np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1) if len(rows) else []
    return sorted((found for found in groups if len(np.unique(labels[found])) > 1), key=lambda found: int(found[0]))
