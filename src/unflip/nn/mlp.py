"""MLP: fully connected layers, for feature arrays."""

import copy
from collections.abc import Sequence
from math import prod

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.nn.base import Members, Network
from unflip.options import Options

_HEAD_STD = 0.1  # of the initial logits, for features of size 1


class MLPOptions(Options):
    """Options of the MLP."""

    hidden: tuple[PositiveInt, ...] = Field((256,), min_length=1)
    """Number of units in each hidden layer; the last one is the number of features that calibration uses."""
    batch_norm: bool = True
    """Batch normalization after each hidden layer."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of units dropped after each hidden layer."""


class MLP(Network):
    """``[Linear, BatchNorm, ReLU, Dropout] * len(hidden)``, then the head. Inputs of any shape are flattened.

    Without batch normalization, hidden layers are initialized as in He et al. (2015), and the head with small weights,
    so that all classes are about equally likely at first.
    """

    Options = MLPOptions
    encoder: nn.Sequential

    def __init__(self, options: MLPOptions, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(input_shape)
        for units in options.hidden:
            norm = [nn.BatchNorm1d(units)] if options.batch_norm else []
            dropout = [nn.Dropout(options.dropout)] if options.dropout else []
            layers += [nn.Linear(width, units, bias=not options.batch_norm), *norm, nn.ReLU(inplace=True), *dropout]
            width = units
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_classes)
        if not options.batch_norm:
            for layer in layers:
                if isinstance(layer, nn.Linear):
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                    nn.init.zeros_(layer.bias)
            nn.init.normal_(self.head.weight, std=_HEAD_STD / width**0.5)
            nn.init.zeros_(self.head.bias)

    @classmethod
    def side_by_side(cls, networks: Sequence[Network]) -> Members:
        """Return a module that computes each layer of all MLPs at once."""
        return StackedMLP([network for network in networks if isinstance(network, MLP)])


class StackedMLP(Members):
    """MLPs of one shape with stacked layers; several cost little more than one large network.

    Weights are copied by the constructor, and by each :meth:`split` into the same MLPs. Each member is trained as it
    would be alone, up to the order of additions.
    """

    encoder: nn.Sequential

    def __init__(self, networks: Sequence[MLP]) -> None:
        super().__init__(())
        self._networks = copy.deepcopy(list(networks))  # a list, so that they are not submodules
        layers = zip(*(network.encoder[1:] for network in networks), strict=True)  # the first one flattens
        self.encoder = nn.Sequential(*map(_stacked, layers))
        self.head = _StackedLinear([network.head for network in networks])  # type: ignore[assignment]

    def forward(self, inputs: Tensor) -> Tensor:
        """Map the inputs of each MLP (m, b, ...) to its logits (m, b, k)."""
        logits: Tensor = self.head(self.encoder(inputs.flatten(2)))
        return logits

    def split(self) -> list[Network]:
        """Return the MLPs with the present weights; the next call overwrites them."""
        for position, network in enumerate(self._networks):
            network.to(self.head.weight.device)
            for layer, stacked in zip([*network.encoder, network.head][1:], [*self.encoder, self.head], strict=True):
                if isinstance(stacked, _StackedLinear | _StackedNorm):
                    layer.load_state_dict(stacked.state_of(position))
        return list(self._networks)

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the gradient norm of each MLP, without synchronizing the device."""
        count = len(self.head.weight)
        gradients = [weight.grad.view(count, -1) for weight in self.parameters() if weight.grad is not None]
        norms = torch.stack([gradient.square().sum(1) for gradient in gradients]).sum(0).sqrt()
        factors = (max_norm / norms.clamp(min=max_norm))[:, None]
        for gradient in gradients:
            gradient.mul_(factors)


class _StackedLinear(nn.Module):
    """Linear layers of one shape, one per member: weights (m, in, out), inputs (m, b, in)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = None
        if layers[0].bias is not None:
            self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight if self.bias is None else torch.baddbmm(self.bias, inputs, self.weight)

    def state_of(self, member: int) -> dict[str, Tensor]:
        """Return the state of one of the layers."""
        bias = {} if self.bias is None else {"bias": self.bias[member, 0]}
        return {"weight": self.weight[member].T, **bias}


class _StackedNorm(nn.BatchNorm1d):
    """Batch normalization of the features of all members, each by itself."""

    def __init__(self, layers: Sequence[nn.BatchNorm1d]) -> None:
        super().__init__(len(layers) * layers[0].num_features)
        self._count = len(layers)
        states = [layer.state_dict() for layer in layers]
        for name, value in states[0].items():
            if value.ndim:
                states[0][name] = torch.cat([state[name] for state in states])
        self.load_state_dict(states[0])

    def forward(self, inputs: Tensor) -> Tensor:
        members, size, width = inputs.shape
        rows = inputs.transpose(0, 1).reshape(size, members * width)
        return super().forward(rows).view(size, members, width).transpose(0, 1)

    def state_of(self, member: int) -> dict[str, Tensor]:
        """Return the state of one of the layers."""
        state = self.state_dict().items()
        return {name: value.chunk(self._count)[member] if value.ndim else value for name, value in state}


def _stacked(layers: Sequence[nn.Module]) -> nn.Module:
    stacked = {nn.Linear: _StackedLinear, nn.BatchNorm1d: _StackedNorm}.get(type(layers[0]))
    return stacked(layers) if stacked else copy.deepcopy(layers[0])
