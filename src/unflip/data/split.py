"""split: draws the validation examples, stratified by class; duplicates stay together."""

from dataclasses import replace
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from unflip.compute import generator
from unflip.data.arrays import Array
from unflip.data.dataset import Dataset, Split
from unflip.data.files import ImageFiles
from unflip.errors import InputError


def split(data: Dataset, fraction: float, seed: int) -> Dataset:
    """Return the data with ``fraction`` of its training examples held out, or with its own validation set."""
    data = data.joined()
    given = data.given
    is_val = data.is_val
    if not is_val.any():
        groups = None
        if data.train.groups is not None:
            groups = torch.from_numpy(np.unique(data.train.groups, return_inverse=True)[1])
        is_val = drawn = _held_out(data, fraction, seed, groups)
        if data.same is not None:
            is_val = untorn(drawn, data.same)
            if 2 * int(is_val.sum()) < int(drawn.sum()):  # most examples have duplicates
                is_val = _held_out(data, fraction, seed, data.same)
    result = replace(data, is_val=is_val & ~data.removed)
    initial = given if data.reviewed is None else torch.where(data.reviewed < 0, given, data.reviewed)
    if len(initial[result.trains].unique()) < 2:
        raise InputError(f"{data.name}: fewer than two classes in {int(result.trains.sum())} training examples")
    if data.same is not None:
        _check_groups(initial[result.trains], data.same[result.trains], data.name)
    return result


def _held_out(data: Dataset, fraction: float, seed: int, groups: Tensor | None) -> Tensor:
    """Return a mask of validation examples (n,), drawn from those with a label."""
    labeled = (data.given >= 0).nonzero()[:, 0]
    of_labeled = None if groups is None else groups[labeled].unique(return_inverse=True)[1]
    chosen = stratified_split(data.given[labeled], data.num_classes, fraction, seed, of_labeled)
    return torch.zeros(len(data.given), dtype=torch.bool).index_copy_(0, labeled, chosen)


def _check_groups(labels: Tensor, same: Tensor, name: str) -> None:
    """Raise InputError if groups leave at most one class in several of them: no label could be checked by others."""
    classes = torch.unique(torch.stack([labels, same]), dim=1)[0]
    if int((classes.bincount() > 1).sum()) > 1 or int((labels.bincount() > 1).sum()) <= 1:
        return
    whole = f"all {len(labels)} examples" if len(same.unique()) == 1 else "all examples of a class"
    told = f"{whole} are in one group, or copies, so there is nothing to check their labels by"
    raise InputError(f"{name}: {told}; use smaller groups")


def untorn(is_val: Tensor, same: Tensor) -> Tensor:
    """Return the mask of validation examples (n,) without those that have the same number (n,) as a training example.

    >>> untorn(torch.tensor([True, False, True]), torch.tensor([4, 4, 7]))
    tensor([False, False,  True])
    """
    trains = torch.zeros(int(same.max()) + 1, dtype=torch.bool).index_fill_(0, same[~is_val], True)
    return is_val & ~trains[same]


def stratified_split(
    labels: Tensor, num_classes: int, fraction: float, seed: int, groups: Tensor | None = None
) -> Tensor:
    """Return a mask of the validation examples (n,): a random ``fraction`` of each class.

    With groups, ``fraction`` is an upper bound per class: groups are drawn in random order, each if it still fits.

    Args:
        labels: (n,).
        num_classes: k.
        fraction: of each class to hold out, rounded to whole examples.
        seed: of the draw.
        groups: group numbers (n,); examples of a group stay together.
    """
    room = (labels.bincount(minlength=num_classes) * fraction + 0.5).long()
    if groups is not None:
        return _grouped_split(labels, room, seed, groups)
    order = torch.randperm(len(labels), generator=generator(seed, "split"))
    is_val = torch.empty(len(labels), dtype=torch.bool)
    is_val[order] = rank_in_class(labels[order]) < room[labels[order]]
    return is_val


def rank_in_class(labels: Tensor) -> Tensor:
    """Return how many of the examples before each one have its label (n,).

    >>> rank_in_class(torch.tensor([2, 0, 2, 2, 0]))
    tensor([0, 0, 1, 2, 1])
    """
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(labels)
    rank[labels.argsort(stable=True)] = torch.arange(len(labels)) - starts.repeat_interleave(counts)
    return rank


def _grouped_split(labels: Tensor, room: Tensor, seed: int, groups: Tensor) -> Tensor:
    """Return a mask of whole groups (n,), of each class at most as many examples as there is ``room`` for (k,)."""
    sizes = torch.bincount(groups).tolist()
    members = groups.argsort(stable=True).split(sizes)
    is_val = torch.zeros(len(labels), dtype=torch.bool)
    for group in torch.randperm(len(sizes), generator=generator(seed, "split")).tolist():
        if not bool(room.any()):
            break
        taken = labels[members[group]].bincount(minlength=len(room))
        if bool((taken <= room).all()):
            is_val[members[group]] = True
            room = room - taken
    return is_val


BLOCK_ROWS = 4096  # examples hashed at once
_SAMPLE = 20_000  # rows used to estimate how many are equal by chance
_BY_CHANCE = 0.01  # expected number of equal pairs from which on they are no duplicates


def identities(part: Split) -> Array:
    """Return a key per example (n,), equal for equal examples: its digest, or a 64-bit hash of its row in float64."""
    if part.digests is not None:
        return part.digests
    assert isinstance(part.inputs, np.ndarray)
    keys = np.empty(len(part.inputs), np.uint64)
    for start in range(0, len(keys), BLOCK_ROWS):
        rows = np.asarray(part.inputs[start : start + BLOCK_ROWS])
        keys[start : start + BLOCK_ROWS] = row_hashes(rows.astype(np.float64) + 0.0 if rows.dtype.kind == "f" else rows)
    return keys


def content_hash(content: bytes | memoryview) -> int:
    """Return a 64-bit hash of any content."""
    return int.from_bytes(blake2b(content, digest_size=8).digest())


def row_hashes(rows: Array) -> Array:
    """Return a 64-bit hash per row (n,); a million distinct rows collide with probability 10^-7.

    Each word is mixed with its position by the finalizer of SplitMix64 (Steele, Lea and Flood 2014); the hash of a row
    is their sum.
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


def repeats_by_nature(part: Split) -> bool:
    """Whether equal rows are expected by chance, as in a table of a few categories, and are no duplicates.

    For n rows of independent columns, the expected number of equal pairs is ``n (n - 1) / 2`` times the product over
    columns of the fraction of equal pairs; the limit is 0.01. Equal images are always duplicates.
    """
    inputs, count = part.inputs, len(part.inputs)
    if part.digests is not None or not isinstance(inputs, np.ndarray):
        return False
    rows = np.asarray(inputs[np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)])
    expected = count * (count - 1) / 2
    for column in rows.reshape(len(rows), -1).T:
        sizes = np.unique(column, return_counts=True)[1]
        expected *= float((sizes * (sizes - 1.0)).sum()) / max(1, len(rows) * (len(rows) - 1))
        if expected < _BY_CHANCE:
            return False
    return True


def same_examples(part: Split) -> Tensor | None:
    """Return group numbers (n,): equal, near-duplicate and grouped examples share one; None if all differ."""
    if part.digests is None and isinstance(part.inputs, ImageFiles):
        keys: Array = np.arange(len(part.inputs))
    else:
        keys = np.unique(identities(part), return_inverse=True)[1]
        if int(keys.max(initial=-1)) + 1 < len(keys) and repeats_by_nature(part):
            keys = np.arange(len(keys))
    for others in (part.duplicates, part.groups):
        if others is not None:
            keys = _joined(keys, np.unique(others, return_inverse=True)[1])
    if len(np.unique(keys)) == len(keys):
        return None
    return torch.from_numpy(keys.astype(np.int64))


def _joined(keys: Array, groups: Array) -> Array:
    """Return the numbers (n,) of the connected components of examples that share keys or groups."""
    from scipy import sparse  # slow to import, and few runs need it

    first = int(keys.max()) + 1
    total = first + int(groups.max()) + 1
    edges = sparse.coo_array((np.ones(len(keys), bool), (keys, groups + first)), shape=(total, total))
    return np.asarray(sparse.csgraph.connected_components(edges, directed=False)[1][keys])
