"""MLP: fully connected layers, for feature arrays."""

from math import prod

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.networks.base import Network
from unflip.options import Options


class MLPOptions(Options):
    """Options of the MLP."""

    hidden: tuple[PositiveInt, ...] = Field((256,), min_length=1)
    """Units of each hidden layer; the last is the number of features that calibration sees."""
    batch_norm: bool = True
    """Batch normalisation after each hidden layer."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of units dropped after each hidden layer."""


class MLP(Network):
    """``[Linear, BatchNorm, ReLU, Dropout] * len(hidden)``, then the head. Inputs of any shape are flattened."""

    Options = MLPOptions

    def __init__(self, options: MLPOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(input_shape)
        for units in options.hidden:
            layers.append(nn.Linear(width, units, bias=not options.batch_norm))
            if options.batch_norm:
                layers.append(nn.BatchNorm1d(units))
            layers.append(nn.ReLU(inplace=True))
            if options.dropout:
                layers.append(nn.Dropout(options.dropout))
            width = units
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_classes)

    def encode(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to the last hidden layer (b, hidden[-1])."""
        features: Tensor = self.encoder(inputs)
        return features
