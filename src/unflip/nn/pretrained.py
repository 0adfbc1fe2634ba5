"""Pretrained: networks that come with weights and are fine-tuned, first the head alone, then all at a lower rate."""

from typing import Any, ClassVar

from pydantic import Field, NonNegativeInt
from torch import nn

from unflip.errors import ConfigError
from unflip.nn.base import Network
from unflip.options import Options


class PretrainedOptions(Options):
    """How a network that comes with weights is fine-tuned; the head always starts from scratch."""

    pretrained: bool = True
    """Start from the weights that were published with the network; `--from-scratch` starts from random ones."""
    head_epochs: NonNegativeInt | None = None
    """First epochs, in which the head alone learns; by default a tenth of all, one at least if there are two."""
    lr_share: float = Field(0.1, gt=0.0, le=1.0)
    """Learning rate of the pretrained layers, as a share of the head's."""

    def check_length(self, section: str, epochs: int) -> None:
        """Refuse head epochs after which nothing is left for the encoder, in a run of ``epochs``."""
        if self.pretrained and self.head_epochs is not None and self.head_epochs >= epochs:
            raise ConfigError(
                f"{section}.head_epochs = {self.head_epochs}: must be below epochs = {epochs}, or only the head ever "
                "learns; leave it out for a tenth of the epochs"
            )


class Pretrained(Network):
    """A network with an ``encoder`` that may come with weights.

    A head that has learnt nothing yet sends gradients that mean nothing, and at a full rate they would undo what the
    encoder knows. So the encoder waits for the head, and then learns more slowly (Kumar et al. 2022, "Fine-Tuning can
    Distort Pretrained Features").
    """

    Options: ClassVar[type[PretrainedOptions]] = PretrainedOptions
    encoder: nn.Module

    def __init__(self, options: PretrainedOptions) -> None:
        super().__init__()
        self.options = options

    def is_frozen(self, epoch: int, epochs: int) -> bool:
        """Whether the encoder stays as it is in ``epoch`` (counted from 1) of a run of ``epochs``."""
        if not self.options.pretrained:
            return False
        waits = self.options.head_epochs
        return epoch <= (usual_head_epochs(epochs) if waits is None else waits)


def usual_head_epochs(epochs: int) -> int:
    """Return in how many of a run's epochs the head learns alone, where nobody chose."""
    return min(epochs - 1, max(1, epochs // 10))


def pretrained_parts(network: nn.Module) -> list[Pretrained]:
    """Return what is pretrained in a network: itself, its members, or nothing."""
    return [part for part in network.modules() if isinstance(part, Pretrained) and part.options.pretrained]


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Return a network's parameters for an optimiser, one group for each ``share`` of the learning rate.

    That is one group with a share of 1, unless parts of the network are pretrained.
    """
    shares = {
        id(weight): part.options.lr_share for part in pretrained_parts(network) for weight in part.encoder.parameters()
    }
    groups: dict[float, list[nn.Parameter]] = {}
    for weight in network.parameters():
        groups.setdefault(shares.get(id(weight), 1.0), []).append(weight)
    return [{"params": weights, "share": share} for share, weights in groups.items()]
