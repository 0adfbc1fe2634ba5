"""Any module as a network: its last linear layer becomes the head, and nothing else changes."""

import copy

import pytest
import torch
from torch import Tensor, nn

from unflip.errors import ConfigError
from unflip.methods.base import bare
from unflip.networks.base import Network
from unflip.networks.external import wrap_module


class Branching(nn.Module):
    """Linear layers deep inside, the classifier under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"a": nn.Linear(4, 5), "b": nn.Linear(4, 5)})
        self.heads = nn.Sequential(nn.Dropout(0.0), nn.Linear(5, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.heads(self.body["a"](inputs).relu() + self.body["b"](inputs).tanh())
        return output


MODULES = {
    "sequential": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
    "nested": Branching,
    "linear alone": lambda: nn.Linear(4, 3),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 5, 2), nn.Flatten(), nn.Linear(5, 3)
    ),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_a_wrapped_module_says_what_it_said_before(make: type[nn.Module]) -> None:
    module = make()
    inputs = torch.randn(7, 4)
    before = module(inputs)
    network = wrap_module(module)
    assert isinstance(network, Network)
    assert bare(network) is network
    assert network.encode(inputs).shape == (7, network.head.in_features)
    torch.testing.assert_close(network(inputs), before)


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_every_weight_is_there_once_and_learns(make: type[nn.Module]) -> None:
    module = make()
    count = sum(weight.numel() for weight in module.parameters())
    network = wrap_module(module)
    assert sum(weight.numel() for weight in network.parameters()) == count
    assert len(network.state_dict()) == len(list(network.parameters()))
    network(torch.randn(3, 4)).sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_a_copy_is_a_network_of_its_own() -> None:
    network = wrap_module(MODULES["sequential"]())
    other = copy.deepcopy(network)
    inputs = torch.randn(2, 4)
    torch.testing.assert_close(other(inputs), network(inputs))
    nn.init.zeros_(other.encoder[0].weight)
    assert not torch.equal(other(inputs), network(inputs))


def test_no_activation_is_held_between_batches() -> None:
    network = wrap_module(MODULES["sequential"]())
    network(torch.randn(2, 4))
    assert [part.seen for part in network.modules() if hasattr(part, "seen")] == [None]


def test_without_a_linear_layer_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Flatten has no nn\.Linear to serve as its classifier"):
        wrap_module(nn.Flatten())


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)),
        nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3)),
    ],
    ids=["something follows", "no rows"],
)
def test_a_last_linear_layer_that_is_no_classifier_is_noticed(module: nn.Module) -> None:
    network = wrap_module(module)
    with pytest.raises(ConfigError, match=r"Sequential: its last nn\.Linear, '\d', is not its last step"):
        network(torch.randn(2, 4))
