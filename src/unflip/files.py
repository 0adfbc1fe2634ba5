"""Atomic writes, folders that never overwrite foreign files, locks and signals."""

import json
import os
import re
import shutil
import signal
import tempfile
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unflip._version import __version__
from unflip.errors import RunFolderError, check_text, described

_OURS = ".unflip-"
PARTIAL = f"{_OURS}partial-"
"""Prefix of folders in which files are written before they are renamed."""
LOCK = ".unflip-lock"
"""Held by the process that works in a folder; names that begin with ``.unflip-`` are ours everywhere."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: in a temporary folder next to ``path``, flushed to disk, then renamed.

    Args:
        path: the file to write or replace.
        write: writes the file at the path that it is given.
    """
    with naming_target(path):
        place = Path(tempfile.mkdtemp(dir=path.parent, prefix=PARTIAL))
        try:
            temporary = place / path.name
            write(temporary)
            plain = place / ".plain"  # some writers ignore the umask
            plain.touch()
            temporary.chmod(plain.stat().st_mode & 0o777)
            _flush(temporary)
            temporary.replace(path)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if os.name != "nt":  # Windows cannot open folders
            _flush(path.parent, os.O_RDONLY)  # or a power cut may bring back the old file


@contextmanager
def naming_target(path: Path) -> Iterator[None]:
    """Turn an OSError into a one-line error that names what could not be written."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def reading(path: Path, kind: str) -> Iterator[Path]:
    """Turn any error while a run's file is read into one line that names the file.

    Args:
        path: the file, which is also the context's value.
        kind: what it should be, such as "JSON object".
    """
    try:
        path.open("rb").close()  # safetensors calls every file that it may not read missing
        yield path
    except FileNotFoundError as error:
        raise RunFolderError(f"{path.parent}: no {path.name}; is this the folder of a finished run?") from error
    except PermissionError as error:
        raise RunFolderError(f"{path}: {error.strerror}") from error
    except RunFolderError:
        raise
    except Exception as error:
        raise RunFolderError(f"{path}: not a readable {kind} ({error})") from error


def check_format(path: Path, kind: str, version: object, readable: int) -> None:
    """Raise RunFolderError if a file or folder was written in another format."""
    if version != readable:
        other = f"{path}: {kind} format {version}, this version of unflip reads {readable}"
        raise RunFolderError(f"{other}; train again, or use the version that wrote it")


def matching(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """Return the files in ``folder`` whose whole names match, sorted."""
    return sorted(path for path in folder.glob("*") if name.fullmatch(path.name) and path.is_file())


def remove_partial(folder: Path) -> None:
    """Remove partly written files that killed processes left in ``folder``."""
    for path in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def is_within(path: Path, other: Path) -> bool:
    """Whether ``path`` is ``other`` or inside that folder; symbolic links are resolved."""
    if not (path.exists() and other.exists()):
        return False
    return any(above.samefile(other) for above in (path, *path.resolve().parents))


@dataclass(frozen=True)
class OwnedFolder:
    """An output folder with a marker file that lists what we wrote; nothing else is ever replaced or removed."""

    path: Path
    marker: str
    """The name of the marker, a JSON file."""
    folders: Collection[str] = ()
    """Which of the names in it are folders."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further content of the marker."""

    @property
    def is_marked(self) -> bool:
        """Whether the folder is one of ours."""
        return is_marked(self.path / self.marker)

    def check(self, names: Iterable[str] = (), *, option: str = "--out") -> None:
        """Raise RunFolderError unless the folder is new, empty or ours, and has no foreign files called ``names``."""
        check_text(str(self.path), option)
        above = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not above.is_dir():
            raise RunFolderError(f"{option} {self.path}: {above} is a file; name a folder")
        if not self.path.is_dir():
            return
        if self.is_marked:
            owned = self.owned()
            for name in names:
                self._refuse_foreign(name, owned)
            return
        try:
            # names of ours are left by processes that were killed before they marked the folder
            first = min((path.name for path in self.path.iterdir() if not path.name.startswith(_OURS)), default=None)
        except OSError as error:
            raise RunFolderError(f"{option} {self.path}: {error.strerror}") from error
        if first is not None:
            told = f"{option} {self.path}: holds files that are not ours, such as {first}"
            raise RunFolderError(f"{told}; name a new or an empty folder")

    def check_all_ours(self) -> None:
        """Raise RunFolderError if the folder has files besides ours."""
        found = {path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if not path.is_dir()}
        if others := sorted(found - {*self.owned(), self.marker}):
            raise RunFolderError(f"--out {self.path}: holds files that are not ours, such as {others[0]}; move them")

    def begin(self) -> None:
        """Create the folder if needed, and mark it as ours."""
        with naming_target(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if not self.is_marked:
            self.record([])

    def own(self, name: str) -> Path:
        """Return the path of an output file or folder, and add it to the marker; raise if a foreign file is there."""
        owned = self.owned()
        self._refuse_foreign(name, owned)
        if name not in owned:
            self.record([*owned, name])
        return self.path / name

    def owned(self) -> list[str]:
        """Return the names of all our files and folders."""
        path = self.path / self.marker
        try:
            return [str(name) for name in json.loads(path.read_text("utf-8"))["files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path}: not what unflip writes ({described(error)})") from error

    def record(self, names: Sequence[str]) -> None:
        """Write the marker."""
        write_json(self.path / self.marker, {**self.about, "unflip": __version__, "files": list(names)})

    def _refuse_foreign(self, name: str, owned: Collection[str]) -> None:
        path = self.path / name
        if os.path.lexists(path) and (name not in owned or path.is_dir() != (name in self.folders)):
            raise RunFolderError(f"{path}: is in the way, and was not written by unflip; move it elsewhere")


def is_marked(marker: Path) -> bool:
    """Whether a file is the marker of a folder of ours."""
    try:
        content = json.loads(marker.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "unflip" in content


def _flush(path: Path, mode: int = os.O_RDWR) -> None:  # Windows can only flush files open for writing
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically as UTF-8."""
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8", newline="\n"))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically."""

    def write(temporary: Path) -> None:
        try:
            save_file(dict(tensors), temporary, dict(metadata))
        except SafetensorError as error:  # how it reports a full disk
            raise OSError(str(error)) from error

    write_atomically(path, write)


def checksum(tensors: Mapping[str, Tensor], text: str) -> int:
    """Return the CRC-32 of contiguous CPU tensors and a text: safetensors files have none of their own."""
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor, flat = tensors[name], tensors[name].reshape(-1)
        if flat.stride() != (1,):  # possible with a single element
            flat = flat.clone(memory_format=torch.contiguous_format)
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(flat.view(torch.uint8).numpy().data, value)
    return value


def check_checksum(expected: int, tensors: Mapping[str, Tensor], text: str) -> None:
    """Raise ValueError if a file's content is not what was written."""
    if checksum(tensors, text) != expected:
        raise ValueError("its checksum does not match: the file is damaged")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` atomically as indented JSON, without NaN."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


@contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Hold the lock at ``path``; if it is taken, raise RunFolderError with the message ``busy``, or wait if None."""
    lock = FileLock(path, timeout=0 if busy else -1)
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


class Interruption:
    """Context manager that records the first signal; a second one is handled as before.

    Only the main thread can handle signals, so in other threads nothing changes. Ignored signals stay ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note) or signal.SIG_DFL
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: object) -> None:
        self.signal = number
        self.__exit__()
