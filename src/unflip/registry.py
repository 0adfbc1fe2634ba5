"""Registries of parts: name, one-line summary and import path; a module is imported when its part is used."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any

from unflip.errors import ConfigError, unknown


@dataclass(frozen=True)
class Entry:
    """A registered part."""

    name: str
    summary: str
    target: str  # "package.module:attribute"
    suffixes: tuple[str, ...] = ()
    """File suffixes that only this part handles, so that no other has to be imported."""

    family: bool = False
    """Whether it stands for many parts called ``name:member``; its target is a function from member to part."""

    def load(self) -> Any:
        """Import the part's module and return the part."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


@dataclass
class Registry:
    """The parts of one kind, ours and those that other packages add through the entry point ``unflip.<kind>s``.

    A space in the kind becomes an underscore: ``unflip.data_sets``. An entry point's name is the part's name; its value
    ("module:attribute") says where the part is.
    """

    kind: str
    own: Sequence[Entry]

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        foreign = {
            point.name: Entry(point.name, f"from {point.dist.name if point.dist else point.module}", point.value)
            for point in entry_points(group=f"unflip.{self.kind.replace(' ', '_')}s")
        }
        own = {entry.name: entry for entry in self.own}
        return own | foreign | own  # ours first, and ours win

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """Return all names, ours first."""
        return list(self._entries)

    def load(self, name: str) -> Any:
        """Return the part called ``name``; the error for an unknown name suggests the closest one."""
        entries = self._entries
        family, _, member = name.partition(":")
        entry = entries.get(family)
        if entry is None or entry.family != (":" in name):
            choices = [f"{entry.name}:NAME" if entry.family else entry.name for entry in entries.values()]
            raise ConfigError(unknown(self.kind, name, choices))
        return entry.load()(member) if entry.family else entry.load()
