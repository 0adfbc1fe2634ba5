"""Feature arrays: one .npz, one .npy, or a folder of .npy files; and the .npz that `unflip embed` writes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from unflip.data.array_files import Array, read_array, read_npz
from unflip.data.dataset import DataOptions, LabelledSet, Loaded
from unflip.data.image_files import ImageFiles
from unflip.data.label_files import read_labels
from unflip.errors import InputError
from unflip.files import write_atomically

_LABELS, _IDS, _DIGESTS, _ABOUT = "_labels", "_ids", "_digests", "about"
_BESIDE = (_LABELS, _IDS, _DIGESTS)  # what goes with an array, behind its name


@dataclass(frozen=True)
class About:
    """How a feature file came about; in it as JSON."""

    backbone: str
    image_size: int
    image_resize: int
    resample: str
    data: str
    """Where the images are: what was embedded, as an absolute path."""
    fingerprint: str
    """Of the images and of all that was done to them."""
    class_map: str | None = None
    clean_val: bool = False
    """Both as in :class:`unflip.data.dataset.Loaded`."""


def load(path: Path, options: DataOptions) -> Loaded:
    """Read ``train``, ``train_labels`` and whatever ``val*`` and ``test*`` there is beside them.

    A lone .npy file is ``train``. In a folder, ``NAME.npy`` goes with ``NAME_labels`` (.npy, .csv, .txt). Arrays
    of more than ``map_above_mb`` are mapped, not read. ``class_names`` and ``NAME_ids`` are optional, and so is an
    array that ``data.groups`` names.
    """
    if path.is_dir():
        arrays = _read_folder(path, options.map_above_mb)
    elif path.suffix == ".npz":
        arrays = read_npz(path)
    else:
        arrays = {"train": _read_npy(path, options.map_above_mb)}
    if "train" not in arrays:
        hint = "; a folder holds train.npy, or images in a folder a class" if path.is_dir() else ""
        raise InputError(f"{path}: no array 'train'; it holds {', '.join(sorted(arrays)) or 'nothing'}{hint}")
    sets = {
        name: LabelledSet(
            _check_features(array, f"{path}, '{name}'"),
            arrays.get(name + _LABELS),
            ids=arrays.get(name + _IDS),
            digests=arrays.get(name + _DIGESTS),
            groups=arrays.get(options.groups) if name == "train" and options.groups else None,
        )
        for name, array in arrays.items()
        if name == "train" or (name.startswith(("val", "test")) and not name.endswith(_BESIDE))
    }
    stray = next((name for name in sets if name.startswith("val") and name != "val"), None)
    if stray is not None:
        raise InputError(f"{path}: array '{stray}'; validation examples are called 'val' and 'val_labels'")
    names, about = arrays.get("class_names"), _about(path, arrays)
    return Loaded(
        train=sets.pop("train"),
        val=sets.pop("val", None),
        tests={name: content for name, content in sets.items() if name.startswith("test")},
        class_names=None if names is None else tuple(map(str, names.tolist())),
        class_map=about.class_map if about else None,
        clean_val=bool(about and about.clean_val),
    )


def write_features(
    path: Path, sets: Mapping[str, LabelledSet], class_names: tuple[str, ...] | None, about: About
) -> None:
    """Write features of several sets, with their labels, ids and digests, as one .npz, atomically."""
    arrays: dict[str, Array] = {_ABOUT: np.array(json.dumps(asdict(about)))}
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, np.str_)
    for name, part in sets.items():
        assert not isinstance(part.inputs, ImageFiles)
        ids = None if part.ids is None else part.ids.astype(np.str_)
        beside = {_LABELS: part.labels, _IDS: ids, _DIGESTS: part.digests}
        arrays |= {name: part.inputs} | {name + key: array for key, array in beside.items() if array is not None}

    def save(temporary: Path) -> None:
        np.savez(temporary, allow_pickle=False, **arrays)

    write_atomically(path, save)


def read_about(path: Path) -> About | None:
    """Return how a feature file came about; None where it is no file, or not one of `unflip embed`."""
    return _about(path, read_npz(path, only=(_ABOUT,))) if path.is_file() else None


def _about(path: Path, arrays: Mapping[str, Array]) -> About | None:
    if _ABOUT not in arrays:
        return None
    try:
        return About(**json.loads(str(arrays[_ABOUT])))
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}, 'about': not what `unflip embed` writes ({error})") from error


def _read_npy(path: Path, map_above_mb: float) -> Array:
    try:
        large = path.stat().st_size > map_above_mb * 2**20
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    return read_array(path, mmap_mode="r" if large else None)


def _read_folder(path: Path, map_above_mb: float) -> dict[str, Array]:
    arrays = {}
    for file in sorted(path.iterdir()):
        if file.suffix in (".npy", ".csv", ".txt") and file.stem.endswith(_LABELS):
            if file.stem in arrays:
                raise InputError(f"{path}: {file.stem} is there more than once; keep one of .npy, .csv and .txt")
            arrays[file.stem] = read_labels(file)
        elif file.suffix == ".npy":
            arrays[file.stem] = _read_npy(file, map_above_mb)
    return arrays


def _check_features(array: Array, what: str) -> Array:
    if array.ndim < 2 or 0 in array.shape[1:]:
        raise InputError(f"{what}: shape {array.shape}; features are (examples, columns)")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what}: type {array.dtype}; features are float16, float32 or other numbers")
    return array
