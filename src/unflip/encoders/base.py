"""The contracts of encoders and of text encoders, and what text encoders share.

An encoder turns raw examples into rows of features. It is fitted to the training examples, never to their labels, and
travels with the features and the model as an :class:`~unflip.data.dataset.Encoding`: JSON and arrays, no code.
"""

import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from unflip.data.arrays import Array
from unflip.data.dataset import Encoding
from unflip.encoders import encoders, text_encoders
from unflip.errors import UnflipWarning
from unflip.progress import Track, untracked

_CHARACTERS = 1 << 20  # of texts that are encoded at a time, so that memory stays small


@dataclass(frozen=True)
class Encoded:
    """The result of encoding.

    Attributes:
        features: (n, d).
        remarks: what new examples held that the training examples did not, such as ``"plan: 3 unknown values"``.
    """

    features: Array
    remarks: tuple[str, ...] = ()


class Encoder(ABC):
    """Encodes one kind of example. A subclass lives in one file and is registered in ``unflip.encoders``."""

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


def restore(encoding: Encoding) -> Encoder:
    """Return the encoder that an encoding describes; it encodes new examples exactly as the fitted one did."""
    kind: type[Encoder] = encoders.load(encoding.encoder)
    return kind.restore(encoding)


class TextEncoder(ABC):
    """Encodes texts. A subclass lives in one file and is registered in ``unflip.encoders.text_encoders``.

    Attributes:
        extra: the extra that installs what it needs.
        width: the number of features.
    """

    extra: ClassVar[str | None] = None
    width: int

    @classmethod
    @abstractmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Return an encoder for texts like these; refuse, in one line, if a package or a model is missing."""

    @abstractmethod
    def encode_block(self, texts: list[str]) -> Array:
        """Return features (n, width) of a few texts; an empty text has zeros."""

    def encode(self, texts: Sequence[str], track: Track = untracked) -> Array:
        """Return features (n, width) in float32, computed block by block."""
        features, end = np.zeros((len(texts), self.width), np.float32), 0
        for block in blocks(track(texts, "encoding texts", len(texts))):
            features[end : end + len(block)] = self.encode_block(block)
            end += len(block)
        return features

    @abstractmethod
    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return settings that JSON can hold, and arrays, from which :meth:`restore` makes the same encoder."""

    @classmethod
    @abstractmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Return the encoder that :meth:`state` described; refuse one whose package or weights differ."""

    def speaking_words(self, text: str, direction: Array, top: int) -> tuple[tuple[int, int], ...]:
        """Return where in the text the ``top`` words are that speak most for ``direction``, the strongest first.

        A direction (d,) is a linear view of the features, such as one class's mean less another's. A word that occurs
        more than once has all its places; one that speaks against the direction has none. Nothing by default.
        """
        return ()


def choose_text_encoder(name: str | None = None) -> tuple[str, type[TextEncoder]]:
    """Return the name and the class of a text encoder: by default wordllama, or tfidf where that is not installed."""
    if name is None:
        name = "wordllama"
        if any(importlib.util.find_spec(package) is None for package in ("wordllama", "tokenizers")):
            name = "tfidf"
            hint = 'texts are encoded by tfidf; pip install "unflip[text]" brings a better encoder'
            warnings.warn(hint, UnflipWarning, stacklevel=2)
    return name, text_encoders.load(name)


def blocks(texts: Iterable[str], most: int = _CHARACTERS) -> Iterator[list[str]]:
    """Yield texts in lists of at most ``most`` characters, or one longer text.

    Half of a surrogate pair, such as JSON may hold and no tokenizer takes, is replaced.
    """
    block: list[str] = []
    size = 0
    for text in texts:
        clean = text.encode(errors="replace").decode()
        if block and size + len(clean) > most:
            yield block
            block, size = [], 0
        block.append(clean)
        size += len(clean) + 1  # so that empty texts count too
    if block:
        yield block
