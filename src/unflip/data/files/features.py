"""Feature files: what `unflip embed` writes, an .npz or a folder of shards, and how its features were computed."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unflip.data.encoding import Encoding
from unflip.data.files.arrays import Array, Pieces, read_array, read_npz, write_array, write_npz
from unflip.data.files.shards import shard_name
from unflip.data.images.files import Skipped
from unflip.data.raw import LabelledSet
from unflip.errors import InputError
from unflip.files import OwnedFolder, is_marked

LABELS, IDS, DIGESTS, IMAGE_STATS = "_labels", "_ids", "_digests", "_image_stats"
BESIDE = (LABELS, IDS, DIGESTS, IMAGE_STATS)
"""Suffixes of the arrays that belong to another one, after its name."""
_ABOUT, _ENCODER = "about", "encoder."
_MARKER = "features.json"
_SHARD_ROWS = 2**16


@dataclass(frozen=True)
class FeatureOrigin:
    """How a feature file was made, and of what; stored in it as JSON, and arrays where the encoder has any."""

    encoding: Encoding
    data: str
    """What was encoded, as an absolute path."""
    fingerprint: str
    """Hash of the examples and of all that was done to them."""
    class_map: str | None = None
    clean_val: bool = False
    """Both as in :class:`unflip.data.raw.RawData`."""
    skipped: tuple[Skipped, ...] = ()
    """Images that could not be read."""

    def about(self) -> str:
        """Return all but the encoder's arrays, as JSON."""
        described = {name: value for name, value in vars(self).items() if name != "encoding"}
        return json.dumps({"encoder": self.encoding.encoder, "settings": dict(self.encoding.settings)} | described)


def write_features(
    path: Path,
    features: Mapping[str, Array | Pieces],
    sets: Mapping[str, LabelledSet],
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
    path: Path, sets: Mapping[str, LabelledSet], class_names: tuple[str, ...] | None, origin: FeatureOrigin
) -> None:
    """Write all but the features anew: these stay as they are."""
    if is_file(path):
        features = {name: part.inputs for name, part in sets.items() if isinstance(part.inputs, np.ndarray)}
        write_features(path, features, sets, class_names, origin)
        return
    (path / f"{_ABOUT}.npy").unlink()
    _write_beside(feature_folder(path), _beside(sets, class_names, origin))


def _beside(
    sets: Mapping[str, LabelledSet], class_names: tuple[str, ...] | None, origin: FeatureOrigin
) -> dict[str, Array]:
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
