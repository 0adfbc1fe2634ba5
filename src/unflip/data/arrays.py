"""Feature arrays: one .npz, one .npy, or a folder of .npy files."""

from pathlib import Path

from unflip.data.array_files import Array, read_array, read_npz
from unflip.data.dataset import DataOptions, LabelledSet, Loaded
from unflip.data.label_files import read_labels
from unflip.errors import InputError

_LABELS = "_labels"


def load(path: Path, options: DataOptions) -> Loaded:
    """Read ``train``, ``train_labels`` and whatever ``val*`` and ``test*`` there is beside them.

    A lone .npy file is ``train``. In a folder, ``NAME.npy`` goes with ``NAME_labels`` (.npy, .csv, .txt). Arrays
    of more than ``map_above_mb`` are mapped, not read. ``class_names`` and ``train_ids`` are optional.
    """
    if path.is_dir():
        arrays = _read_folder(path, options.map_above_mb)
    elif path.suffix == ".npz":
        arrays = read_npz(path)
    else:
        arrays = {"train": _read_npy(path, options.map_above_mb)}
    if "train" not in arrays:
        raise InputError(f"{path}: no array 'train'; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    sets = {
        name: LabelledSet(
            _check_features(array, f"{path}, '{name}'"),
            arrays.get(name + _LABELS),
            ids=arrays.get("train_ids") if name == "train" else None,
        )
        for name, array in arrays.items()
        if name == "train" or (name.startswith(("val", "test")) and not name.endswith((_LABELS, "_ids")))
    }
    stray = next((name for name in sets if name.startswith("val") and name != "val"), None)
    if stray is not None:
        raise InputError(f"{path}: array '{stray}'; validation examples are called 'val' and 'val_labels'")
    names = arrays.get("class_names")
    return Loaded(
        train=sets.pop("train"),
        val=sets.pop("val", None),
        tests={name: content for name, content in sets.items() if name.startswith("test")},
        class_names=None if names is None else tuple(map(str, names.tolist())),
    )


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
