"""TextEncoder: texts in, rows of features out. The contract."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from unflip.data.files.arrays import Array
from unflip.progress import Track, untracked


class TextEncoder(ABC):
    """Encodes texts. A subclass lives in one file and is registered in ``unflip.encoders.texts``."""

    extra: ClassVar[str | None] = None
    """The extra that installs what it needs."""

    @classmethod
    @abstractmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Return an encoder for texts like these; refuse, in one line, if a package or a model is missing."""

    @abstractmethod
    def encode(self, texts: Sequence[str], track: Track = untracked) -> Array:
        """Return features (n, d) in float32; an empty text has zeros."""

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
