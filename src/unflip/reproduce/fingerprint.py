"""Fingerprints of files and folders: short hashes of their content, independent of their location."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from unflip.errors import InputError
from unflip.files import write_json

_LENGTH = 16  # hexadecimal digits


class Fingerprints:
    """Cached fingerprints of files and folders; content is read again only if sizes or modification times changed."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        try:
            content = json.loads(cache.read_text("utf-8"))
        except (OSError, ValueError):  # missing or damaged: it is only a cache
            content = {}
        self._known: dict[str, list[str]] = content if isinstance(content, dict) else {}

    def of(self, path: Path) -> str:
        """Return the fingerprint of the file at ``path``, or of all files in that folder including their names."""
        try:
            files = _files_under(path) if path.is_dir() else [path]
            states = [(file, file.stat()) for file in files]
            stamp = short_hash(
                f"{file.relative_to(path)}:{state.st_size}:{state.st_mtime_ns};".encode() for file, state in states
            )
            known = self._known.get(str(path))
            if known is None or known[0] != stamp:
                known = [stamp, short_hash(part for file in files for part in _content(file, path))]
                self._known[str(path)] = known
        except OSError as error:
            raise InputError(f"{error.filename or path}: {error.strerror}") from error
        return known[1]

    def save(self) -> None:
        """Save the cache."""
        write_json(self._cache, self._known)


def short_hash(parts: Iterable[bytes]) -> str:
    """Return the first digits of the SHA-256 of the concatenated parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:_LENGTH]


def _files_under(folder: Path) -> list[Path]:
    walk = os.walk(folder, followlinks=True)  # large data is often a symbolic link
    return sorted(Path(parent, name) for parent, _, names in walk for name in names)


def _content(file: Path, below: Path) -> Iterable[bytes]:
    with file.open("rb") as stream:
        inner = hashlib.file_digest(stream, "sha256").digest()
    yield f"{file.relative_to(below)}:".encode()
    yield inner
