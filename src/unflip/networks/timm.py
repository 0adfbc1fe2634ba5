"""Networks of the package timm, as ``timm:NAME``: ImageNet-size architectures, optionally with pretrained weights."""

import importlib
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from unflip.errors import ConfigError, InputError, MissingExtraError, unknown
from unflip.networks.backbone import Backbone, fill, read_weights
from unflip.networks.layers import image_channels
from unflip.networks.pretrained import Pretrained, PretrainedOptions


class TimmOptions(PretrainedOptions):
    """Options of every timm network; their section is `timm`. Weights are fetched when first used."""


class TimmNetwork(Pretrained):
    """A timm network without its classifier, and a head of our own."""

    Options = TimmOptions
    architecture: ClassVar[str]

    def __init__(self, options: TimmOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(options)
        self._channels = image_channels(self, input_shape)
        self.encoder = self._create(pretrained=False)
        self.head = nn.Linear(int(self.encoder.head_hidden_size), num_classes)  # type: ignore[arg-type]

    def _create(self, *, pretrained: bool) -> nn.Module:
        encoder: nn.Module = import_timm().create_model(
            self.architecture, pretrained=pretrained, num_classes=0, in_chans=self._channels
        )
        return encoder

    def load_first_weights(self) -> None:
        """Fetch timm's weights, if wanted."""
        if not self.options.pretrained:
            return
        try:
            self.fetch_weights()
        except InputError as error:
            raise InputError(f"{error}; --from-scratch starts without them") from error

    def fetch_weights(self) -> None:
        """Fetch timm's weights of the encoder."""
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt; we report the last
        try:
            self.encoder = self._create(pretrained=True)
        except (OSError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"no weights for timm:{self.architecture}: {reason}") from error
        except pickle.UnpicklingError as error:  # its message advises to run what is in the file
            raise InputError(f"no weights for timm:{self.architecture}: more than tensors in the file") from error

    def encode(self, inputs: Tensor) -> Tensor:
        """Map images (b, c, h, w) to pooled features (b, d)."""
        features: Tensor = self.encoder(inputs)
        return features


def named(name: str) -> type[TimmNetwork]:
    """Return the network class for timm's architecture ``name``."""
    timm = import_timm()
    known = timm.list_models() if "." not in name else timm.list_pretrained()  # ARCHITECTURE, or ARCHITECTURE.WEIGHTS
    if name not in known:
        raise ConfigError(unknown("network", f"timm:{name}", [f"timm:{other}" for other in known]))
    return type(TimmNetwork.__name__, (TimmNetwork,), {"architecture": name})


def backbone(name: str) -> Callable[[Path | None], Backbone]:
    """Return a function that loads timm's architecture ``name`` as a backbone, with weights from a file or the hub."""
    kind = named(name)

    def load(weights: Path | None) -> Backbone:
        network = kind(TimmOptions(pretrained=weights is None), (3, 224, 224), 1)
        if weights is None:
            try:
                network.fetch_weights()
            except InputError as error:
                raise InputError(f"{error}; give a file with --weights") from error
        facts: dict[str, Any] = network.encoder.pretrained_cfg  # type: ignore[assignment]
        if weights is not None:
            classifier = facts.get("classifier") or ()
            besides = (classifier,) if isinstance(classifier, str) else tuple(classifier)
            fill(network.encoder, read_weights(weights), str(weights), besides=besides)
        mean, std = (tuple(255.0 * value for value in facts[key]) for key in ("mean", "std"))
        return Backbone(
            network.encode, network, mean, std, facts["input_size"][-1], bool(facts.get("fixed_input_size"))
        )

    return load


def import_timm() -> Any:
    """Import timm, even if torchvision's operators do not fit this torch."""
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name not in ("timm", "torchvision"):
            raise
        raise MissingExtraError(str(error.name), "timm") from error
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    from unflip.networks.torchvision_fix import declare_operators

    declare_operators()
    return importlib.import_module("timm")
