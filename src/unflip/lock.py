"""A file lock: held by one process at a time, and released when that process ends, however it ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unflip.errors import RunFolderError


@contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Hold the lock at ``path``; if another process has it, fail with the message ``busy``, or wait if that is None."""
    try:
        file = path.open("a")
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError as error:
            raise RunFolderError(f"{path.parent}: {busy}") from error
        except OSError as error:
            raise RunFolderError(f"cannot lock {path}: {error.strerror}; choose a folder on another disk") from error
        yield
