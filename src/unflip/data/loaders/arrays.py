"""Feature arrays: one .npz, one .npy, or a folder of .npy files; and how `unflip embed` writes them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unflip.data.arrays import (
    Array,
    Pieces,
    Shards,
    decoded,
    open_shards,
    read_array,
    read_npz,
    shard_name,
    write_array,
    write_npz,
)
from unflip.data.dataset import Dataset, Encoding, Split
from unflip.data.files import Skipped
from unflip.data.labels import read_labels
from unflip.data.loaders import FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.files import OwnedFolder, is_marked
from unflip.options import Options

LABELS, IDS, DIGESTS, IMAGE_STATS = "_labels", "_ids", "_digests", "_image_stats"
BESIDE = (LABELS, IDS, DIGESTS, IMAGE_STATS)
"""Suffixes of the arrays that belong to another one, after its name."""
_ABOUT, _ENCODER = "about", "encoder."
_MARKER = "features.json"
_SHARD_ROWS = 2**16
_SHARD = re.compile(r"(.+)-\d{5}\.npy")


class Arrays(Loader):
    """``train``, ``train_labels``, and any ``val`` and ``test*`` arrays next to them.

    A lone .npy file is ``train``. In a folder, ``NAME.npy`` goes with ``NAME_labels`` (.npy, .csv, .txt), and rows may
    lie in shards, ``NAME-00000.npy`` and so on. Arrays larger than ``mmap_threshold_mb`` are mapped, not
    read; shards are always mapped. ``class_names`` and ``NAME_ids`` are optional, and so is an array that
    ``data.groups`` names.
    """

    general = True
    uses = FOR_ROWS | {"mmap_threshold_mb"}

    def recognizes(self, path: Path) -> bool:
        """Whether ``path`` is an .npz or .npy file, or a folder; the loaders of images are tried first."""
        return path.is_dir() or path.suffix in (".npz", ".npy")

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """Read the arrays."""
        arrays: dict[str, Any]
        if path.is_dir():
            check_whole(path)
            arrays = _read_folder(path, options.mmap_threshold_mb)
        elif path.suffix == ".npz":
            arrays = read_npz(path, mmap_threshold_mb=options.mmap_threshold_mb)
        else:
            arrays = {"train": _read_npy(path, options.mmap_threshold_mb)}
        arrays = {
            name: array if isinstance(array, Shards) else decoded(array, f"{path}, {name}")
            for name, array in arrays.items()
        }
        hint = "; a folder holds train.npy, or one folder of images per class" if path.is_dir() else ""
        without = f"no array 'train'; it holds {', '.join(sorted(arrays)) or 'nothing'}{hint}"
        sets = {
            name: Split(
                _check_features(array, f"{path}, '{name}'"),
                arrays.get(name + LABELS),
                ids=arrays.get(name + IDS),
                digests=arrays.get(name + DIGESTS),
                image_stats=arrays.get(name + IMAGE_STATS),
                groups=arrays.get(options.groups) if name == "train" and options.groups else None,
            )
            for name, array in arrays.items()
            if name == "train" or (name.startswith(("val", "test")) and not name.endswith(BESIDE))
        }
        stray = next((name for name in sets if name.startswith("val") and name != "val"), None)
        if stray is not None:
            raise InputError(f"{path}: array '{stray}'; validation examples must be called 'val' and 'val_labels'")
        if not sets:
            raise InputError(f"{path}: {without}")
        names, origin = arrays.get("class_names"), origin_of(path, arrays)
        if names is not None and (names.ndim != 1 or not len(names)):
            raise InputError(f"{path}, class_names: shape {names.shape}; give one name per class, (k,)")
        return Dataset(
            train=sets.pop("train") if "train" in sets else next(iter(sets.values()))[:0],
            untrainable="no rows in 'train'" if "train" in arrays else without,
            val=sets.pop("val", None),
            tests={name: content for name, content in sets.items() if name.startswith("test")},
            class_names=None if names is None else tuple(map(str, names.tolist())),
            class_map=origin.class_map if origin else None,
            clean_val=bool(origin and origin.clean_val),
            images_path=origin.data if origin else None,
            skipped=origin.skipped if origin else (),
            encoding=origin.encoding if origin else None,
        )


def _read_npy(path: Path, mmap_threshold_mb: float) -> Array:
    try:
        large = path.stat().st_size > mmap_threshold_mb * 2**20
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    return read_array(path, mmap_mode="r" if large else None)


def _read_folder(path: Path, mmap_threshold_mb: float) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    named = read_array(path / "class_names.npy") if (path / "class_names.npy").is_file() else np.empty(0, np.str_)
    for file in sorted(path.iterdir()):
        if file.suffix in (".npy", ".csv", ".txt") and file.stem.endswith(LABELS):
            if file.stem in arrays:
                raise InputError(f"{path}: {file.stem} appears more than once; keep one of .npy, .csv and .txt")
            arrays[file.stem] = read_labels(file, names=named.astype(np.str_).ravel().tolist())
        elif match := _SHARD.fullmatch(file.name):
            if (path / f"{match[1]}.npy").exists():
                raise InputError(f"{path}: {match[1]}.npy, and {file.name} beside it; keep the whole or the shards")
            if match[1] not in arrays:
                arrays[match[1]] = open_shards(path, match[1])
        elif file.suffix == ".npy":
            arrays[file.stem] = _read_npy(file, mmap_threshold_mb)
    return arrays


def _check_features(array: Array | Shards, what: str) -> Array | Shards:
    if array.ndim < 2 or 0 in array.shape[1:]:
        raise InputError(f"{what}: shape {array.shape}; features must be (examples, columns)")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what}: type {array.dtype}; features must be numbers")
    return array


@dataclass(frozen=True)
class FeatureOrigin:
    """How a feature file was made, and of what; stored in it as JSON, and arrays where the encoder has any.

    Attributes:
        encoding: the encoder that made the features.
        data: what was encoded, as an absolute path.
        fingerprint: hash of the examples and of all that was done to them.
        class_map, clean_val: as in :class:`unflip.data.dataset.Dataset`.
        skipped: images that could not be read.
    """

    encoding: Encoding
    data: str
    fingerprint: str
    class_map: str | None = None
    clean_val: bool = False
    skipped: tuple[Skipped, ...] = ()

    def about(self) -> str:
        """Return all but the encoder's arrays, as JSON."""
        described = {name: value for name, value in vars(self).items() if name != "encoding"}
        return json.dumps({"encoder": self.encoding.encoder, "settings": dict(self.encoding.settings)} | described)


def write_features(
    path: Path,
    features: Mapping[str, Array | Pieces],
    sets: Mapping[str, Split],
    class_names: tuple[str, ...] | None,
    origin: FeatureOrigin,
) -> None:
    """Write the features of several sets with what belongs to them, as one .npz or a folder of shards.

    A file is written atomically; a folder is whole once it says how its features were made, which is written last.
    """
    arrays = _beside(sets, class_names, origin)
    if is_file(path):
        write_npz(path, {**arrays, **features})
        return
    folder = feature_folder(path)
    folder.begin()
    for name in [f"{_ABOUT}.npy", *folder.owned()]:
        (path / name).unlink(missing_ok=True)
    folder.record([])
    for name, rows in features.items():
        for number, shard in enumerate(_shards(rows)):
            write_array(folder.own(shard_name(name, number)), shard)
    _write_beside(folder, arrays)


def write_labels(
    path: Path, sets: Mapping[str, Split], class_names: tuple[str, ...] | None, origin: FeatureOrigin
) -> None:
    """Write all but the features anew: these stay as they are."""
    if is_file(path):
        features = {name: part.inputs for name, part in sets.items() if isinstance(part.inputs, np.ndarray)}
        write_features(path, features, sets, class_names, origin)
        return
    (path / f"{_ABOUT}.npy").unlink()
    _write_beside(feature_folder(path), _beside(sets, class_names, origin))


def _beside(sets: Mapping[str, Split], class_names: tuple[str, ...] | None, origin: FeatureOrigin) -> dict[str, Array]:
    arrays: dict[str, Array] = {_ENCODER + name: array for name, array in origin.encoding.arrays.items()}
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, np.str_)
    for name, part in sets.items():
        ids = None if part.ids is None else part.ids.astype(np.str_)
        others = {LABELS: part.labels, IDS: ids, DIGESTS: part.digests, IMAGE_STATS: part.image_stats}
        arrays |= {name + key: array for key, array in others.items() if array is not None}
    return arrays | {_ABOUT: np.array(origin.about())}


def _write_beside(folder: OwnedFolder, arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        write_array(folder.own(f"{name}.npy"), array)


def is_file(path: Path) -> bool:
    """Whether features go into one file, by its name, or into a folder."""
    return path.suffix.lower() == ".npz"


def feature_folder(path: Path) -> OwnedFolder:
    """Return the folder of shards at ``path``."""
    return OwnedFolder(path, _MARKER)


def _shards(rows: Array | Pieces) -> Iterator[Array]:
    """Yield the same number of rows at a time, whatever pieces they come in."""
    held: list[Array] = []
    for piece in rows.read() if isinstance(rows, Pieces) else [rows]:
        held.append(piece)
        while sum(map(len, held)) >= _SHARD_ROWS:
            joined = np.concatenate(held)
            yield joined[:_SHARD_ROWS]
            held = [joined[_SHARD_ROWS:]]
    if any(map(len, held)):
        yield np.concatenate(held)


def read_origin(path: Path) -> FeatureOrigin | None:
    """Return how features were made, without the encoder's arrays; None if `unflip embed` did not write them."""
    if path.is_file():
        return origin_of(path, read_npz(path, only=(_ABOUT,)))
    about = path / f"{_ABOUT}.npy"
    return origin_of(path, {_ABOUT: read_array(about)}) if about.is_file() else None


def check_whole(folder: Path) -> None:
    """Refuse a folder of features that `unflip embed` has begun to write and not finished."""
    if is_marked(folder / _MARKER) and not (folder / f"{_ABOUT}.npy").is_file():
        raise InputError(f"{folder}: its features are not whole; let `unflip embed` finish, or call it again")


def origin_of(path: Path, arrays: Mapping[str, Array]) -> FeatureOrigin | None:
    """Return the same from the arrays that were read from ``path``."""
    if _ABOUT not in arrays:
        return None
    fitted = {name.removeprefix(_ENCODER): array for name, array in arrays.items() if name.startswith(_ENCODER)}
    try:
        about = json.loads(str(arrays[_ABOUT]))
        skipped = tuple(Skipped(*image) for image in about.pop("skipped"))
        return FeatureOrigin(Encoding(about.pop("encoder"), about.pop("settings"), fitted), skipped=skipped, **about)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}, 'about': not what this version of `unflip embed` writes ({error}); embed the data again"
        ) from error


arrays = Arrays()
