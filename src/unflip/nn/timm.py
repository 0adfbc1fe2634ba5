"""Networks of the package timm, as ``timm:NAME``, optionally with pretrained weights."""

import logging
import pickle
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from unflip.compute import import_extra, repair_torchvision
from unflip.errors import ConfigError, InputError, described
from unflip.nn.backbone import Backbone, Pretrained, PretrainedOptions, fill, read_weights
from unflip.nn.base import image_channels


class TimmOptions(PretrainedOptions):
    """Options of all timm networks, in the section `timm`. Weights are downloaded when first used."""


class TimmNetwork(Pretrained):
    """A timm network without its classifier, and a head of our own."""

    Options = TimmOptions
    architecture: ClassVar[str]

    def __init__(self, options: TimmOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(options)
        self._channels = image_channels(self, input_shape)
        self.encoder = _create(self.architecture, self._channels, pretrained=False)
        self.head = nn.Linear(self._count_features(input_shape), num_classes)

    def _count_features(self, input_shape: tuple[int, ...]) -> int:
        """Return the number of features by a forward pass, since timm's metadata is not always right."""
        height, width = input_shape[1:]
        name = f"timm:{self.architecture}: images of {width}x{height} pixels"
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                features = self.encoder.eval()(torch.zeros(1, *input_shape))
        except (AssertionError, AttributeError, RuntimeError) as error:
            side = self.encoder.pretrained_cfg["input_size"][-1]  # type: ignore[index]
            hint = f"try --set data.image_size={side}, or another network"
            raise ConfigError(f"{name} do not fit ({described(error)}); {hint}") from error
        self.encoder.train()
        if features.ndim != 2 or not features.numel():
            raise ConfigError(f"{name} become {tuple(features.shape[1:])}, not a feature vector; try another network")
        return int(features.shape[1])

    def load_first_weights(self) -> None:
        """Download timm's weights."""
        if self.options.pretrained:
            self.encoder = _fetch(self.architecture, self._channels, "to start without them: --from-scratch")


def named(name: str) -> type[TimmNetwork]:
    """Return the network class for timm's architecture ``name``."""
    timm = import_timm()
    known = timm.list_models() if "." not in name else timm.list_pretrained()  # ARCHITECTURE, or ARCHITECTURE.WEIGHTS
    if name not in known:
        close = get_close_matches(name, known, 1, 0.7)
        hint = f"did you mean 'timm:{close[0]}'?" if close else "write timm:NAME with a name of timm.list_models()"
        raise ConfigError(f"unknown network 'timm:{name}', {hint}")
    return type(TimmNetwork.__name__, (TimmNetwork,), {"architecture": name})


def backbone(name: str) -> Callable[[Path | None], Backbone]:
    """Return a function that loads a timm network as a backbone, with weights from a file or the hub."""
    named(name)

    def load(weights: Path | None) -> Backbone:
        encoder = _create(name, 3, pretrained=False) if weights else _fetch(name, 3, "give a file with --weights")
        config: dict[str, Any] = encoder.pretrained_cfg  # type: ignore[assignment]
        if weights is not None:
            classifier = config.get("classifier") or ()
            besides = (classifier,) if isinstance(classifier, str) else tuple(classifier)
            fill(encoder, read_weights(weights), str(weights), besides=besides)
        mean, std = (tuple(255.0 * value for value in config[key]) for key in ("mean", "std"))
        return Backbone(encoder, mean, std, config["input_size"][-1], bool(config.get("fixed_input_size")))

    return load


def _create(architecture: str, channels: int, *, pretrained: bool) -> nn.Module:
    options = {"pretrained": pretrained, "num_classes": 0, "in_chans": channels}
    encoder: nn.Module = import_timm().create_model(architecture, **options)
    return encoder


def _fetch(architecture: str, channels: int, advice: str) -> nn.Module:
    """Return an encoder with timm's weights, or raise InputError, which ends with ``advice``."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt
    try:
        return _create(architecture, channels, pretrained=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0].rstrip(" .") if str(error) else type(error).__name__
        raise InputError(f"no weights for timm:{architecture}: {reason}; {advice}") from error


def import_timm() -> Any:
    """Import timm, even beside a torchvision that was built for another torch."""
    repair_torchvision()
    return import_extra("timm", "timm")
