"""Writing files so that a reader sees the old one or the new one, and never over a file that is somebody else's."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unflip._version import __version__
from unflip.errors import RunFolderError

_PARTIAL = ".unflip-partial-"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file in a temporary folder next to ``path``, rename it, and flush file and folder to disk.

    A folder of its own, since some writers make temporary files themselves; whatever a kill leaves in it is ours.
    """
    try:
        place = Path(tempfile.mkdtemp(dir=path.parent, prefix=_PARTIAL))
        try:
            temporary = place / path.name
            write(temporary)
            plain = place / ".plain"  # some writers make files that nobody else may read, whatever the umask says
            plain.touch()
            temporary.chmod(plain.stat().st_mode & 0o777)
            _flush(temporary)
            temporary.replace(path)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        _flush(path.parent)  # its entry in the folder; otherwise a power cut may bring back the old file
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error


def remove_partial(folder: Path) -> None:
    """Remove what processes that were killed left half written in ``folder``."""
    for path in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def is_within(path: Path, other: Path) -> bool:
    """Whether ``path`` is ``other``, or is in that folder, however the two are spelt."""
    if not (path.exists() and other.exists()):
        return False
    return any(above.samefile(other) for above in (path, *path.resolve().parents))


def check_folder(folder: Path, marker: str, *, option: str = "--out") -> None:
    """Refuse a folder that holds files which are not ours: it must be new, empty, or have our ``marker`` in it."""
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir():
        raise RunFolderError(f"{option} {folder}: {above} is a file; name a folder")
    if not folder.is_dir() or is_marked(folder / marker):
        return
    try:
        first = next((path.name for path in sorted(folder.iterdir()) if not path.name.startswith(_OWN)), None)
    except OSError as error:
        raise RunFolderError(f"{option} {folder}: {error.strerror}") from error
    if first is not None:
        raise RunFolderError(
            f"{option} {folder}: holds files that are not ours, such as {first}; name a new or an empty folder"
        )


def is_marked(marker: Path) -> bool:
    """Whether a file is the marker of a folder of ours."""
    try:
        content = json.loads(marker.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "unflip" in content


def mark_folder(folder: Path, marker: str) -> None:
    """Create a folder, if it is not there, and mark it as ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write to {folder}: {error.strerror}") from error
    if not is_marked(folder / marker):
        write_json(folder / marker, {"unflip": __version__})


_OWN = (_PARTIAL, ".lock")
"""What a process that was stopped at once may leave in a folder that it has not marked yet."""


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
