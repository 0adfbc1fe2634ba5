"""Loader: reads one kind of data. The contract, and how the loader for a path is found."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from unflip.data import datasets
from unflip.data.dataset import Dataset
from unflip.data.options import DataOptions, ImageOptions
from unflip.errors import ConfigError, InputError, unknown
from unflip.options import Options

FOR_ALL = frozenset({"path", "labels", "reviewed", "limit", "per_class", "classes", "val_fraction", "groups"})
"""Options that matter for data of every kind."""
FOR_ROWS = frozenset({"standardize", "jitter"})
"""Options that matter where inputs are rows of numbers."""
FOR_CELLS = frozenset({"numeric", "categorical", "text_column", "text_encoder"})
"""Options that matter where inputs are cells of a table."""
FOR_IMAGE_FILES = frozenset({*ImageOptions.model_fields, "augment"})
"""Options that matter where inputs are image files."""


class Loader:
    """Reads one kind of data. A subclass lives in one file; an instance of it is registered in ``unflip.data``.

    Attributes:
        Options: options of its own; their section of the configuration has the loader's name.
        general: whether it reads a general format: it is tried after all others, and results call the data by the
            file's name.
        uses: the options of data that it, or what becomes of its data, reads besides :data:`FOR_ALL`.
        built_in: whether the data comes with the package and is requested by the loader's name instead of a path.
    """

    Options: ClassVar[type[Options]] = Options
    general: ClassVar[bool] = False
    uses: ClassVar[frozenset[str]] = frozenset()
    built_in: ClassVar[bool] = False

    def recognizes(self, path: Path) -> bool:
        """Whether this loader can read ``path``."""
        return False

    def load(self, path: Path, options: DataOptions, own: Any) -> Dataset:
        """Read the data; ``own`` are this loader's ``Options``. Image files are listed, not opened."""
        raise NotImplementedError(f"{type(self).__name__} does not define load")


def load_raw(options: DataOptions, own: Mapping[str, Options] = MappingProxyType({})) -> Dataset:
    """Read ``options.path`` with the loader for it; ``own`` holds options of loaders by name."""
    path = Path(options.path)
    name = find_loader(path)
    loader: Loader = datasets.load(name)
    raw = loader.load(path, options, own.get(name) or loader.Options())
    return replace(raw.checked(options.path), name=path.name if loader.general else name)


def check_used(options: DataOptions, typed: Collection[str], also: Collection[str] = ()) -> None:
    """Refuse options of data that a person typed although nothing reads them for data of this kind.

    Args:
        options: which data.
        typed: the keys that were typed: not those of a preset or of a file, which serve several kinds of data.
        also: keys that the caller reads itself, whatever the kind of data.
    """
    if not {*typed} - FOR_ALL:
        return
    kind = find_loader(Path(options.path))
    used = FOR_ALL | datasets.load(kind).uses | {*also}
    unused = next((key for key in DataOptions.model_fields if key in typed and key not in used), None)
    if unused is not None:
        others = [name for name in datasets.names() if unused in datasets.load(name).uses]
        raise ConfigError(
            f"data.{unused} is not used: data {options.path} is read as '{kind}'; leave it out (it is for "
            f"{', '.join(others)})"
        )


def find_loader(path: Path) -> str:
    """Return the name of the built-in data set called ``path``, or of the loader that recognizes what is there."""
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
            if loader.general == general and loader.recognizes(path):
                return name
    raise InputError(f"data {path}: cannot read '{path.suffix}'; give .npz, .npy, .csv, .parquet, .jsonl or a folder")


def is_built_in(name: str) -> bool:
    """Whether ``name`` is a data set that needs no files."""
    return name in datasets and datasets.load(name).built_in
