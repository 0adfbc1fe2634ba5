"""Highlighted words of a text: evidence for the suggested label and against the given one."""

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

_MAX_WORDS = 5
_EVERY = 4  # at most one word in four
_EXAMPLES = 200  # per class mean
_CLASSES = 64  # whose features are cached
Span = tuple[int, int]


class Words:
    """Compares texts with the mean features of two classes, if the run's text encoder supports it.

    Args:
        run: the finished run.
        rows: table cells of its examples.
        current: current labels (n,).
    """

    def __init__(self, run: Run, rows: Rows, current: Array) -> None:
        self._run, self._rows, self._current = run, rows, current
        self._of_class = lru_cache(_CLASSES)(self._encode_class)

    @cached_property
    def _encoders(self) -> dict[str, TextEncoder]:
        """By column; empty if the encoder cannot be loaded."""
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

    def evidence(self, index: int, column: str, text: str, given: int, suggested: int) -> list[Span]:
        """Return the spans of the words; the example itself is excluded from the class means."""
        if given == suggested or column not in self._encoders:
            return []
        means = []
        for label in (given, suggested):
            members, features = self._of_class(column, label)
            others = features[members != index]
            if not len(others):
                return []
            means.append(others.mean(0))
        top = min(_MAX_WORDS, -(-len(set(text.split())) // _EVERY))
        return sorted(self._encoders[column].top_words(text, means[1] - means[0], top))

    def _encode_class(self, column: str, label: int) -> tuple[Array, Array]:
        """Return an even sample of a class, and the features of its texts."""
        members = np.flatnonzero(self._current == label)
        members = members[np.unique(np.linspace(0, len(members) - 1, min(_EXAMPLES, len(members))).astype(int))]
        texts = [str(self._rows.cell(index, column)) for index in members.tolist()]
        return members, self._encoders[column].encode(texts)


def pieces(text: str, spans: Iterable[Span]) -> list[tuple[str, bool]]:
    """Cut a text at ordered, disjoint spans: (piece, whether it is one of them)."""
    cut, end = [], 0
    for start, stop in spans:
        cut += [(text[end:start], False), (text[start:stop], True)]
        end = stop
    cut.append((text[end:], False))
    return [piece for piece in cut if piece[0]]
