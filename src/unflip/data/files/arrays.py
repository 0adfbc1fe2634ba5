"""Arrays from .npy and .npz files; pickles are refused, never run."""

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from unflip.errors import InputError
from unflip.files import write_atomically

Array = np.ndarray[Any, Any]
_UNREADABLE = (
    ArithmeticError,  # a shape beyond all bounds
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,  # an encrypted archive, or an unknown compression
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy raises for a damaged file: almost anything, since its headers are Python literals."""


def read_array(path: Path, mmap_mode: Any = None) -> Array:
    """Read one .npy array; pickles are refused."""
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or 'not a readable .npy file'}") from error
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a readable .npy file ({_reason(path, error)})") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path}: holds several arrays, one is needed; name it .npz if it is a data file")
    return array


def read_npz(path: Path, *, only: tuple[str, ...] | None = None) -> dict[str, Array]:
    """Read the arrays of an .npz file, all of them or those in ``only`` that exist; pickles are refused."""
    try:
        with path.open("rb") as stream:  # opened here, since numpy leaves it open if it is not an archive
            content = np.load(stream, allow_pickle=False)
            if isinstance(content, np.ndarray):
                raise InputError(f"{path}: not a readable .npz file; it holds one array, so name it .npy")
            with content as file:
                return {name: file[name] for name in file.files if only is None or name in only}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or 'not a readable .npz file'}") from error
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a readable .npz file ({_reason(path, error)})") from error


def decoded(array: Array, what: str) -> Array:
    """Return text that is stored as bytes as text; other arrays as they are. Errors call the array ``what``."""
    if array.dtype.kind != "S":
        return array
    try:
        text: Array = np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: bytes that are not text in UTF-8 ({error.reason}); store them as text") from error
    return text


def stripped(array: Array) -> Array:
    """Return text without the space around it; other arrays as they are."""
    return np.char.strip(array) if array.dtype.kind == "U" else array


def _reason(path: Path, error: Exception) -> str:
    """Say why numpy cannot read a file; its own message takes any file that is not an array for a pickle."""
    with path.open("rb") as file:
        begins = file.read(6)
    if not begins.startswith((b"\x93NUMPY", b"PK")):
        return f"it begins with {begins!r}, unlike any array or archive of arrays" if begins else "it is empty"
    return str(error)


def write_array(path: Path, array: Array) -> None:
    """Write one .npy array atomically."""

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    write_atomically(path, save)
