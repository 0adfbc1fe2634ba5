"""Networks side by side: they compute and learn what each would alone."""

import copy
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from unflip.nn.base import Members, Network, build_network
from unflip.nn.mlp import MLP, MLPOptions, StackedMLP

OPTIONS = st.builds(
    MLPOptions,
    hidden=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    batch_norm=st.booleans(),
)
SHAPES = st.sampled_from([(5,), (2, 3), (1, 2, 2)])


class Shifted(Network):
    """A network that knows no faster way: its features are its inputs and a constant."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift
        self.head = nn.Linear(3, 2)

    def encode(self, inputs: Tensor) -> Tensor:
        return inputs + self.shift


def make(options: MLPOptions, shape: Sequence[int] = (4,), count: int = 3, classes: int = 3) -> list[Network]:
    return [build_network("mlp", options, shape, classes, seed) for seed in range(count)]


def assert_same_state(one: nn.Module, other: nn.Module, atol: float = 0.0) -> None:
    assert list(one.state_dict()) == list(other.state_dict())
    for value, same in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, same, rtol=0, atol=atol)


def train(module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """A step per row of ``inputs`` (steps, ...); losses of members are added up, as the trainer does."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    for step, target in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = -(target * module(step).log_softmax(-1)).sum() / target.shape[-2]
        loss.backward()
        optimizer.step()


@settings(max_examples=20)
@given(OPTIONS, SHAPES, st.integers(1, 4), st.booleans())
def test_each_mlp_computes_what_it_would_alone(
    options: MLPOptions, shape: tuple[int, ...], count: int, training: bool
) -> None:
    networks = make(options, shape, count)
    together = MLP.side_by_side(networks).train(training)
    inputs = torch.randn(count, 7, *shape, generator=torch.Generator().manual_seed(0))
    got = together(inputs)
    assert isinstance(together, StackedMLP)
    assert got.shape == (count, 7, 3)
    for network, own, logits in zip(networks, inputs, got, strict=True):
        torch.testing.assert_close(logits, network.train(training)(own), atol=1e-5, rtol=1e-4)


@settings(max_examples=20)
@given(OPTIONS, SHAPES, st.integers(1, 3))
def test_mlps_learn_together_what_they_learn_apart(options: MLPOptions, shape: tuple[int, ...], count: int) -> None:
    """Also the statistics of batch normalization; each sees its own inputs."""
    networks = make(options, shape, count)
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, count, 8, *shape, generator=random)
    targets = torch.randn(4, count, 8, 3, generator=random).softmax(-1)
    together = MLP.side_by_side(networks).train()
    train(together, inputs, targets)
    for position, (alone, network) in enumerate(zip(networks, together.split(), strict=True)):
        before = copy.deepcopy(alone)
        train(alone.train(), inputs[:, position], targets[:, position])
        assert_same_state(network, alone, atol=1e-3)
        assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), alone.parameters(), strict=True))


@settings(max_examples=20)
@given(OPTIONS, SHAPES, st.sampled_from([0.0, 0.5]))
def test_splitting_gives_back_what_was_put_together(
    options: MLPOptions, shape: tuple[int, ...], dropout: float
) -> None:
    networks = make(options.model_copy(update={"dropout": dropout}), shape)
    together = MLP.side_by_side(networks)
    for network, alone in zip(together.split(), networks, strict=True):
        assert_same_state(network, alone)
        assert [type(layer) for layer in network.modules()] == [type(layer) for layer in alone.modules()]
        assert all(parameter.requires_grad for parameter in network.parameters())


@settings(max_examples=20)
@given(OPTIONS, SHAPES, st.integers(1, 4), st.floats(0.01, 10.0))
def test_each_mlps_gradient_is_shortened_as_if_it_were_alone(
    options: MLPOptions, shape: tuple[int, ...], count: int, most: float
) -> None:
    networks = make(options, shape, count)
    together = MLP.side_by_side(networks).train()
    inputs = torch.randn(count, 8, *shape, generator=torch.Generator().manual_seed(0))
    together(inputs).square().sum().backward()
    together.clip_grad_norm(most)
    theirs = Members([network.train() for network in networks])
    theirs(inputs).square().sum().backward()
    theirs.clip_grad_norm(most)
    for place, network in enumerate(networks):
        own = [weight.grad for weight in network.parameters() if weight.grad is not None]
        assert torch.cat([gradient.flatten() for gradient in own]).norm() <= most * 1.001
        shared = [weight.grad.view(count, -1)[place] for weight in together.parameters() if weight.grad is not None]
        norms = [torch.cat([gradient.flatten() for gradient in some]).norm() for some in (own, shared)]
        torch.testing.assert_close(*norms, rtol=1e-3, atol=1e-4)


def test_short_gradients_stay_as_they_are_to_the_bit() -> None:
    together = MLP.side_by_side(make(MLPOptions(hidden=(4,))))
    together(torch.randn(3, 5, 4)).sum().backward()
    before = [weight.grad.clone() for weight in together.parameters() if weight.grad is not None]
    together.clip_grad_norm(1e6)
    after = [weight.grad for weight in together.parameters() if weight.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_parts_of_stacked_mlps_are_copies() -> None:
    networks = make(MLPOptions(hidden=(4,)))
    together = MLP.side_by_side(networks)
    before = copy.deepcopy(together.state_dict())
    for module in [*networks, *together.split()]:
        for value in module.state_dict().values():
            value.zero_()
    for name, value in together.state_dict().items():
        assert torch.equal(value, before[name])


def test_dropout_is_drawn_for_each_member_and_only_in_training() -> None:
    (network,) = make(MLPOptions(hidden=(400,), batch_norm=False, dropout=0.5), count=1)
    together = MLP.side_by_side([network, network])
    inputs = torch.randn(5, 4).expand(2, 5, 4)
    torch.manual_seed(0)
    first, second = together.train()(inputs)
    assert not torch.allclose(first, second)
    first, second = together.eval()(inputs)
    torch.testing.assert_close(first, second)


def test_stacked_mlps_go_through_their_state() -> None:
    options = MLPOptions(hidden=(4, 3))
    one, other = MLP.side_by_side(make(options)), MLP.side_by_side(make(options)[::-1])
    inputs = torch.randn(3, 6, 4)
    assert not torch.equal(one(inputs), other(inputs))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.eval()(inputs), other.eval()(inputs))
    for network, same in zip(one.split(), other.split(), strict=True):
        assert_same_state(network, same)


@pytest.mark.parametrize("training", [True, False])
def test_any_networks_can_stand_side_by_side(training: bool) -> None:
    networks = [Shifted(shift) for shift in (0.0, 5.0, -1.0)]
    together = Shifted.side_by_side(networks).train(training)
    assert type(together) is Members
    inputs = torch.randn(3, 4, 3)
    for network, own, logits in zip(networks, inputs, together(inputs), strict=True):
        assert torch.equal(logits, network(own))
    assert together.split() == networks
    assert sum(parameter.numel() for parameter in together.parameters()) == 3 * 8
    with pytest.raises(ValueError, match="argument"):
        together(inputs[:2])
