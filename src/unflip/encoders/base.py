"""Encoder: raw examples in, rows of features out. The contract."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

from unflip.data.encoding import Encoding
from unflip.data.files.arrays import Array
from unflip.progress import Track, untracked


@dataclass(frozen=True)
class Encoded:
    """Features (n, d), and what a person should know of how they came about."""

    features: Array
    remarks: tuple[str, ...] = ()
    """Such as ``"plan: 3 unknown categories"``: what new examples held that the training examples did not."""


class Encoder(ABC):
    """Encodes one kind of example. A subclass lives in one file and is registered in ``unflip.encoders``.

    It may learn from the training examples, never from their labels, and is rebuilt from an :class:`Encoding`, which
    holds no code.
    """

    @abstractmethod
    def encode(self, inputs: Any, track: Track = untracked) -> Encoded:
        """Return the features of examples, which may be new; refuse examples that it cannot encode."""

    @abstractmethod
    def encoding(self) -> Encoding:
        """Return the encoder as plain data."""

    @classmethod
    @abstractmethod
    def restore(cls, encoding: Encoding) -> Self:
        """Return the encoder that :meth:`encoding` described; say in one line what is missing if it cannot be had."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Say what it does with the examples, one line for each thing that a person may want to overrule."""
