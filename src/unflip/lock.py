"""A file lock: held by one process at a time, and released when that process ends, however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from unflip.errors import RunFolderError

_FOREVER = -1


@contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Hold the lock at ``path``; if another process has it, fail with the message ``busy``, or wait if that is None."""
    lock = FileLock(path, timeout=0 if busy else _FOREVER)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunFolderError(f"{path.parent}: {busy}") from error
    except OSError as error:
        raise RunFolderError(f"cannot lock {path}: {error.strerror}; choose a folder that can be written") from error
    try:
        yield
    finally:
        lock.release()
