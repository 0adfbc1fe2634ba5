"""Defaults that follow from how many examples there are; how they were chosen: docs/own-data-results.md."""

import math
from typing import NamedTuple

_STEPS = 200  # for which few examples are trained, in as many epochs as that takes
_EPOCHS = (15, 100)
_BATCHES = (16, 128)
_SHARE = 16  # batches that an epoch has at least, unless they became too small
_MANY = 2000  # examples from which on a network is that of the preset `features`


class Size(NamedTuple):
    """How long to train, and what."""

    epochs: int
    batch_size: int
    hidden: tuple[int, ...]
    lr: float


def choose_size(count: int, batch_size: int | None = None) -> Size:
    """Return what suits ``count`` examples, with a ``batch_size`` if one is given.

    >>> choose_size(150)
    Size(epochs=21, batch_size=16, hidden=(64,), lr=0.03)
    >>> choose_size(50_000)
    Size(epochs=15, batch_size=128, hidden=(256,), lr=0.01)
    """
    if batch_size is None:
        batch_size = min(_BATCHES[1], max(_BATCHES[0], 2 ** round(math.log2(count / _SHARE))))
    epochs = min(_EPOCHS[1], max(_EPOCHS[0], round(_STEPS * batch_size / count)))
    return Size(epochs, batch_size, *(((64,), 0.03) if count < _MANY else ((256,), 0.01)))
