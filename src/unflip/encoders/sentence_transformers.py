"""Models of the package sentence-transformers, as ``sentence-transformers:NAME``: a name of the hub, or a folder.

Of the hub only settings, vocabularies and .safetensors are fetched; code and pickles never are. A text longer than what
the model takes is cut off, as the model's settings say.
"""

import hashlib
import importlib
import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from unflip.data.arrays import Array
from unflip.encoders.base import TextEncoder
from unflip.errors import ConfigError, InputError, MissingExtraError, described

_FAMILY = "sentence-transformers"
_FETCHED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NOT_FETCHED = ["onnx/*", "openvino/*"]
_REASON = 160  # characters of somebody else's message that are shown


class SentenceTransformers(TextEncoder):
    """A pretrained model; nothing is learned from the texts."""

    extra = _FAMILY
    name: ClassVar[str]

    def __init__(self, model: Any) -> None:
        self._model = model
        self.width = int(self._encode(["a"]).shape[1])

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Load the model, from its folder or the hub."""
        return cls(_load(cls.name))

    def encode_block(self, texts: list[str]) -> Array:
        """Return what the model says of each text; zeros for one without a character that is no space."""
        features = np.zeros((len(texts), self.width), np.float32)
        full = [index for index, text in enumerate(texts) if text.strip()]
        if full:
            features[full] = self._encode([texts[index] for index in full])
        return features

    def _encode(self, texts: list[str]) -> Array:
        features: Array = self._model.encode(texts, batch_size=32, show_progress_bar=False, convert_to_numpy=True)
        return features.astype(np.float32)

    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return the model's name, and which weights and vocabulary it has."""
        return {"model": self.name, "weights": self._digest(), "features": self.width}, {}

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(self._model.state_dict().items()):
            values = tensor.detach().cpu().contiguous()
            digest.update(json.dumps([name, str(values.dtype), *values.shape]).encode())
            digest.update(values.flatten().view(dtype=importlib.import_module("torch").uint8).numpy().data)
        vocabulary: dict[str, int] = getattr(getattr(self._model, "tokenizer", None), "get_vocab", dict)()
        digest.update(json.dumps([sorted(vocabulary.items()), self._model.max_seq_length]).encode())
        return digest.hexdigest()

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Load the model; refuse other weights than the features were made with."""
        encoder = cls.fit(())
        if (here := encoder._digest()) != settings.get("weights"):
            raise InputError(
                f"{_FAMILY}:{cls.name} has other weights here ({here}) than those that the features were made with "
                f"({settings.get('weights')}); get the model of then, or train again"
            )
        return encoder


def named(name: str) -> type[SentenceTransformers]:
    """Return the encoder class for the model ``name``, which is loaded when it is fitted or restored."""
    if not name:
        raise ConfigError(f"{_FAMILY}: no model is named; write {_FAMILY}:NAME with a name of the hub or a folder")
    if importlib.util.find_spec("sentence_transformers") is None:
        raise MissingExtraError(f"the package {_FAMILY}", _FAMILY)
    return type(SentenceTransformers.__name__, (SentenceTransformers,), {"name": name})


def import_package() -> Any:
    """Import the package, even if a torchvision that transformers would import does not fit this torch."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass  # it is not needed
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        from unflip.nn.timm import declare_operators

        declare_operators()
    return importlib.import_module("sentence_transformers")


def _load(name: str) -> Any:
    path = Path(name).expanduser()
    folder = path if path.is_dir() else _fetch(name)
    try:
        _refuse_code(folder, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_package().SentenceTransformer(
                str(folder), trust_remote_code=False, local_files_only=True, model_kwargs={"use_safetensors": True}
            )
    except InputError:
        raise
    except Exception as error:  # a folder may be damaged in any way
        reason = described(error)[:_REASON]
        raise InputError(f"{_FAMILY}:{name} cannot be loaded from {folder}: {reason}") from error


def _fetch(name: str) -> Path:
    """Return the folder of a model of the hub, fetched now or before."""
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_FETCHED, ignore_patterns=_NOT_FETCHED))
    except Exception as error:  # no network, no such name, no right to it: each hub library has its own
        raise InputError(
            f"no model {_FAMILY}:{name}: not a folder here, and the hub gave none ({type(error).__name__}); "
            "check the name and the network, or give the folder of a model"
        ) from error


def _refuse_code(folder: Path, name: str) -> None:
    """Refuse a model that names classes of others, which loading would import, or that has weights only as pickles."""
    for module in json.loads((folder / "modules.json").read_text("utf-8")):
        part = folder / module["path"]
        settings = part / "config.json"
        function = json.loads(settings.read_text("utf-8")).get("activation_function") if settings.is_file() else None
        for wanted, allowed in ((module["type"], "sentence_transformers."), (function, "torch.nn.")):
            if wanted is not None and not str(wanted).startswith(allowed):
                raise InputError(f"{_FAMILY}:{name} wants to run {wanted}, which is not of {allowed[:-1]}; refused")
        if any(part.glob("*.bin")) and not any(part.glob("*.safetensors")):
            raise InputError(f"{_FAMILY}:{name} has its weights as pickles; save it as .safetensors")
