"""Arrays in .npy and .npz files, and rows in several of them; pickles are refused, never loaded."""

import math
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from unflip.errors import InputError
from unflip.files import write_atomically

Array = np.ndarray[Any, Any]
_ZIP_LENGTHS = 26  # offset of the lengths of name and extra field in the header of a zip entry


def read_array(path: Path, mmap_mode: Any = None) -> Array:
    """Read one .npy array; pickles are refused."""
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except Exception as error:  # numpy raises almost anything for a damaged file: its headers are Python literals
        raise unreadable(path, ".npy file", error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path}: not an .npy file, but an .npz file; rename it")
    return array


def read_npz(
    path: Path, *, only: tuple[str, ...] | None = None, mmap_threshold_mb: float = math.inf
) -> dict[str, Array]:
    """Read the arrays of an .npz file; pickles are refused.

    Args:
        path: the file.
        only: names of arrays; others are not read.
        mmap_threshold_mb: larger arrays are memory-mapped, if the file is not compressed.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            mapped = {
                entry.filename.removesuffix(".npy"): array
                for entry in file.zip.infolist()
                if entry.file_size > mmap_threshold_mb * 2**20 and (array := _map_entry(path, entry)) is not None
            }
            names = [name for name in file.files if only is None or name in only]
            return {name: mapped[name] if name in mapped else file[name] for name in names}
    except Exception as error:
        raise unreadable(path, ".npz file", error) from error


def unreadable(what: str | Path, kind: str, error: Exception) -> InputError:
    """Return the error for a file that cannot be opened, or is not of its kind."""
    return InputError(f"{what}: {getattr(error, 'strerror', None) or f'not a readable {kind} ({error})'}")


def refuse_rows(wrong: Array, what: str, why: Callable[[int], str]) -> None:
    """Raise InputError if any row is ``wrong`` (n,), with what ``why`` says about the first."""
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{what}, row {row}: {why(row)}")


def _map_entry(path: Path, entry: zipfile.ZipInfo) -> Array | None:
    """Map an array within an .npz file; None if it is compressed or cannot be mapped."""
    if entry.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        file.seek(entry.header_offset + _ZIP_LENGTHS)
        file.seek(sum(struct.unpack("<HH", file.read(4))), 1)
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, in_columns, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if in_columns else "C")


@dataclass(frozen=True)
class Pieces:
    """An array that is written in pieces, since it may not fit into memory.

    Attributes:
        shape, dtype: of the whole array.
        read: yields its rows in pieces, in order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], Iterator[Array]]


def write_npz(path: Path, arrays: Mapping[str, Array | Pieces]) -> None:
    """Write an uncompressed .npz file atomically; equal arrays give equal bytes."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                    _write_npy(file, array)

    write_atomically(path, write)


def write_array(path: Path, array: Array | Pieces) -> None:
    """Write one .npy array atomically."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            _write_npy(file, array)

    write_atomically(path, write)


def _write_npy(file: IO[bytes], array: Array | Pieces) -> None:
    if not isinstance(array, Pieces):
        np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
        return
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in array.read():
        file.write(np.ascontiguousarray(piece, array.dtype).data)


def decoded(array: Array, what: str) -> Array:
    """Return an array of bytes as text; other arrays unchanged. Errors call the array ``what``."""
    if array.dtype.kind != "S":
        return array
    try:
        text: Array = np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: not text in UTF-8 ({error.reason})") from error
    return text


def stripped(array: Array) -> Array:
    """Return an array of text without surrounding whitespace; other arrays unchanged."""
    return np.char.strip(array) if array.dtype.kind == "U" else array


class Shards:
    """Several arrays, possibly memory-mapped, as one: their rows one after the other.

    Rows by slice, index or mask are read, and ``np.asarray`` reads all of them.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = [*arrays]
        self._starts = np.cumsum([0, *map(len, arrays)])
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *arrays[0].shape[1:])
        self.dtype: np.dtype[Any] = arrays[0].dtype
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        """Return the rows of a slice, at these indices, or where this mask is true."""
        rows = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        which = np.searchsorted(self._starts, rows, side="right") - 1
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for shard in np.unique(which):
            here = which == shard
            result[here] = self._arrays[shard][rows[here] - self._starts[shard]]
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate(self._arrays).astype(dtype or self.dtype, copy=False)
