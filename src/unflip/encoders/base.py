"""Base classes of encoders and text encoders.

An encoder maps raw examples to feature vectors. It is fitted to the training examples, never to their labels, and is
saved with the features and the model as an :class:`~unflip.data.dataset.Encoding`: JSON and arrays, no code.
"""

import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from unflip.data.arrays import Array
from unflip.data.dataset import Encoding
from unflip.encoders import encoders, text_encoders
from unflip.errors import InputError, UnflipWarning
from unflip.progress import Track, untracked

_MAX_CHARS = 1 << 20  # of texts that are encoded at a time, which bounds memory


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


class TextEncoder(ABC):
    """Base class of text encoders. A subclass is registered in ``unflip.encoders.text_encoders``.

    Attributes:
        width: number of features.
    """

    width: int

    @classmethod
    @abstractmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Return an encoder fitted to ``texts``; raise InputError if a package or a model is missing."""

    @abstractmethod
    def encode_block(self, texts: list[str]) -> Array:
        """Return the features (n, width) of a block of texts; zeros for an empty text."""

    def encode(self, texts: Sequence[str], track: Track = untracked) -> Array:
        """Return the features (n, width) of texts in float32, computed block by block."""
        features, end = np.zeros((len(texts), self.width), np.float32), 0
        for block in blocks(track(texts, "encoding texts", len(texts))):
            features[end : end + len(block)] = self.encode_block(block)
            end += len(block)
        return features

    @abstractmethod
    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return JSON-serializable settings, and arrays, from which :meth:`restore` rebuilds the encoder."""

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Rebuild an encoder from its :meth:`state`; raise InputError if the package or the weights differ.

        This is for pretrained encoders, to which nothing is fitted; others override it.
        """
        encoder = cls.fit(())
        own = encoder.state()[0]
        if own["weights"] != settings.get("weights"):
            raise InputError(
                f"{own['model']} has other weights ({own['weights']}) than the features were computed with "
                f"({settings.get('weights')}); restore that version, or train again"
            )
        return encoder


def choose_text_encoder(name: str | None = None) -> tuple[str, type[TextEncoder]]:
    """Return the name and the class of a text encoder; wordllama by default, or tfidf if that is not installed."""
    if name is None:
        name = "wordllama"
        if any(importlib.util.find_spec(package) is None for package in ("wordllama", "tokenizers")):
            name = "tfidf"
            hint = 'texts are encoded by tfidf; for a better encoder: pip install "unflip[text]"'
            warnings.warn(hint, UnflipWarning, stacklevel=2)
    return name, text_encoders.load(name)


def blocks(texts: Iterable[str], max_chars: int = _MAX_CHARS) -> Iterator[list[str]]:
    """Yield texts in lists of at most ``max_chars`` characters, or of one longer text.

    Lone surrogates, which JSON may contain and tokenizers reject, are replaced.
    """
    block: list[str] = []
    size = 0
    for text in texts:
        clean = text.encode(errors="replace").decode()
        if block and size + len(clean) > max_chars:
            yield block
            block, size = [], 0
        block.append(clean)
        size += len(clean) + 1  # so that empty texts count too
    if block:
        yield block
