"""Any module whose last linear layer is its classifier, as a Network."""

from torch import Tensor, nn

from unflip.errors import ConfigError
from unflip.networks.base import Network


def wrap_module(module: nn.Module) -> Network:
    """Return ``module``, in place, as a network: its last ``nn.Linear`` becomes the head, the rest the encoder.

    Last is the one registered last. Whether its output is the module's output shows when the network is first used.

    >>> wrap_module(nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))).head
    Linear(in_features=8, out_features=3, bias=True)
    """
    linear = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ConfigError(f"{type(module).__name__} has no nn.Linear to serve as its classifier")
    name, head = linear[-1]
    tap = _Tap()
    if not name:
        return _External(tap, tap, head, name)
    parent, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(parent), attribute, tap)
    return _External(module, tap, head, name)


class _Tap(nn.Module):
    """Stands where the classifier stood: gives its input back and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        self.seen = features
        return features


class _External(Network):
    """A module whose classifier has been taken out."""

    def __init__(self, encoder: nn.Module, tap: _Tap, head: nn.Linear, name: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._taps = (tap,)  # in a tuple, so that it is not registered twice
        self._name = name

    def encode(self, inputs: Tensor) -> Tensor:
        """Return what the classifier was fed with (b, d)."""
        (tap,) = self._taps
        features: Tensor = self.encoder(inputs)
        seen, tap.seen = tap.seen, None
        if features is not seen or features.ndim != 2:
            raise ConfigError(
                f"{type(self.encoder).__name__}: its last nn.Linear, '{self._name}', is not its last step on features "
                "(examples, columns); leave out what comes after it, such as a softmax"
            )
        return features
