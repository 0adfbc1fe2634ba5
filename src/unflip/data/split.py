"""split: chooses the validation examples, a share of every class; groups stay together."""

import numpy as np
import torch
from torch import Tensor

from unflip.data.dataset import Dataset
from unflip.data.files.arrays import Array
from unflip.data.labelled import LabelledData
from unflip.errors import InputError
from unflip.seeding import generator


def split(data: LabelledData, fraction: float, seed: int) -> Dataset:
    """Return the data with ``fraction`` of its training examples held out, or with the validation set it came with."""
    data = data.joined()
    given = data.given
    if data.is_val is not None:
        is_val = data.is_val
    elif fraction:
        groups = None if data.groups is None else group_numbers(data.groups)
        is_val = stratified_split(given, data.num_classes, fraction, seed, groups)
    else:
        is_val = torch.zeros(len(given), dtype=torch.bool)
    if data.is_val is None and data.same is not None:
        whole = untorn(is_val, data.same)
        if 2 * int(whole.sum()) < int(is_val.sum()):  # where most rows are equal to others, hardly any would be left
            whole = stratified_split(given, data.num_classes, fraction, seed, data.same)
        is_val = whole
    initial = given if data.reviewed is None else torch.where(data.reviewed < 0, given, data.reviewed)
    dataset = Dataset(
        name=data.name,
        source=data.train,
        given=given,
        reviewed=data.reviewed,
        removed=data.removed,
        is_val=is_val & ~data.removed,
        clean=data.clean,
        tests=data.tests,
        num_classes=data.num_classes,
        class_names=data.class_names,
        ids=data.ids,
        pictures_path=data.pictures_path,
        encoding=data.encoding,
        standardisation=data.standardisation,
        frame=data.frame,
        skipped=data.skipped,
        groups=data.same,
        clean_val=data.clean_val,
        noise_record=data.noise_record,
    )
    if len(initial[dataset.trains].unique()) < 2:
        raise InputError(
            f"{data.name}: the {int(dataset.trains.sum())} examples left for training hold fewer than two classes"
        )
    return dataset


def untorn(is_val: Tensor, same: Tensor) -> Tensor:
    """Return which examples validate (n,) if none of those does that have the same number (n,) as one that trains.

    >>> untorn(torch.tensor([True, False, True]), torch.tensor([4, 4, 7]))
    tensor([False, False,  True])
    """
    trains = torch.zeros(int(same.max()) + 1, dtype=torch.bool).index_fill_(0, same[~is_val], True)
    return is_val & ~trains[same]


def group_numbers(groups: Array) -> Tensor:
    """Return the number (n,) of each example's group, whatever groups are called."""
    return torch.from_numpy(np.unique(groups, return_inverse=True)[1])


def stratified_split(
    labels: Tensor, num_classes: int, fraction: float, seed: int, groups: Tensor | None = None
) -> Tensor:
    """Return a mask of the validation examples (n,): of each class the rounded ``fraction``, drawn at random.

    With groups, ``fraction`` is an upper bound per class: groups are taken in random order, each if all of it still
    fits.

    Args:
        labels: (n,).
        num_classes: k.
        fraction: the share of each class to hold out.
        seed: of the draw.
        groups: (n,); examples with the same number stay together.
    """
    if groups is not None:
        return _grouped_split(labels, num_classes, fraction, seed, groups)
    order = torch.randperm(len(labels), generator=generator(seed, "split"))
    order = order[labels[order].argsort(stable=True)]  # by class, random within
    counts = torch.bincount(labels, minlength=num_classes)
    position = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    chosen = position < (counts * fraction + 0.5).long().repeat_interleave(counts)
    is_val = torch.zeros(len(labels), dtype=torch.bool)
    is_val[order[chosen]] = True
    return is_val


def _grouped_split(labels: Tensor, num_classes: int, fraction: float, seed: int, groups: Tensor) -> Tensor:
    sizes = torch.bincount(groups).tolist()
    members = groups.argsort(stable=True).split(sizes)
    room = torch.bincount(labels, minlength=num_classes).mul(fraction).add(0.5).long()
    is_val = torch.zeros(len(labels), dtype=torch.bool)
    for group in torch.randperm(len(sizes), generator=generator(seed, "split")).tolist():
        if not bool(room.any()):
            break
        taken = labels[members[group]].bincount(minlength=num_classes)
        if bool((taken <= room).all()):
            is_val[members[group]] = True
            room -= taken
    return is_val
