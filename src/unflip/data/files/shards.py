"""Shards: rows that lie in several .npy files, as one array that is never read whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unflip.data.files.arrays import Array, read_array
from unflip.errors import InputError


class Shards:
    """Rows of several arrays of one shape and type, one after the other; the arrays may be memory maps.

    A slice is another view, rows by number or by a mask are read, and ``np.asarray`` reads all of them.
    """

    def __init__(self, arrays: "Sequence[Array | Shards]") -> None:
        self._arrays = [*arrays]
        self._starts = np.cumsum([0, *map(len, arrays)])
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *arrays[0].shape[1:])
        self.dtype: np.dtype[Any] = arrays[0].dtype
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        """Return a view of a slice, else the rows at the numbers ``rows``, or where that mask is true, or one row."""
        if isinstance(rows, slice):
            return self._slice(*rows.indices(len(self)))
        if np.ndim(rows) == 0:
            return self[[rows]][0]
        rows = np.asarray(rows)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        which = np.searchsorted(self._starts, rows, side="right") - 1
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for shard in np.unique(which):
            here = which == shard
            found[here] = self._arrays[shard][rows[here] - self._starts[shard]]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate(self._arrays).astype(dtype or self.dtype, copy=False)

    def _slice(self, start: int, stop: int, step: int) -> "Shards":
        if step != 1:
            raise IndexError("only rows that follow each other can be sliced")
        cut = [
            array[max(start - first, 0) : max(stop - first, 0)]
            for array, first in zip(self._arrays, self._starts.tolist(), strict=False)
        ]
        return Shards([array for array in cut if len(array)] or cut[:1])


def shard_name(name: str, number: int) -> str:
    """Return what the file of a shard is called.

    >>> shard_name("train", 3)
    'train-00003.npy'
    """
    return f"{name}-{number:05}.npy"


def open_shards(folder: Path, name: str) -> Shards | None:
    """Map the files ``NAME-00000.npy``, ``NAME-00001.npy`` and so on; None if there are none, an error if one lacks."""
    files = sorted(folder.glob(f"{name}-{'[0-9]' * 5}.npy"))
    if not files:
        return None
    arrays: list[Array] = []
    for number, file in enumerate(files):
        if file.name != shard_name(name, number):
            raise InputError(f"{folder}: {shard_name(name, number)} is missing, although {files[-1].name} is there")
        array = read_array(file, mmap_mode="r")
        first = arrays[0] if arrays else array
        if array.ndim < 2 or (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
            raise InputError(
                f"{file}: shape {array.shape}, type {array.dtype}; shards hold (examples, columns) as {files[0].name} "
                f"does: {first.shape}, {first.dtype}"
            )
        arrays.append(array)
    return Shards(arrays)
