"""Loader: the contract of loaders, and how the loader of a path is found."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from unflip.data import datasets
from unflip.data.dataset import Dataset
from unflip.data.options import DataOptions, ImageOptions
from unflip.errors import ConfigError, InputError

_log = logging.getLogger(__name__)
FOR_ALL = frozenset((
    "path", "labels", "annotations", "unlabeled", "ordinal", "reviewed", "changes", "limit", "per_class", "classes",
    "val_fraction", "groups",
))  # fmt: skip
"""Options for all data."""
FOR_ROWS = frozenset({"standardize", "jitter"})
"""Options for rows of numbers."""
FOR_CELLS = frozenset({"numeric", "categorical", "text_column", "text_encoder"})
"""Options for tables."""
FOR_IMAGE_FILES = frozenset({*ImageOptions.model_fields, "augment"})
"""Options for image files."""


class Loader:
    """Base class of loaders. An instance of a subclass is registered in ``unflip.data``.

    Attributes:
        general: whether it reads a general format: it is tried after the specific ones, and results call the data by
            the file's name.
        uses: the options of data that have an effect, besides :data:`FOR_ALL`.
        built_in: whether the data comes with the package, and its name takes the place of a path.
    """

    general: ClassVar[bool] = False
    uses: ClassVar[frozenset[str]] = frozenset()
    built_in: ClassVar[bool] = False

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether this loader can read ``path``, as ``options`` want it."""
        return False

    def load(self, path: Path, options: DataOptions) -> Dataset:
        """Read the data. Image files are listed, not read."""
        raise NotImplementedError(f"{type(self).__name__} does not define load")


def load_raw(options: DataOptions) -> Dataset:
    """Read ``options.path`` with the loader for it."""
    path, name = Path(options.path), find_loader(options)
    loader: Loader = datasets.load(name)
    with _naming_folder(path):
        raw = loader.load(path, options)
    counts = ", ".join(f"{len(part.inputs):,} {key}" for key, part in raw.parts().items())
    _log.info("%s: read as '%s': %s", options.path, name, counts)
    return replace(raw.checked(options.path), name=path.name if loader.general else name)


def check_used(options: DataOptions, typed: Collection[str], also: Collection[str] = ()) -> None:
    """Raise ConfigError for options of data that have no effect on data of this kind.

    Args:
        options: which data.
        typed: the keys that were set for this command, not by a preset or a file.
        also: keys that the caller reads itself, for any kind of data.
    """
    kind = find_loader(options) if {*typed} - FOR_ALL else ""
    unused = {*typed} - FOR_ALL - {*also} - (datasets.load(kind).uses if kind else set())
    if name := next((key for key in DataOptions.model_fields if key in unused), None):
        raise ConfigError(f"data.{name} is not used: data {options.path} is read as '{kind}'; leave it out")


def find_loader(options: DataOptions) -> str:
    """Return the name of the built-in data set called ``options.path``, or of the loader that recognizes it."""
    if is_built_in(options.path):
        return options.path
    path = Path(options.path)
    if not path.exists():
        raise InputError(f"No such file or folder: {path}")
    if path.is_file() and (owner := next((entry.name for entry in datasets if path.suffix in entry.suffixes), None)):
        return owner
    with _naming_folder(path):
        if path.is_dir():
            next(path.iterdir(), None)  # an error here is about the folder itself
        for general in (False, True):
            for name in datasets.names():
                loader: Loader = datasets.load(name)
                if loader.general == general and loader.recognizes(path, options):
                    return name
    raise InputError(f"data {path}: cannot read '{path.suffix}'; give .npz, .npy, .csv, .parquet, .jsonl or a folder")


@contextmanager
def _naming_folder(path: Path) -> Iterator[None]:
    """Turn errors about folders that cannot be read into one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror or error}") from error


def is_built_in(name: str) -> bool:
    """Whether ``name`` is a built-in data set."""
    return name in datasets and datasets.load(name).built_in


FOLDERS, TABLES, ARRAYS = ("images", "texts"), ("table", "manifest"), ("arrays",)
"""Loaders whose data can be rewritten: as folders of classes, a table or an .npz file."""


def target_suffixes(options: DataOptions) -> tuple[str, ...]:
    """Return the suffixes of the file that data is rewritten to; none for a folder.

    Raises InputError for data that cannot be rewritten.
    """
    loader = find_loader(options)
    if loader in FOLDERS:
        return ()
    if loader in ARRAYS:
        return (".npz",)
    if loader in TABLES:
        return (Path(options.path).suffix.lower(),)
    raise InputError(f"data {options.path}: '{loader}' cannot be rewritten; export the labels with `unflip export`")
