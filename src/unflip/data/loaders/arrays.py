"""Feature arrays: an .npz, an .npy, or a folder of .npy files; and how `unflip embed` writes them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unflip.data.arrays import Array, Pieces, decoded, read_array, read_npz, refuse_rows, write_npz
from unflip.data.dataset import Dataset, Encoding, Split
from unflip.data.files import Skipped
from unflip.data.loaders import FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError

LABELS, DIGESTS, IMAGE_STATS, STATES = "_labels", "_digests", "_image_stats", "_states"
ANNOTATIONS, ANNOTATORS = "_annotations", "annotators"
BESIDE = (LABELS, "_ids", DIGESTS, IMAGE_STATS, STATES, ANNOTATIONS)
"""Suffixes of the arrays that belong to another one, after its name; each is a field of a split."""
_ABOUT = "about"


class Arrays(Loader):
    """``train``, ``train_labels``, and any ``val`` and ``test*`` arrays next to them.

    A single .npy file is ``train``; in a folder, ``NAME.npy`` is the array NAME. Arrays larger than
    ``mmap_threshold_mb`` are memory-mapped. ``class_names``, ``NAME_ids`` and the array that ``data.groups`` names are
    optional.
    """

    general = True
    uses = FOR_ROWS | {"mmap_threshold_mb"}

    def recognizes(self, path: Path, options: DataOptions) -> bool:
        """Whether ``path`` is an .npz or .npy file, or a folder; the loaders of images are tried first."""
        return path.is_dir() or path.suffix in (".npz", ".npy")

    def load(self, path: Path, options: DataOptions) -> Dataset:
        """Read the arrays."""
        arrays = read_arrays(path, options.mmap_threshold_mb)
        hint = "; a folder holds train.npy, or one folder of images per class" if path.is_dir() else ""
        without = f"no array 'train' among {', '.join(sorted(arrays)) or 'no arrays'}{hint}"
        sets = {
            name: Split(
                _check_features(array, f"{path}, '{name}'"),
                **{suffix[1:]: arrays.get(name + suffix) for suffix in BESIDE},  # type: ignore[arg-type]
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
        data = Dataset(
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
        return _check_annotations(data, arrays.get(ANNOTATORS), str(path))


def _check_annotations(data: Dataset, people: Array | None, path: str) -> Dataset:
    """Return data with named annotators and classes; annotations are class numbers (n, a), -1 or NaN for none."""
    table = data.train.annotations
    if table is None:
        return data
    count, what = len(data.train.inputs), f"{path}, 'train{ANNOTATIONS}'"
    if table.ndim != 2 or len(table) != count or table.shape[1] < 2 or table.dtype.kind not in "iuf":
        kind = f"shape {table.shape}, type {table.dtype}"
        raise InputError(f"{what}: {kind}; must be class numbers ({count}, annotators)")
    codes = np.nan_to_num(table, nan=-1)
    names = data.class_names or tuple(map(str, range(int(codes.max(initial=-1)) + 1)))
    wrong = ((codes < -1) | (codes >= len(names)) | (codes != np.floor(codes))).any(1)
    refuse_rows(wrong, what, lambda _: f"a class number must be from 0 to {len(names) - 1}, or -1 for no label")
    by = tuple(map(str, range(table.shape[1]) if people is None else people.tolist()))
    if len(by) != table.shape[1]:
        raise InputError(f"{path}, '{ANNOTATORS}': {len(by)} names for {table.shape[1]} columns of annotations")
    train = replace(data.train, annotations=codes.astype(np.int32))
    return replace(data, train=train, class_names=names, annotators=by)


def read_arrays(path: Path, mmap_threshold_mb: float) -> dict[str, Array]:
    """Read all arrays by name; a single .npy file is ``train``."""
    if path.suffix == ".npz":
        arrays = read_npz(path, mmap_threshold_mb=mmap_threshold_mb)
    else:
        files = {file.stem: file for file in sorted(path.glob("*.npy"))} if path.is_dir() else {"train": path}
        large = {name for name, file in files.items() if file.stat().st_size > mmap_threshold_mb * 2**20}
        arrays = {name: read_array(file, "r" if name in large else None) for name, file in files.items()}
    return {name: decoded(array, f"{path}, {name}") for name, array in arrays.items()}


def _check_features(array: Array, what: str) -> Array:
    if array.ndim < 2 or 0 in array.shape[1:]:
        raise InputError(f"{what}: shape {array.shape}; features must be (examples, columns)")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what}: type {array.dtype}; features must be numbers")
    return array


@dataclass(frozen=True)
class FeatureOrigin:
    """How features were made; stored with them as JSON.

    Attributes:
        encoding: the encoder that made the features.
        data: the absolute path of what was encoded.
        fingerprint: hash of the images and of how they were encoded.
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
        """Return everything as JSON; encoders of images have no arrays."""
        described = {name: value for name, value in vars(self).items() if name != "encoding"}
        return json.dumps({"encoder": self.encoding.encoder, "settings": dict(self.encoding.settings)} | described)


def write_features(
    path: Path, features: Mapping[str, Array | Pieces], sets: Mapping[str, Split], raw: Dataset, origin: FeatureOrigin
) -> None:
    """Write features as an .npz file, atomically.

    Args:
        path: the file.
        features: by split.
        sets: the splits, with labels, ids, digests and image statistics.
        raw: the data, which names classes and annotators.
        origin: how the features were made.
    """
    arrays: dict[str, Array] = {}
    if raw.class_names is not None:
        arrays["class_names"] = np.array(raw.class_names, np.str_)
    if raw.annotators:
        arrays[ANNOTATORS] = np.array(raw.annotators, np.str_)
    for name, part in sets.items():
        own = {name + suffix: getattr(part, suffix[1:]) for suffix in BESIDE}
        arrays |= {key: array for key, array in own.items() if array is not None}
    texts = {key: array.astype(np.str_) for key, array in arrays.items() if array.dtype == object}
    write_npz(path, {**arrays, **texts, _ABOUT: np.array(origin.about()), **features})


def read_origin(path: Path) -> FeatureOrigin | None:
    """Return how features were made; None if not by `unflip embed`."""
    return origin_of(path, read_npz(path, only=(_ABOUT,))) if path.is_file() else None


def origin_of(path: Path, arrays: Mapping[str, Array]) -> FeatureOrigin | None:
    """Return how features were made, from the arrays in ``path``."""
    if _ABOUT not in arrays:
        return None
    try:
        about = json.loads(str(arrays[_ABOUT]))
        skipped = tuple(Skipped(*image) for image in about.pop("skipped"))
        return FeatureOrigin(Encoding(about.pop("encoder"), about.pop("settings"), {}), skipped=skipped, **about)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not written by this version of `unflip embed` ({error}); embed it again") from error


arrays = Arrays()
