"""Networks: their base class, building one by name, ensembles and averaged weights."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from unflip.compute import derive, seeded_layers
from unflip.errors import ConfigError
from unflip.nn import networks
from unflip.options import Options
from unflip.stats import odds
from unflip.stats.discriminant import Discriminant

_NETWORKS, _VIEW = "networks.", "view."  # prefixes in the state of an ensemble


class Network(nn.Module):
    """An encoder and a linear head.

    A subclass has ``Options``, is constructed as ``(options, input_shape, num_classes)`` and sets ``encoder`` and
    ``head``. It overrides :meth:`encode` if that is more than calling the encoder. ``head.in_features`` is the number
    of features.
    """

    Options: ClassVar[type[Options]] = Options
    normalization: ClassVar[tuple[float, float] | None] = None
    """Mean and standard deviation, in [0, 255], that images are normalized by; by default those of the data."""
    encoder: nn.Module
    head: nn.Linear

    def encode(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to features (b, d)."""
        features: Tensor = self.encoder(inputs)
        return features

    def load_first_weights(self) -> None:
        """Load pretrained weights, if any; called when a network is built for training."""

    @classmethod
    def side_by_side(cls, networks: Sequence["Network"]) -> "Members":
        """Return a module that trains networks of this class together; a subclass may have a faster one."""
        return Members(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to logits (b, k)."""
        logits: Tensor = self.head(self.encode(inputs))
        return logits


class Members(Network):
    """Networks of one class and shape that are trained together, each on its own inputs."""

    def __init__(self, networks: Sequence[Network]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map the inputs of each member (m, b, ...) to its logits (m, b, k)."""
        return torch.stack([network(part) for network, part in zip(self.networks, inputs, strict=True)])

    def split(self) -> list[Network]:
        """Return the members as separate networks; weights may be shared or copied."""
        return list(self.networks)  # type: ignore[arg-type]

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the gradient norm of each member."""
        for network in self.networks:
            nn.utils.clip_grad_norm_(network.parameters(), max_norm)


def build_network(
    name: str, options: Options, input_shape: Sequence[int], num_classes: int, seed: int, *, fresh: bool = True
) -> Network:
    """Build a registered network; its convolutions run channels-last.

    Args:
        name: of the network, as registered.
        options: of the network's own type.
        input_shape: the shape of one example.
        num_classes: the number of logits.
        seed: of the initial weights.
        fresh: whether to load pretrained weights; not needed if all weights are replaced afterwards.
    """
    with seeded_layers(seed):
        network: Network = networks.load(name)(options, tuple(input_shape), num_classes)
        if fresh:
            network.load_first_weights()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def initial_seed(seed: int, position: int) -> int:
    """Return the seed of the initial weights of a run's network number ``position``."""
    return derive(seed, "network", position)


def unwrap(network: nn.Module) -> Network:
    """Return a network without wrappers for distributed training and mixed precision.

    Calls of it compute in float32 and do not reduce gradients across processes.
    """
    while not isinstance(network, Network):
        network = network.module  # type: ignore[assignment]
    return network


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
        return (odds.pool(views, self.weights) + self.offset).softmax(1)

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
            fields = asdict(self.gaussians)
            state |= {f"{_VIEW}gaussians.{name}": torch.as_tensor(value) for name, value in fields.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved state, in place."""
        for position, network in enumerate(self.networks):
            network.load_state_dict(_below(state, f"{_NETWORKS}{position}."))
        view = _below(state, _VIEW)
        self.weights, self.offset = view.get("weights"), view.get("offset")
        fields = {name: value if value.ndim else value.item() for name, value in _below(view, "gaussians.").items()}
        self.gaussians = Discriminant(**fields) if fields else None  # type: ignore[arg-type]


class EMA(AveragedModel):
    """The exponential moving average of a network's weights and batch-norm statistics.

    After step t a value moves ``1 - min(decay, t / (t + 10))`` of the way to the current one, so that early steps decay
    fast (Polyak and Juditsky 1992; Tarvainen and Valpola 2017). It starts from the initial weights, which count as the
    first of ``n_averaged``.
    """

    module: Any

    def __init__(self, network: nn.Module, decay: float) -> None:
        def average(own: Any, theirs: Any, step: Tensor | int) -> None:
            if own[0].is_floating_point():  # batch norm also counts its batches
                count = int(self.n_averaged)  # on the CPU, unlike `step`: no wait for the device
                torch._foreach_lerp_(own, theirs, 1 - min(decay, count / (count + 10)))

        super().__init__(network, multi_avg_fn=average, use_buffers=True)
        self.n_averaged.fill_(1)
        self.requires_grad_(requires_grad=False).eval()


def count_networks(state: Mapping[str, Tensor]) -> int:
    """Return the number of networks in a saved state."""
    return 1 + max(int(name.split(".")[1]) for name in state if name.startswith(_NETWORKS))


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def image_channels(network: nn.Module, input_shape: Sequence[int]) -> int:
    """Return the number of channels; raise ConfigError if examples are not images (channels, height, width)."""
    if len(input_shape) != 3:
        told = f"{type(network).__name__} takes images (c, h, w), not examples of shape {tuple(input_shape)}"
        raise ConfigError(f"{told}; try --network mlp")
    return input_shape[0]
