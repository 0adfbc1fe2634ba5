"""model.safetensors: the trained networks, with everything needed to rebuild them and encode their inputs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from unflip.data.dataset import Encoding
from unflip.data.files import ResizeCrop
from unflip.data.sources import Standardization
from unflip.files import check_checksum, check_format, checksum, reading, write_tensors
from unflip.nn import networks as registered
from unflip.nn.base import Ensemble, build_network, count_networks

FORMAT = 5
"""Version of the model file; raised when older files can no longer be read."""
_ENCODING = "encoding."  # prefix of the encoder's arrays
_PLAIN = ("network", "options", "input_shape", "num_classes", "class_names")  # fields stored as JSON


@dataclass(frozen=True)
class Model:
    """An ensemble of networks, and what their inputs and outputs mean."""

    network: str
    options: Mapping[str, Any]
    input_shape: tuple[int, ...]
    num_classes: int
    class_names: Sequence[str] | None
    standardization: Standardization | None
    state: Mapping[str, Tensor]
    """State dict of the ensemble, including class Gaussians if they take part in predictions."""
    frame: ResizeCrop | None = None
    """How image files are resized and cropped; None for other inputs, or if images are used whole."""
    encoding: Encoding | None = None
    """How examples become rows of features; None if the networks take them as they are."""

    @property
    def names(self) -> list[str]:
        """The class names; the numbers of classes without names."""
        return list(self.class_names) if self.class_names else [str(i) for i in range(self.num_classes)]

    def build(self) -> Ensemble:
        """Return the ensemble, ready to predict."""
        options = registered.load(self.network).Options.model_validate(self.options)
        build = partial(build_network, self.network, options, self.input_shape, self.num_classes, seed=0, fresh=False)
        ensemble = Ensemble([build().eval() for _ in range(count_networks(self.state))])
        ensemble.load_state_dict(self.state)
        return ensemble

    def save(self, path: Path) -> None:
        """Write the model atomically."""
        tensors = dict(self.state)
        if self.standardization:
            tensors |= {"inputs.mean": self.standardization.mean, "inputs.std": self.standardization.std}
        description = {"format": FORMAT} | {name: getattr(self, name) for name in _PLAIN}
        description |= {"frame": None if self.frame is None else asdict(self.frame), "encoder": None}
        if self.encoding:
            description["encoder"] = {"name": self.encoding.encoder, "settings": dict(self.encoding.settings)}
            tensors |= {_ENCODING + name: torch.from_numpy(array) for name, array in self.encoding.arrays.items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        # A single entry, since safetensors orders several arbitrarily and equal models should have equal files.
        checked = {"checksum": checksum(tensors, json.dumps(description)), **description}
        write_tensors(path, tensors, {"model": json.dumps(checked)})


def load_model(path: Path) -> Model:
    """Read a model; nothing in the file is executed."""
    with reading(path, "model"):
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            description = json.loads(file.metadata()["model"])
        check_format(path, "model", description.get("format", 1), FORMAT)
        check_checksum(description.pop("checksum"), tensors, json.dumps(description))
        standardized, encoder = "inputs.mean" in tensors, description["encoder"]
        encoded = [name for name in tensors if name.startswith(_ENCODING)]
        arrays = {name.removeprefix(_ENCODING): tensors.pop(name).numpy() for name in encoded}
        plain = {name: description[name] for name in _PLAIN}
        return Model(
            **plain | {"input_shape": tuple(plain["input_shape"])},
            frame=ResizeCrop(**description["frame"]) if description.get("frame") else None,
            encoding=None if encoder is None else Encoding(encoder["name"], encoder["settings"], arrays),
            standardization=Standardization(tensors["inputs.mean"], tensors["inputs.std"]) if standardized else None,
            state={name: value for name, value in tensors.items() if not name.startswith("inputs.")},
        )
