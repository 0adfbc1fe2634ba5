"""Feature arrays: one .npz, one .npy, or a folder of .npy files."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from unflip.data.files.arrays import Array, decoded, read_array, read_npz
from unflip.data.files.features import BESIDE, DIGESTS, IDS, IMAGE_STATS, LABELS, check_whole, origin_of
from unflip.data.files.labels import read_labels
from unflip.data.files.shards import Shards, open_shards
from unflip.data.loader import FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.errors import InputError
from unflip.options import Options

_SHARD = re.compile(r"(.+)-\d{5}\.npy")


class Arrays(Loader):
    """``train``, ``train_labels``, and any ``val`` and ``test*`` arrays next to them.

    A lone .npy file is ``train``. In a folder, ``NAME.npy`` goes with ``NAME_labels`` (.npy, .csv, .txt), and rows may
    lie in shards, ``NAME-00000.npy`` and so on. Arrays larger than ``map_above_mb`` are mapped, not read; shards are
    always mapped. ``class_names`` and ``NAME_ids`` are optional, and so is an array that
    ``data.groups`` names.
    """

    general = True
    uses = FOR_ROWS | {"map_above_mb"}

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is an .npz or .npy file, or a folder; the loaders of images are tried first."""
        return path.is_dir() or path.suffix in (".npz", ".npy")

    def load(self, path: Path, options: DataOptions, own: Options) -> RawData:
        """Read the arrays."""
        arrays: dict[str, Any]
        if path.is_dir():
            check_whole(path)
            arrays = _read_folder(path, options.map_above_mb)
        elif path.suffix == ".npz":
            arrays = read_npz(path, map_above_mb=options.map_above_mb)
        else:
            arrays = {"train": _read_npy(path, options.map_above_mb)}
        arrays = {
            name: array if isinstance(array, Shards) else decoded(array, f"{path}, {name}")
            for name, array in arrays.items()
        }
        hint = "; a folder holds train.npy, or one folder of images per class" if path.is_dir() else ""
        without = f"no array 'train'; it holds {', '.join(sorted(arrays)) or 'nothing'}{hint}"
        sets = {
            name: LabelledSet(
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
        return RawData(
            train=sets.pop("train") if "train" in sets else next(iter(sets.values()))[:0],
            untrainable=None if "train" in arrays else without,
            val=sets.pop("val", None),
            tests={name: content for name, content in sets.items() if name.startswith("test")},
            class_names=None if names is None else tuple(map(str, names.tolist())),
            class_map=origin.class_map if origin else None,
            clean_val=bool(origin and origin.clean_val),
            images_path=origin.data if origin else None,
            skipped=origin.skipped if origin else (),
            encoding=origin.encoding if origin else None,
        )


def _read_npy(path: Path, map_above_mb: float) -> Array:
    try:
        large = path.stat().st_size > map_above_mb * 2**20
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    return read_array(path, mmap_mode="r" if large else None)


def _read_folder(path: Path, map_above_mb: float) -> dict[str, Any]:
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
            arrays[file.stem] = _read_npy(file, map_above_mb)
    return arrays


def _check_features(array: Array | Shards, what: str) -> Array | Shards:
    if array.ndim < 2 or 0 in array.shape[1:]:
        raise InputError(f"{what}: shape {array.shape}; features must be (examples, columns)")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what}: type {array.dtype}; features must be numbers")
    return array


arrays = Arrays()
