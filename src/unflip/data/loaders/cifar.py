"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in both official layouts: binary files, and Python batches.

With the published file in the same folder or beside it, labels may be those of CIFAR-10N and CIFAR-100N, which people
gave (Wei et al. 2022).
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unflip.data.arrays import Array, unreadable
from unflip.data.dataset import Dataset, Split
from unflip.data.images import byte_normalization
from unflip.data.loaders import Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.noise.transition import CIFAR100_CLASSES

_SHAPE = (3, 32, 32)
_PIXELS = 3072


@dataclass(frozen=True)
class Cifar(Loader):
    """One of the two data sets.

    Attributes:
        records: the number of records in each training file, and in the test file.
        label_bytes: the number of bytes before each image; the last one is the class, before it CIFAR-100's superclass.
        human: the published file of labels by people.
        human_keys: their names in it, by the name that ``data.labels`` takes.
    """

    uses = frozenset({"augment", "shift"})

    name: str
    train: tuple[str, ...]
    test: str
    records: tuple[int, int]
    label_bytes: int
    label_key: str
    class_names: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    human: str
    human_keys: Mapping[str, str]

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether ``path`` is a folder with the first training file of either layout."""
        return any((path / f"{self.train[0]}{suffix}").is_file() for suffix in (".bin", ""))

    def load(self, path: Path, options: DataOptions) -> Dataset:
        """Read the training and test images, with their (clean) labels, in the official order."""
        binary = (path / f"{self.train[0]}.bin").is_file()
        read = self._read_binary if binary else self._read_pickled
        parts = [read(path / name, self.records[0]) for name in self.train]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Dataset(
            train=Split(images, labels),
            tests={"test": Split(*read(path / self.test, self.records[1]))},
            class_names=self.class_names,
            class_map=self.name,
            label_sets={name: partial(self._read_human, path, key, labels) for name, key in self.human_keys.items()},
            normalization=byte_normalization(self.mean, self.std),
        )

    def _read_binary(self, path: Path, count: int) -> tuple[Array, Array]:
        path = path.with_name(path.name + ".bin")
        try:
            content = np.fromfile(path, np.uint8)
        except OSError as error:
            raise unreadable(path, "file", error) from error
        record = self.label_bytes + _PIXELS
        if len(content) != count * record:
            raise InputError(f"{path}: {len(content)} bytes instead of {count * record}; download it again")
        records = content.reshape(-1, record)
        return records[:, self.label_bytes :].reshape(-1, *_SHAPE), records[:, self.label_bytes - 1].astype(np.int64)

    def _read_pickled(self, path: Path, count: int) -> tuple[Array, Array]:
        batch = read_batch(path)
        images, labels = batch.get("data"), batch.get(self.label_key)
        if not isinstance(images, np.ndarray) or (images.shape, images.dtype) != ((count, _PIXELS), np.uint8):
            raise InputError(f"{path}, 'data': not an array of {count} x {_PIXELS} bytes; download it again")
        if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels) or len(labels) != count:
            raise InputError(f"{path}, '{self.label_key}': not a list of {count} integers; download it again")
        return images.reshape(-1, *_SHAPE), np.array(labels, np.int64)

    def _read_human(self, folder: Path, key: str, clean: Array) -> Array:
        """Read one set of labels by people; the file's own copy of the clean labels tells whether its order is ours."""
        found = [path for path in (folder / self.human, folder.parent / self.human) if path.is_file()]
        if not found:
            raise InputError(f"{folder}: no file {self.human} in it or beside it; get it from www.noisylabels.com")
        content = read_human(found[0])
        labels = content.get(key)
        if not isinstance(labels, np.ndarray) or labels.shape != clean.shape or labels.dtype.kind not in "iu":
            raise InputError(f"{found[0]}, '{key}': not an array of {len(clean)} integers; download it again")
        if not np.array_equal(content.get("clean_label", ()), clean):
            raise InputError(f"{found[0]}, 'clean_label': not the classes in {folder}; is the order another?")
        return labels


CIFAR10 = Cifar(
    name="cifar10",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    records=(10_000, 10_000),
    label_bytes=1,
    label_key="labels",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    human="CIFAR-10_human.pt",
    human_keys={
        "cifar-10n:aggregate": "aggre_label",
        "cifar-10n:random1": "random_label1",
        "cifar-10n:random2": "random_label2",
        "cifar-10n:random3": "random_label3",
        "cifar-10n:worse": "worse_label",
    },
)
CIFAR100 = Cifar(
    name="cifar100",
    train=("train",),
    test="test",
    records=(50_000, 10_000),
    label_bytes=2,
    label_key="fine_labels",
    class_names=tuple(sorted(name for names in CIFAR100_CLASSES.values() for name in names)),
    mean=(0.5071, 0.4866, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    human="CIFAR-100_human.pt",
    human_keys={"cifar-100n:fine": "noisy_label"},
)


_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}
"""What a pickled array refers to, and all that a batch may refer to."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse every name that arrays do not need: names are how a pickle runs code."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"refused: it refers to {module}.{name}, a batch holds arrays only")
        return _ALLOWED[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of arrays and plain objects; a pickle that refers to anything else is refused."""
    try:
        with path.open("rb") as file:
            content = dict(_Unpickler(file, encoding="bytes").load())
    except Exception as error:  # a broken pickle can raise anything
        raise unreadable(path, "batch", error) from error
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def read_human(path: Path) -> dict[str, Any]:
    """Read a dictionary of integer arrays that ``torch.save`` wrote; a file that refers to anything else is refused."""
    allowed: list[Any] = [
        *((function, ".".join(name)) for name, function in _ALLOWED.items()),
        *map(type, map(np.dtype, "bBhHiIlLqQ")),
    ]
    try:
        with torch.serialization.safe_globals(allowed):
            return dict(torch.load(path, weights_only=True))
    except Exception as error:  # a broken pickle can raise anything
        raise unreadable(path, "labels", error) from error
