"""Matching: which examples decisions are about, by id, content or index, when data was reordered or has grown."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from unflip.data.arrays import Array


class Keys(NamedTuple):
    """What identifies n examples.

    Attributes:
        ids: their names (n,); None if they have none.
        digests: of their contents (n,), a kind and a hash such as ``row6-0123456789abcdef``; None if unknown.
        given: their given classes (n,), -1 without a label.
        class_names: by class number.
    """

    ids: Sequence[str] | None
    digests: Sequence[str] | None
    given: Array
    class_names: Sequence[str]

    def name(self, index: int) -> str:
        """Return the name of an example's given class; empty without a label."""
        number = int(self.given[index])
        return self.class_names[number] if number >= 0 else ""

    def reference(self, index: int) -> "Reference":
        """Return what identifies an example in other data."""
        return Reference(
            index,
            None if self.ids is None else self.ids[index],
            self.name(index),
            None if self.digests is None else self.digests[index],
        )


@dataclass(frozen=True)
class Reference:
    """What a decision says about its example; None where it says nothing."""

    index: int | None
    id: str | None = None
    given: str | None = None
    digest: str | None = None


class Matcher:
    """Finds the examples that references mean.

    An example is found by its id, unless its content is another one; else by its content; only if neither is known, by
    its index and given label. Of several copies, the one with the same index or given label is preferred, and one
    that was not found before.

    Args:
        keys: of the examples.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._found: set[int] = set()
        self._kind = _kind_of(keys.digests[0]) if keys.digests else None

    def find(self, wanted: Reference) -> int | None:
        """Return the number of an example; None if there is no such example, or several that may be meant."""
        if wanted.index is not None and self._is_unchanged(wanted.index, wanted):
            found: int | None = wanted.index
        else:
            found = self._choose(self._candidates(wanted), wanted)
        if found is not None:
            self._found.add(found)
        return found

    def _is_unchanged(self, index: int, wanted: Reference) -> bool:
        """Whether the example at this index is the one: its id and content agree, or else its given label."""
        if not 0 <= index < len(self._keys.given):
            return False
        own = self._keys.reference(index)
        named = wanted.id is not None and own.id is not None
        if named and wanted.id != own.id:
            return False
        if wanted.digest is not None and own.digest is not None:
            return wanted.digest == own.digest if self._compares(wanted) else named
        return named or wanted.given is None or wanted.given == own.given

    def _candidates(self, wanted: Reference) -> Sequence[int]:
        named = self._by_id.get(wanted.id, ()) if wanted.id is not None else ()
        if not self._compares(wanted):
            return named
        digests = self._keys.digests or ()
        same = [index for index in named if digests[index] == wanted.digest]
        return same or self._by_digest.get(wanted.digest or "", ())

    def _compares(self, wanted: Reference) -> bool:
        """Whether contents can be compared: digests of the same kind."""
        return wanted.digest is not None and _kind_of(wanted.digest) == self._kind

    def _choose(self, candidates: Sequence[int], wanted: Reference) -> int | None:
        if len(candidates) > 1 and not self._compares(wanted):
            return None
        return min(candidates, key=lambda i: (i in self._found, self._keys.name(i) != wanted.given), default=None)

    @cached_property
    def _by_id(self) -> dict[str, list[int]]:
        return _places(self._keys.ids or ())

    @cached_property
    def _by_digest(self) -> dict[str, list[int]]:
        return _places(self._keys.digests or ())


def _kind_of(digest: str) -> str:
    return digest.rpartition("-")[0]


def _places(values: Sequence[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for index, value in enumerate(values):
        places.setdefault(value, []).append(index)
    return places
