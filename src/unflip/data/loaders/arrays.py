"""Feature arrays: an .npz, an .npy, or a folder of .npy files; and how `unflip embed` writes them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unflip.data.arrays import Array, Pieces, Shards, decoded, read_array, read_npz, write_array, write_npz
from unflip.data.dataset import Dataset, Encoding, Split
from unflip.data.files import Skipped
from unflip.data.labels import read_labels
from unflip.data.loaders import FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.files import OwnedFolder, is_marked
from unflip.options import Options

LABELS, IDS, DIGESTS, IMAGE_STATS, STATES = "_labels", "_ids", "_digests", "_image_stats", "_states"
BESIDE = (LABELS, IDS, DIGESTS, IMAGE_STATS, STATES)
"""Suffixes of the arrays that belong to another one, after its name."""
_ABOUT, _ENCODER = "about", "encoder."
_MARKER = "features.json"
_SHARD_ROWS = 2**16
_SHARD = re.compile(r"(.+)-\d{5}\.npy")


class Arrays(Loader):
    """``train``, ``train_labels``, and any ``val`` and ``test*`` arrays next to them.

    A single .npy file is ``train``. In a folder, ``NAME.npy`` goes with ``NAME_labels`` (.npy, .csv, .txt), and may be
    split into shards, ``NAME-00000.npy`` and so on. Arrays larger than ``mmap_threshold_mb``, and all shards, are
    memory-mapped. ``class_names``, ``NAME_ids`` and the array that ``data.groups`` names are optional.
    """

    general = True
    uses = FOR_ROWS | {"mmap_threshold_mb"}

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether ``path`` is an .npz or .npy file, or a folder; the loaders of images are tried first."""
        return path.is_dir() or path.suffix in (".npz", ".npy")

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """Read the arrays."""
        arrays = read_arrays(path, options.mmap_threshold_mb)
        hint = "; a folder holds train.npy, or one folder of images per class" if path.is_dir() else ""
        without = f"no array 'train' among {', '.join(sorted(arrays)) or 'no arrays'}{hint}"
        sets = {
            name: Split(
                _check_features(array, f"{path}, '{name}'"),
                arrays.get(name + LABELS),
                ids=arrays.get(name + IDS),
                digests=arrays.get(name + DIGESTS),
                image_stats=arrays.get(name + IMAGE_STATS),
                states=arrays.get(name + STATES),
                groups=arrays.get(options.groups) if name == "train" and options.groups else None,
            )
            for name, array in arrays.items()
            if name in ("train", "val") or (name.startswith("test") and not name.endswith(BESIDE))
        }
        stray = next((name for name in arrays if name.startswith("val") and name.removesuffix(LABELS) != "val"), None)
        if stray is not None and not stray.endswith(BESIDE):
            raise InputError(f"{path}: array '{stray}'; validation examples must be called 'val' and 'val_labels'")
        if not sets:
            raise InputError(f"{path}: {without}")
        names, origin = arrays.get("class_names"), origin_of(path, arrays)
        return Dataset(
            train=sets.pop("train") if "train" in sets else next(iter(sets.values()))[:0],
            untrainable="no rows in 'train'" if "train" in arrays else without,
            val=sets.pop("val", None),
            tests=sets,
            class_names=None if names is None else tuple(map(str, names.ravel().tolist())),
            class_map=origin.class_map if origin else None,
            clean_val=bool(origin and origin.clean_val),
            images_path=origin.data if origin else None,
            skipped=origin.skipped if origin else (),
            encoding=origin.encoding if origin else None,
        )


def read_arrays(path: Path, mmap_threshold_mb: float) -> dict[str, Any]:
    """Read all arrays by name; a single .npy file is ``train``."""
    arrays: dict[str, Any]
    if path.is_dir():
        check_whole(path)
        arrays = _read_folder(path, mmap_threshold_mb)
    elif path.suffix == ".npz":
        arrays = read_npz(path, mmap_threshold_mb=mmap_threshold_mb)
    else:
        arrays = {"train": _read_npy(path, mmap_threshold_mb)}
    return {name: decoded(array, f"{path}, {name}") for name, array in arrays.items()}


def _read_npy(path: Path, mmap_threshold_mb: float) -> Array:
    large = path.stat().st_size > mmap_threshold_mb * 2**20
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
            if match[1] not in arrays:
                arrays[match[1]] = open_shards(path, match[1])
        elif file.suffix == ".npy":
            arrays[file.stem] = _read_npy(file, mmap_threshold_mb)
    return arrays


def shard_name(name: str, number: int) -> str:
    """Return the file name of a shard.

    >>> shard_name("train", 3)
    'train-00003.npy'
    """
    return f"{name}-{number:05}.npy"


def open_shards(folder: Path, name: str) -> Shards | None:
    """Map the files ``NAME-00000.npy``, ``NAME-00001.npy``, ...; None without any, InputError if one is missing."""
    files = sorted(folder.glob(f"{name}-{'[0-9]' * 5}.npy"))
    if not files:
        return None
    arrays: list[Array] = []
    for number, file in enumerate(files):
        if file.name != shard_name(name, number):
            raise InputError(f"{folder}: {shard_name(name, number)} is missing")
        array = read_array(file, mmap_mode="r")
        first = arrays[0] if arrays else array
        if array.ndim < 2 or (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
            expected = f"{first.shape}, {first.dtype} in {files[0].name}"
            raise InputError(f"{file}: shape {array.shape}, type {array.dtype}, unlike {expected}")
        arrays.append(array)
    return Shards(arrays)


def _check_features(array: Array | Shards, what: str) -> Array | Shards:
    if array.ndim < 2 or 0 in array.shape[1:]:
        raise InputError(f"{what}: shape {array.shape}; features must be (examples, columns)")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what}: type {array.dtype}; features must be numbers")
    return array


@dataclass(frozen=True)
class FeatureOrigin:
    """How features were made; stored with them as JSON, except for the encoder's arrays.

    Attributes:
        encoding: the encoder that made the features.
        data: the absolute path of what was encoded.
        fingerprint: hash of the images and of how they were encoded; empty for tables.
        class_map, clean_val: as in :class:`unflip.data.dataset.Dataset`.
        skipped: images that could not be decoded.
        label_column: in which a list of images has the labels, if it was chosen.
    """

    encoding: Encoding
    data: str
    fingerprint: str
    class_map: str | None = None
    clean_val: bool = False
    skipped: tuple[Skipped, ...] = ()
    label_column: str | None = None

    def about(self) -> str:
        """Return everything but the encoder's arrays as JSON."""
        described = {name: value for name, value in vars(self).items() if name != "encoding"}
        return json.dumps({"encoder": self.encoding.encoder, "settings": dict(self.encoding.settings)} | described)


def write_features(
    path: Path,
    features: Mapping[str, Array | Pieces],
    sets: Mapping[str, Split],
    class_names: tuple[str, ...] | None,
    origin: FeatureOrigin,
) -> None:
    """Write features as one .npz file, or as a folder of shards.

    A file is written atomically; a folder is complete once it holds ``about.npy``, which is written last.

    Args:
        path: the .npz file, or the folder.
        features: by split.
        sets: the splits, with labels, ids, digests and image statistics.
        class_names: if known.
        origin: how the features were made.
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
    """Replace everything but the features."""
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
        others = {LABELS: part.labels, IDS: ids, DIGESTS: part.digests}
        others |= {IMAGE_STATS: part.image_stats, STATES: part.states}
        arrays |= {name + key: array for key, array in others.items() if array is not None}
    return arrays | {_ABOUT: np.array(origin.about())}


def _write_beside(folder: OwnedFolder, arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        write_array(folder.own(f"{name}.npy"), array)


def is_file(path: Path) -> bool:
    """Whether features go into one file, by its suffix, or into a folder."""
    return path.suffix.lower() == ".npz"


def feature_folder(path: Path) -> OwnedFolder:
    """Return the folder of shards at ``path``."""
    return OwnedFolder(path, _MARKER)


def _shards(rows: Array | Pieces) -> Iterator[Array]:
    """Yield rows in shards of equal size, whatever the sizes of the pieces."""
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
    """Return how features were made, without the encoder's arrays; None if not by `unflip embed`."""
    if path.is_file():
        return origin_of(path, read_npz(path, only=(_ABOUT,)))
    about = path / f"{_ABOUT}.npy"
    return origin_of(path, {_ABOUT: read_array(about)}) if about.is_file() else None


def check_whole(folder: Path) -> None:
    """Raise InputError for a folder that `unflip embed` has not finished."""
    if is_marked(folder / _MARKER) and not (folder / f"{_ABOUT}.npy").is_file():
        raise InputError(f"{folder}: incomplete; run `unflip embed` again")


def origin_of(path: Path, arrays: Mapping[str, Array]) -> FeatureOrigin | None:
    """Return how features were made, from the arrays in ``path``."""
    if _ABOUT not in arrays:
        return None
    fitted = {name.removeprefix(_ENCODER): array for name, array in arrays.items() if name.startswith(_ENCODER)}
    try:
        about = json.loads(str(arrays[_ABOUT]))
        skipped = tuple(Skipped(*image) for image in about.pop("skipped"))
        return FeatureOrigin(Encoding(about.pop("encoder"), about.pop("settings"), fitted), skipped=skipped, **about)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not written by this version of `unflip embed` ({error}); embed it again") from error


arrays = Arrays()
