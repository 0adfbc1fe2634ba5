"""Encoding: how raw examples became rows of features, as plain data that features and models of them carry along."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unflip.data.files.arrays import Array

_LONGEST = 60  # characters of a setting that a message shows
_WHERE = "_file"  # ends the names of settings that say where something lay, not what it is


@dataclass(frozen=True)
class Encoding:
    """A fitted encoder as plain data; :func:`unflip.encoders.restore` turns it into the encoder again."""

    encoder: str
    """Its name in the registry."""
    settings: Mapping[str, Any]
    """What JSON can hold."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """What JSON would hold badly."""

    def differences(self, other: "Encoding") -> list[str]:
        """Say what is different in ``other``: ``image_size 224, not 112``."""
        if self.encoder != other.encoder:
            return [f"made from {other.encoder}, not from {self.encoder}"]
        mine, theirs = self.settings, other.settings
        keys = [key for key in {**mine, **theirs} if not key.endswith(_WHERE) and mine.get(key) != theirs.get(key)]
        found = [f"{key} {_short(theirs.get(key))}, not {_short(mine.get(key))}" for key in keys]
        if not found and self.arrays.keys() == other.arrays.keys():
            found = [
                f"another {name}" for name in self.arrays if not np.array_equal(self.arrays[name], other.arrays[name])
            ]
        return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
