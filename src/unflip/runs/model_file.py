"""model.safetensors: the trained networks with all that is needed to rebuild them and feed them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unflip.data.dataset import Encoding
from unflip.data.files import ResizeCrop
from unflip.data.sources import Standardization
from unflip.errors import RunFolderError
from unflip.files import write_tensors
from unflip.nn import networks as registered
from unflip.nn.base import build_network
from unflip.nn.ensemble import Ensemble, count_networks

FORMAT = 4
"""Of model files. It is raised when an older version's files can no longer be read."""
_ENCODING = "encoding."  # before the names of an encoder's arrays


@dataclass(frozen=True)
class Model:
    """Networks that predict together, and what their inputs and outputs mean."""

    network: str
    options: Mapping[str, Any]
    input_shape: tuple[int, ...]
    num_classes: int
    class_names: Sequence[str] | None
    standardization: Standardization | None
    state: Mapping[str, Tensor]
    """Of the networks that predict together, and of the class Gaussians if these do too."""
    frame: ResizeCrop | None = None
    """What the networks see of an image file; None where that is all of it, or inputs are no images."""
    encoding: Encoding | None = None
    """How examples become the rows that the networks take; None where they are that as they come."""

    def build(self) -> Ensemble:
        """Return what predicts."""
        options = registered.load(self.network).Options.model_validate(self.options)
        networks = [
            build_network(self.network, options, self.input_shape, self.num_classes, seed=0, fresh=False).eval()
            for _ in range(count_networks(self.state))
        ]
        ensemble = Ensemble(networks)
        ensemble.load_state_dict(self.state)
        return ensemble

    def save(self, path: Path) -> None:
        """Write the model atomically."""
        tensors = dict(self.state)
        if self.standardization:
            tensors |= {"inputs.mean": self.standardization.mean, "inputs.std": self.standardization.std}
        description = {
            "format": FORMAT,
            "network": self.network,
            "options": dict(self.options),
            "input_shape": list(self.input_shape),
            "num_classes": self.num_classes,
            "class_names": None if self.class_names is None else list(self.class_names),
            "frame": None if self.frame is None else asdict(self.frame),
            "encoder": None,
        }
        if self.encoding:
            description["encoder"] = {"name": self.encoding.encoder, "settings": dict(self.encoding.settings)}
            tensors |= {_ENCODING + name: torch.from_numpy(array) for name, array in self.encoding.arrays.items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        # One entry: safetensors writes several in any order, and equal models have equal files.
        write_tensors(path, tensors, {"model": json.dumps(description)})


def _check_format(path: Path, found: int) -> None:
    if found != FORMAT:
        raise RunFolderError(
            f"{path}: a model in format {found}, this version of unflip reads format {FORMAT}; train again, or use the "
            "version that wrote it"
        )


def load_model(path: Path) -> Model:
    """Read a model; nothing in the file is executed."""
    if not path.exists():
        raise RunFolderError(f"{path}: no such file; is this the folder of a finished run?")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            description = json.loads(file.metadata()["model"])
        _check_format(path, description.get("format", 1))
        standardized, encoder = "inputs.mean" in tensors, description["encoder"]
        arrays = {
            name.removeprefix(_ENCODING): tensors.pop(name).numpy() for name in [*tensors] if name.startswith(_ENCODING)
        }
        return Model(
            network=description["network"],
            options=description["options"],
            input_shape=tuple(description["input_shape"]),
            num_classes=description["num_classes"],
            class_names=description["class_names"],
            frame=ResizeCrop(**description["frame"]) if description.get("frame") else None,
            encoding=None if encoder is None else Encoding(encoder["name"], encoder["settings"], arrays),
            standardization=Standardization(tensors["inputs.mean"], tensors["inputs.std"]) if standardized else None,
            state={name: value for name, value in tensors.items() if not name.startswith("inputs.")},
        )
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path}: not a readable model ({error})") from error
