"""Feature files: the .npz that `unflip embed` writes, and how its features were computed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unflip.data.encoding import Encoding
from unflip.data.files.arrays import Array, read_npz
from unflip.data.raw import LabelledSet
from unflip.errors import InputError
from unflip.files import write_atomically

LABELS, IDS, DIGESTS, _ABOUT, _ENCODER = "_labels", "_ids", "_digests", "about", "encoder."
BESIDE = (LABELS, IDS, DIGESTS)
"""Suffixes of the arrays that belong to another one, after its name."""


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

    def about(self) -> str:
        """Return all but the encoder's arrays, as JSON."""
        described = {name: value for name, value in vars(self).items() if name != "encoding"}
        return json.dumps({"encoder": self.encoding.encoder, "settings": dict(self.encoding.settings)} | described)


def write_features(
    path: Path, sets: Mapping[str, LabelledSet], class_names: tuple[str, ...] | None, origin: FeatureOrigin
) -> None:
    """Write features of several sets, with their labels, ids and digests, as one .npz, atomically."""
    arrays: dict[str, Array] = {_ABOUT: np.array(origin.about())}
    arrays |= {_ENCODER + name: array for name, array in origin.encoding.arrays.items()}
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, np.str_)
    for name, part in sets.items():
        assert isinstance(part.inputs, np.ndarray)
        ids = None if part.ids is None else part.ids.astype(np.str_)
        others = {LABELS: part.labels, IDS: ids, DIGESTS: part.digests}
        arrays |= {name: part.inputs} | {name + key: array for key, array in others.items() if array is not None}
    write_atomically(path, lambda temporary: np.savez(temporary, allow_pickle=False, **arrays))


def read_origin(path: Path) -> FeatureOrigin | None:
    """Return how a feature file was made, without the encoder's arrays; None if `unflip embed` did not write it."""
    return origin_of(path, read_npz(path, only=(_ABOUT,))) if path.is_file() else None


def origin_of(path: Path, arrays: Mapping[str, Array]) -> FeatureOrigin | None:
    """Return the same from the arrays that were read from ``path``."""
    if _ABOUT not in arrays:
        return None
    fitted = {name.removeprefix(_ENCODER): array for name, array in arrays.items() if name.startswith(_ENCODER)}
    try:
        about = json.loads(str(arrays[_ABOUT]))
        return FeatureOrigin(Encoding(about.pop("encoder"), about.pop("settings"), fitted), **about)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}, 'about': not what this version of `unflip embed` writes ({error}); embed the data again"
        ) from error
