"""Base class of encoders.

An encoder maps raw examples to feature vectors. It is fitted to the training examples, never to their labels, and is
saved with the features and the model as an :class:`~unflip.data.dataset.Encoding`: JSON and arrays, no code.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

from unflip.data.arrays import Array
from unflip.data.dataset import Encoding
from unflip.encoders import encoders
from unflip.progress import Track, untracked


@dataclass(frozen=True)
class Encoded:
    """Encoded examples.

    Attributes:
        features: (n, d).
        remarks: what the training examples did not contain, such as ``"plan: 3 unknown values"``.
    """

    features: Array
    remarks: tuple[str, ...] = ()


class Encoder(ABC):
    """Base class of encoders. A subclass has a file of its own and is registered in ``unflip.encoders``."""

    @abstractmethod
    def encode(self, inputs: Any, track: Track = untracked) -> Encoded:
        """Return the features of training or new examples; raise InputError for examples of another kind."""

    @abstractmethod
    def encoding(self) -> Encoding:
        """Return the fitted encoder as plain data."""

    @classmethod
    @abstractmethod
    def restore(cls, encoding: Encoding) -> Self:
        """Rebuild an encoder from its :meth:`encoding`; raise InputError if its package or weights are missing."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Describe the encoding, one line for each decision that a user can override."""


def restore(encoding: Encoding) -> Encoder:
    """Rebuild an encoder; it encodes new examples exactly as the fitted one did."""
    kind: type[Encoder] = encoders.load(encoding.encoder)
    return kind.restore(encoding)
