"""Duplicates: the same example several times."""

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from unflip.data.files.arrays import Array
from unflip.data.files.shards import Shards
from unflip.data.images.files import ImageFiles
from unflip.data.raw import LabelledSet

_ROWS = 4096  # examples hashed at once
_SAMPLE = 20_000  # rows that tell whether equal ones are expected
_BY_CHANCE = 0.01  # equal pairs from which on they are


def identities(part: LabelledSet) -> Array:
    """Return a key per example (n,), equal for equal examples: the digest of its picture, or 64 bits of its row.

    Numbers count in single precision, whatever the file has, and -0 as 0.
    """
    if part.digests is not None:
        return part.digests
    assert isinstance(part.inputs, np.ndarray | Shards)
    keys = np.empty(len(part.inputs), np.uint64)
    for start in range(0, len(keys), _ROWS):
        rows = np.asarray(part.inputs[start : start + _ROWS])
        keys[start : start + _ROWS] = row_hashes(rows.astype(np.float32) + 0.0 if rows.dtype.kind == "f" else rows)
    return keys


def row_hashes(rows: Array) -> Array:
    """Return 64 bits per row (n,), equal for equal rows; of a million different ones two are equal once in 10^7 times.

    Each word of a row is mixed with its position by the finaliser of SplitMix64 (Steele, Lea and Flood 2014), then all
    are added up.
    """
    rows = np.ascontiguousarray(rows).reshape(len(rows), -1)
    raw = rows.view(np.uint8).reshape(len(rows), -1)
    padded = np.zeros((len(rows), -(-raw.shape[1] // 8) * 8), np.uint8)
    padded[:, : raw.shape[1]] = raw
    words = padded.view(np.uint64)
    with np.errstate(over="ignore"):
        words = words + np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
        hashes: Array = (words ^ (words >> np.uint64(31))).sum(axis=1, dtype=np.uint64)
    return hashes


def repeats_by_nature(part: LabelledSet) -> bool:
    """Whether equal rows are expected by chance, as in a table of a few categories: they are no copies then.

    With columns drawn independently, ``n (n - 1) / 2`` times the product over columns of the share of equal pairs is
    how many pairs of n rows are equal; from 0.01 on they are expected. Pictures never are.
    """
    inputs, count = part.inputs, len(part.inputs)
    if part.digests is not None or not isinstance(inputs, np.ndarray | Shards):
        return False
    rows = np.asarray(inputs[np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)])
    expected = count * (count - 1) / 2
    for column in rows.reshape(len(rows), -1).T:
        sizes = np.unique(column, return_counts=True)[1]
        expected *= float((sizes * (sizes - 1.0)).sum()) / max(1, len(rows) * (len(rows) - 1))
        if expected < _BY_CHANCE:
            return False
    return True


def same_examples(part: LabelledSet) -> Tensor | None:
    """Return a number per example (n,), the same where they are equal, alike or of one group; None if all differ."""
    if part.digests is None and isinstance(part.inputs, ImageFiles):
        keys: Array = np.arange(len(part.inputs))
    else:
        keys = np.unique(identities(part), return_inverse=True)[1]
        if int(keys.max(initial=-1)) + 1 < len(keys) and repeats_by_nature(part):
            keys = np.arange(len(keys))
    for others in (part.alike, part.groups):
        if others is not None:
            keys = _joined(keys, np.unique(others, return_inverse=True)[1])
    if len(np.unique(keys)) == len(keys):
        return None
    return torch.from_numpy(keys.astype(np.int64))


def _joined(keys: Array, groups: Array) -> Array:
    """Return numbers (n,) that are the same for examples which a chain of equal keys or groups, from 0 on, joins."""
    first = int(keys.max()) + 1
    total = first + int(groups.max()) + 1
    edges = coo_array((np.ones(len(keys), bool), (keys, groups + first)), shape=(total, total))
    joined: Array = connected_components(edges, directed=False)[1][keys]
    return joined
