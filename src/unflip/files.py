"""Writing files so that a reader sees the old one or the new one, never half of either."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unflip.errors import RunFolderError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file next to ``path``, rename it, and flush file and folder to disk."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            _flush(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _flush(path.parent)  # its entry in the folder; otherwise a power cut may bring back the old file
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically as UTF-8."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically."""

    def write(temporary: Path) -> None:
        try:
            save_file(dict(tensors), temporary, dict(metadata))
        except SafetensorError as error:  # how it reports a full disk
            raise OSError(str(error)) from error

    write_atomically(path, write)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` atomically as indented JSON; NaN is refused, since JSON has none."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
