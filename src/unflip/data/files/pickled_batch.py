"""CIFAR's Python batches: pickles of a dictionary of lists and one array; no code in them is run."""

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from unflip.data.files.arrays import Array
from unflip.errors import InputError


def read_batch(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary; arrays of bytes become numpy arrays, all else that a pickle can name is refused."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, path).load()
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except Exception as error:  # a broken pickle can raise anything
        raise InputError(f"{path}: not a readable pickle ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}; a batch must be a dictionary")
    named = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    return {key: _plain(value, f"{path}, '{key}'") for key, value in named.items()}


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str | bytes = "", *rest: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and the like, which bytes do not have."""


class _Array:
    """Stands in for numpy.ndarray, and for the function that makes an empty one."""

    def __init__(self, *rest: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state


_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
}


class _Unpickler(pickle.Unpickler):
    """Knows only the names that an array needs, and replaces them by harmless stand-ins."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> type:
        """Refuse every name that is not needed for arrays: names are how a pickle runs code."""
        if (module, name) not in _STAND_INS:
            raise InputError(f"{self._path}: refused, this pickle asks for {module}.{name}; a batch holds arrays only")
        return _STAND_INS[module, name]


def _plain(value: object, what: str) -> object:
    if not isinstance(value, _Array):
        return value
    match value.state:
        case (int(), tuple() as shape, _Dtype(code="u1"), columns_first, bytes() as raw):
            if int(np.prod(shape)) == len(raw):
                flat: Array = np.frombuffer(bytearray(raw), np.uint8)
                return flat.reshape(shape, order="F" if columns_first else "C")
            raise InputError(f"{what}: expected {np.prod(shape)} bytes for an array {shape}, found {len(raw)}")
    raise InputError(f"{what}: not an array of bytes")
