"""Defaults that follow from the method and how many rows there are; how they were chosen: docs/own-data-results.md."""

import math
from typing import NamedTuple

_EPOCHS = (15, 100)
_STEPS = 200  # for which few examples are trained, in as many epochs as that takes
_BATCHES = (16, 128)
_SHARE = 16  # batches that an epoch has at least, unless they became too small
_MANY = 2000  # examples from which on a network is that of the preset `features`
_COMMITTEE_EPOCHS = 10
_COMMITTEE_LR = 0.15
_COMMITTEE_SHARE = 9  # batches that an epoch of the committee has at least
_VERY_MANY = 10_000  # examples from which on the committee has large networks


class Size(NamedTuple):
    """How long to train, and what."""

    epochs: int
    batch_size: int
    hidden: tuple[int, ...]
    lr: float


def choose_size(method: str, count: int, batch_size: int | None = None) -> Size:
    """Return what suits a method and ``count`` examples, with a ``batch_size`` if one is given.

    >>> choose_size("plc", 150)
    Size(epochs=21, batch_size=16, hidden=(64,), lr=0.03)
    >>> choose_size("plc", 50_000)
    Size(epochs=15, batch_size=128, hidden=(256,), lr=0.01)
    >>> choose_size("unflip", 150)
    Size(epochs=10, batch_size=18, hidden=(64,), lr=0.15)
    >>> choose_size("unflip", 50_000)
    Size(epochs=10, batch_size=320, hidden=(256,), lr=0.15)
    """
    if method == "unflip":  # few examples are visited several times per epoch: unflip.steps
        if batch_size is None:
            batch_size = 320 if count >= _VERY_MANY else min(146, max(18, count // _COMMITTEE_SHARE))
        hidden = 64 if count < _MANY else 128 if count < _VERY_MANY else 256
        return Size(_COMMITTEE_EPOCHS, batch_size, (hidden,), _COMMITTEE_LR)
    if batch_size is None:
        batch_size = min(_BATCHES[1], max(_BATCHES[0], 2 ** round(math.log2(count / _SHARE))))
    epochs = min(_EPOCHS[1], max(_EPOCHS[0], round(_STEPS * batch_size / count)))
    return Size(epochs, batch_size, *(((64,), 0.03) if count < _MANY else ((256,), 0.01)))
