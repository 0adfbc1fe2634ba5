"""Loader: reads one kind of data. The contract, and how the loader for a path is found."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from unflip.data import datasets
from unflip.data.options import DataOptions
from unflip.data.raw import RawData
from unflip.errors import InputError, unknown
from unflip.options import Options


class Loader:
    """Reads one kind of data. A subclass lives in one file; an instance of it is registered in ``unflip.data``."""

    Options: ClassVar[type[Options]] = Options
    """Options of its own; their section of the configuration has the loader's name."""
    general: ClassVar[bool] = False
    """Whether it reads a general format: it is tried after all others, and results call the data by the file's name."""
    built_in: ClassVar[bool] = False
    """Whether the data comes with the package and is requested by the loader's name instead of a path."""

    def recognises(self, path: Path) -> bool:
        """Whether this loader can read ``path``."""
        return False

    def load(self, path: Path, options: DataOptions, own: Any) -> RawData:
        """Read the data; ``own`` are this loader's ``Options``. Image files are listed, not opened."""
        raise NotImplementedError(f"{type(self).__name__} does not define load")


def load_raw(options: DataOptions, own: Mapping[str, Options] = MappingProxyType({})) -> RawData:
    """Read ``options.path`` with the loader for it; ``own`` holds options of loaders by name."""
    path = Path(options.path)
    name = find_loader(path)
    loader: Loader = datasets.load(name)
    raw = loader.load(path, options, own.get(name) or loader.Options())
    return replace(raw, name=path.name if loader.general else name)


def find_loader(path: Path) -> str:
    """Return the name of the built-in data set called ``path``, or of the loader that recognises what is there."""
    if is_built_in(str(path)):
        return str(path)
    if not path.exists():
        built_in = [name for name in datasets.names() if is_built_in(name)]
        raise InputError(f"data {path}: no such file or folder, and {unknown('data set', str(path), built_in)}")
    if path.is_file() and (owner := next((entry.name for entry in datasets if path.suffix in entry.suffixes), None)):
        return owner
    for general in (False, True):
        for name in datasets.names():
            loader: Loader = datasets.load(name)
            if loader.general == general and loader.recognises(path):
                return name
    raise InputError(f"data {path}: cannot read '{path.suffix}'; give .npz, .npy, .csv, .parquet or a folder")


def is_built_in(name: str) -> bool:
    """Whether ``name`` is a data set that needs no files."""
    return name in datasets and datasets.load(name).built_in
