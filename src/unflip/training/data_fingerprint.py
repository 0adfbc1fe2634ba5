"""Fingerprint: what a checkpoint remembers of its run's data, so that no other data can take its place."""

import hashlib
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from unflip.data.dataset import Dataset
from unflip.data.sources import Source
from unflip.seeding import generator

_VALUES = 2**25  # numbers in the inputs that are looked at: all of 65,536 rows of 512 columns
_DECODED = 64  # of inputs that are read batch by batch, such as image files
_ROWS = 1024  # inputs at once
_CLOSE = 1e-3  # inputs may differ by so much: another machine or another version may decode or standardise otherwise


def data_fingerprint(dataset: Dataset) -> dict[str, Any]:
    """Return what can be compared of a run's data: numbers, digests, and one number for each of many inputs."""
    names = dataset.class_names
    return {
        "examples": len(dataset.given),
        "classes": dataset.num_classes,
        "class names": None if names is None else _digest(name.encode() for name in names),
        "labels": _digest([_bytes(dataset.given)]),
        "reviewed labels": None if dataset.reviewed is None else _digest([_bytes(dataset.reviewed)]),
        "removed examples": _digest([_bytes(dataset.removed)]),
        "validation examples": _digest([_bytes(dataset.is_val)]),
        "names of the examples": None if dataset.ids is None else _digest(name.encode() for name in dataset.ids),
        "inputs": _projections(dataset.source),
    }


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say in which way data is not what it was; None if it is."""
    for what in ("examples", "classes"):
        if before[what] != now[what]:
            return f"the data has {now[what]:,} {what}, and had {before[what]:,} when the run began"
    changed = next((what for what in before if what != "inputs" and before[what] != now[what]), None)
    if changed is None and not _are_close(before["inputs"], now["inputs"]):
        changed = "inputs"
    return None if changed is None else f"the {changed} are not those that the run began with"


def _are_close(before: Tensor, now: Tensor) -> bool:
    if before.shape != now.shape:
        return False
    return torch.allclose(before, now, rtol=_CLOSE, atol=_CLOSE * float(before.abs().mean()))


def _projections(source: Source) -> Tensor:
    """Return the inner product (m,) of evenly spaced inputs with one random direction of length one."""
    size = prod(source.shape)
    most = _DECODED if source.ahead else max(1, _VALUES // size)
    count = min(len(source), most)
    rows = torch.arange(count) * len(source) // count
    direction = torch.randn(size, generator=generator(0, "data print")) / size**0.5
    return torch.cat([source.fetch(part).cpu().float().flatten(1) @ direction for part in rows.split(_ROWS)])


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().to(torch.int64).numpy().tobytes()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
