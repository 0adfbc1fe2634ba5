"""The network contract, and the MLP that keeps it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from unflip.nn import networks
from unflip.nn.base import Network, build_network, initial_seed
from unflip.nn.mlp import MLP, MLPOptions

OPTIONS = st.builds(
    MLPOptions,
    hidden=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    batch_norm=st.booleans(),
    dropout=st.sampled_from([0.0, 0.5]),
)


@settings(max_examples=30)
@given(OPTIONS, st.sampled_from([(5,), (2, 3), (1, 4, 4)]), st.integers(2, 6))
def test_any_mlp_encodes_to_its_last_layer_and_classifies_with_its_head(
    options: MLPOptions, shape: tuple[int, ...], num_classes: int
) -> None:
    network = MLP(options, shape, num_classes).eval()
    inputs = torch.randn(7, *shape)
    features = network.encode(inputs)
    assert features.shape == (7, options.hidden[-1])
    assert network.head.in_features == options.hidden[-1]
    assert (features >= 0).all()
    logits = network(inputs)
    assert logits.shape == (7, num_classes)
    torch.testing.assert_close(logits, network.head(features))


@settings(max_examples=30)
@given(OPTIONS)
def test_every_layer_is_there_as_often_as_asked(options: MLPOptions) -> None:
    layers = list(MLP(options, (4,), 3).encoder)

    def count(kind: type[nn.Module]) -> int:
        return sum(isinstance(layer, kind) for layer in layers)

    depth = len(options.hidden)
    assert count(nn.Linear) == depth
    assert count(nn.ReLU) == depth
    assert count(nn.BatchNorm1d) == depth * options.batch_norm
    assert count(nn.Dropout) == depth * (options.dropout > 0)
    assert [layer.out_features for layer in layers if isinstance(layer, nn.Linear)] == list(options.hidden)


def test_an_mlp_without_extras_is_two_matrix_products() -> None:
    network = MLP(MLPOptions(hidden=(3,), batch_norm=False), (4,), 2)
    inputs = torch.randn(5, 4)
    hidden, head = network.encoder[1], network.head
    assert isinstance(hidden, nn.Linear)
    by_hand = (inputs @ hidden.weight.T + hidden.bias).clamp(min=0) @ head.weight.T + head.bias
    torch.testing.assert_close(network(inputs), by_hand)


def test_without_batch_norm_the_first_weights_keep_the_size_of_what_passes() -> None:
    """He's: hidden weights have the variance 2 / inputs; the head starts with small logits."""
    network = build_network("mlp", MLPOptions(hidden=(600, 500), batch_norm=False), (400,), 50, 0).requires_grad_(False)
    assert isinstance(network, MLP)
    first, second = (layer for layer in network.encoder if isinstance(layer, nn.Linear))
    for layer, std in ((first, (2 / 400) ** 0.5), (second, (2 / 600) ** 0.5), (network.head, 0.1 / 500**0.5)):
        assert float(layer.weight.std()) == pytest.approx(std, rel=0.02)
        assert float(layer.weight.mean()) == pytest.approx(0, abs=0.02 * std)
        assert not bool(layer.bias.any())
    inputs = torch.randn(500, 400, generator=torch.Generator().manual_seed(0))
    features = network.encode(inputs)
    assert float(features.square().mean()) == pytest.approx(1, rel=0.15)  # as the inputs'
    assert float(network.head(features).std()) == pytest.approx(0.1, rel=0.15)


def test_with_batch_norm_the_first_weights_are_those_of_torch() -> None:
    network = build_network("mlp", MLPOptions(hidden=(600,)), (400,), 50, 0).requires_grad_(False)
    assert isinstance(network, MLP)
    hidden = network.encoder[1]
    assert isinstance(hidden, nn.Linear)
    assert [name for name, _ in hidden.named_parameters()] == ["weight"]
    for layer in (hidden, network.head):
        assert float(layer.weight.abs().max()) <= layer.in_features**-0.5
        assert float(layer.weight.std()) == pytest.approx((3 * layer.in_features) ** -0.5, rel=0.02)


def test_inputs_are_not_changed_by_the_inplace_layers() -> None:
    network = MLP(MLPOptions(hidden=(3,)), (4,), 2)
    inputs = torch.randn(5, 4)
    kept = inputs.clone()
    network(inputs)
    assert torch.equal(inputs, kept)


@pytest.mark.parametrize(
    "options", [{"hidden": []}, {"hidden": [0]}, {"dropout": 1.0}, {"dropout": -0.1}, {"width": 3}, {"hidden": [1.5]}]
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MLPOptions.model_validate(options)


def test_first_weights_depend_on_the_seed_alone() -> None:
    def weights(seed: int) -> torch.Tensor:
        network = build_network("mlp", MLPOptions(), (4,), 3, seed)
        return nn.utils.parameters_to_vector(network.parameters())

    before = torch.random.get_rng_state()
    first = weights(initial_seed(0, 0))
    assert torch.equal(torch.random.get_rng_state(), before)  # nobody else's randomness is touched
    torch.rand(3)
    assert torch.equal(weights(initial_seed(0, 0)), first)
    assert not torch.equal(weights(initial_seed(0, 1)), first)
    assert not torch.equal(weights(initial_seed(1, 0)), first)


def test_it_is_built_by_its_name() -> None:
    assert networks.load("mlp") is MLP
    assert issubclass(MLP, Network)
    assert isinstance(build_network("mlp", MLPOptions(), (4,), 3, 0), MLP)
