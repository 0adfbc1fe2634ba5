"""Models of the package sentence-transformers, as ``sentence-transformers:NAME``: a name on the hub, or a folder.

Only settings, vocabularies and .safetensors are downloaded from the hub, never code or pickles. Texts are truncated to
the maximum length of the model.
"""

import importlib
import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from unflip.compute import repair_torchvision
from unflip.data.arrays import Array
from unflip.encoders.base import TextEncoder
from unflip.errors import ConfigError, InputError, MissingExtraError, described

_FAMILY = "sentence-transformers"
_FETCHED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NOT_FETCHED = ["onnx/*", "openvino/*"]


class SentenceTransformers(TextEncoder):
    """A pretrained model; nothing is fitted to the texts."""

    name: ClassVar[str]

    def __init__(self, model: Any) -> None:
        self._model = model
        self.width = int(self._encode(["a"]).shape[1])

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Load the model from a folder or the hub."""
        return cls(_load(cls.name))

    def encode_block(self, texts: list[str]) -> Array:
        """Return the model's embeddings; zeros for blank texts."""
        features = np.zeros((len(texts), self.width), np.float32)
        filled = [index for index, text in enumerate(texts) if text.strip()]
        if filled:
            features[filled] = self._encode([texts[index] for index in filled])
        return features

    def _encode(self, texts: list[str]) -> Array:
        features: Array = self._model.encode(texts, batch_size=32, show_progress_bar=False, convert_to_numpy=True)
        return features.astype(np.float32)

    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return the name of the model, and a hash of its weights and vocabulary."""
        from unflip.nn.backbone import hash_weights

        vocabulary: dict[str, int] = getattr(getattr(self._model, "tokenizer", None), "get_vocab", dict)()
        settings = json.dumps([sorted(vocabulary.items()), self._model.max_seq_length])
        weights = hash_weights(self._model, settings)
        return {"model": f"{_FAMILY}:{self.name}", "weights": weights, "features": self.width}, {}


def named(name: str) -> type[SentenceTransformers]:
    """Return the encoder class of the model ``name``, which is loaded by ``fit`` and ``restore``."""
    if not name:
        raise ConfigError(f"{_FAMILY}: no model; write {_FAMILY}:NAME with a name on the hub or a folder")
    if importlib.util.find_spec("sentence_transformers") is None:
        raise MissingExtraError(f"the package {_FAMILY}", _FAMILY)
    return type(SentenceTransformers.__name__, (SentenceTransformers,), {"name": name})


def import_package() -> Any:
    """Import the package, even beside a torchvision that was built for another torch."""
    repair_torchvision()
    return importlib.import_module("sentence_transformers")


def _load(name: str) -> Any:
    path = Path(name).expanduser()
    folder = path if path.is_dir() else _fetch(name)
    try:
        _check_safe(folder, name)
        with warnings.catch_warnings(action="ignore"):
            return import_package().SentenceTransformer(
                str(folder), trust_remote_code=False, local_files_only=True, model_kwargs={"use_safetensors": True}
            )
    except InputError:
        raise
    except Exception as error:  # a folder may be damaged in any way
        raise InputError(f"{_FAMILY}:{name}: cannot be loaded from {folder}: {described(error)[:160]}") from error


def _fetch(name: str) -> Path:
    """Return the folder of a model on the hub, downloaded or cached."""
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_FETCHED, ignore_patterns=_NOT_FETCHED))
    except Exception as error:  # no network, unknown name, no access: types vary with the version
        raise InputError(
            f"{_FAMILY}:{name}: neither a folder nor available on the hub ({type(error).__name__}); check the name"
        ) from error


def _check_safe(folder: Path, name: str) -> None:
    """Raise InputError if loading would import foreign code, or unpickle weights."""
    for module in json.loads((folder / "modules.json").read_text("utf-8")):
        part = folder / module["path"]
        settings = part / "config.json"
        function = json.loads(settings.read_text("utf-8")).get("activation_function") if settings.is_file() else None
        for reference, package in ((module["type"], "sentence_transformers."), (function, "torch.nn.")):
            if reference is not None and not str(reference).startswith(package):
                raise InputError(f"{_FAMILY}:{name}: runs foreign code, {reference}; not loaded")
        if any(part.glob("*.bin")) and not any(part.glob("*.safetensors")):
            raise InputError(f"{_FAMILY}:{name} weights are pickled; save them as .safetensors")
