"""Encoding: how raw examples became rows of features, as plain data that features and models of them carry along."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unflip.data.files.arrays import Array


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
        keys = {**self.settings, **other.settings}
        found = [
            f"{key} {other.settings.get(key)}, not {self.settings.get(key)}"
            for key in keys
            if other.settings.get(key) != self.settings.get(key)
        ]
        return found
