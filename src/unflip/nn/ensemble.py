"""Ensemble: the networks of a run that predict together, optionally with class Gaussians of the inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor, nn

from unflip.nn.base import unwrap
from unflip.stats.discriminant import Discriminant
from unflip.stats.stacking import pool

_NETWORKS, _VIEW = "networks.", "view."
_NUMBERS = ("shrink", "used")  # scalars of the Gaussians


class Ensemble:
    """The model of a run: the mean class probabilities p of its networks.

    A method may add class Gaussians g of the inputs, with ``weights`` w (2,) and an ``offset`` b (k,). The prediction
    is then ``softmax(w_0 log p + w_1 log g + b)``, or ``softmax(w_0 log p + b)`` without Gaussians.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        weights: Tensor | None = None,
        offset: Tensor | None = None,
        gaussians: Discriminant | None = None,
    ) -> None:
        self.networks = [unwrap(network) for network in networks]
        self.weights, self.offset, self.gaussians = weights, offset, gaussians

    @torch.no_grad()
    def probs(self, inputs: Tensor) -> Tensor:
        """Return the class probabilities (b, k) of inputs (b, ...), in evaluation mode."""
        probs = []
        for network in self.networks:
            was_training = network.training
            network.eval()
            probs.append(network(inputs).float().softmax(1))
            network.train(was_training)
        mean = torch.stack(probs).mean(0) if len(probs) > 1 else probs[0]
        if self.weights is None or self.offset is None:
            return mean
        views = [mean.log(), *([self.gaussians.log_posterior(inputs)] if self.gaussians else [])]
        return (pool(views, self.weights) + self.offset).softmax(1)

    def to(self, device: torch.device) -> "Ensemble":
        """Move everything to ``device``."""
        state = {name: value.to(device) for name, value in self.state_dict().items()}
        for network in self.networks:
            network.to(device)
        self.load_state_dict(state)
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        state = {
            f"{_NETWORKS}{position}.{name}": value
            for position, network in enumerate(self.networks)
            for name, value in network.state_dict().items()
        }
        if self.weights is not None and self.offset is not None:
            state |= {f"{_VIEW}weights": self.weights, f"{_VIEW}offset": self.offset}
        if self.gaussians is not None:
            numbers = {name: torch.tensor(getattr(self.gaussians, name)) for name in _NUMBERS}
            fields = asdict(self.gaussians) | numbers
            state |= {f"{_VIEW}gaussians.{name}": value for name, value in fields.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved state, in place."""
        for position, network in enumerate(self.networks):
            network.load_state_dict(_below(state, f"{_NETWORKS}{position}."))
        view = _below(state, _VIEW)
        self.weights, self.offset = view.get("weights"), view.get("offset")
        fields = _below(view, "gaussians.")
        numbers = {name: fields[name].item() for name in _NUMBERS} if fields else {}
        self.gaussians = Discriminant(**(fields | numbers)) if fields else None  # type: ignore[arg-type]


def count_networks(state: Mapping[str, Tensor]) -> int:
    """Return the number of networks in a saved state."""
    return 1 + max(int(name.split(".")[1]) for name in state if name.startswith(_NETWORKS))


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
