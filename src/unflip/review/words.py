"""Words: those of a text that speak most for the suggested label and against the given one."""

from collections.abc import Iterable
from functools import cached_property, lru_cache

import numpy as np

from unflip.data.arrays import Array
from unflip.data.preview import Rows
from unflip.encoders.base import TextEncoder, restore
from unflip.encoders.columns import Text
from unflip.encoders.table import TableEncoder
from unflip.errors import UnflipError
from unflip.runs.folder import Run

_MARKED = 5  # different words at most
_SHARE = 4  # and no more than every fourth
_EXAMPLES = 200  # of a class, from which its mean is taken
_CLASSES = 64  # whose features are kept
Span = tuple[int, int]


class Words:
    """Compares texts with the mean features of two classes, where the run's text encoder can say what words do.

    Args:
        run: the finished run.
        rows: the cells of its examples.
        current: (n,) the labels of the examples at the end of the run.
    """

    def __init__(self, run: Run, rows: Rows, current: Array) -> None:
        self._run, self._rows, self._current = run, rows, current
        self._of_class = lru_cache(_CLASSES)(self._encode_class)

    @cached_property
    def _encoders(self) -> dict[str, TextEncoder]:
        """By column; empty where the encoder cannot be had any more."""
        try:
            encoding = self._run.model.encoding
            encoder = None if encoding is None else restore(encoding)
        except UnflipError:
            return {}
        columns = encoder.columns if isinstance(encoder, TableEncoder) else ()
        return {
            column.name: column.encoder
            for column in columns
            if isinstance(column, Text) and type(column.encoder).top_words is not TextEncoder.top_words
        }

    def speaking(self, index: int, column: str, text: str, given: int, suggested: int) -> list[Span]:
        """Return where the words are; the example itself has no say in the means."""
        if given == suggested or column not in self._encoders:
            return []
        means = []
        for label in (given, suggested):
            members, features = self._of_class(column, label)
            others = features[members != index]
            if not len(others):
                return []
            means.append(others.mean(0))
        top = min(_MARKED, -(-len(set(text.split())) // _SHARE))
        return sorted(self._encoders[column].top_words(text, means[1] - means[0], top))

    def _encode_class(self, column: str, label: int) -> tuple[Array, Array]:
        """Return examples of a class, evenly spread over it, and the features of their texts."""
        members = np.flatnonzero(self._current == label)
        members = members[np.unique(np.linspace(0, len(members) - 1, min(_EXAMPLES, len(members))).astype(int))]
        texts = [str(self._rows.cell(index, column)) for index in members.tolist()]
        return members, self._encoders[column].encode(texts)


def pieces(text: str, spans: Iterable[Span]) -> list[tuple[str, bool]]:
    """Cut a text at spans that come in order and do not overlap: (piece, whether it is one of them)."""
    found, end = [], 0
    for start, stop in spans:
        found += [(text[end:start], False), (text[start:stop], True)]
        end = stop
    found.append((text[end:], False))
    return [piece for piece in found if piece[0]]
