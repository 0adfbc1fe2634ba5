"""What predicts: the mean of networks, and the formula with a second view."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import passthrough
from unflip.nn.base import Ensemble, Network, build_network, count_networks
from unflip.nn.mlp import MLPOptions
from unflip.stats.discriminant import Discriminant, fit_discriminant


def mlps(count: int, **options: Any) -> list[Network]:
    return [build_network("mlp", MLPOptions(hidden=(5,), **options), (4,), 3, seed) for seed in range(count)]


def some_inputs(count: int = 30) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


def some_gaussians() -> Discriminant:
    inputs = some_inputs(60)
    return fit_discriminant(inputs.__getitem__, inputs[:, :3].argmax(1), 3, shrink=0.3)


@pytest.mark.parametrize("count", [1, 3])
def test_networks_predict_the_mean_of_their_probabilities(count: int) -> None:
    networks, inputs = mlps(count), some_inputs()
    got = Ensemble(networks).probs(inputs)
    expected = sum(network.eval()(inputs).softmax(1) for network in networks) / count
    torch.testing.assert_close(got, expected)
    assert not got.requires_grad


def test_without_gaussians_weight_and_offsets_sharpen_and_shift() -> None:
    networks, inputs = mlps(2), some_inputs()
    weight, offset = 1.7, torch.tensor([0.5, 0.0, -1.0])
    got = Ensemble(networks, torch.tensor([weight]), offset).probs(inputs)
    for row, p in zip(got, Ensemble(networks).probs(inputs), strict=True):
        scores = [float(p[c]) ** weight * float(offset[c].exp()) for c in range(3)]
        assert row.tolist() == pytest.approx([score / sum(scores) for score in scores], rel=1e-4)


def test_gaussians_are_a_second_view_by_their_weight() -> None:
    networks, inputs, gaussians = mlps(2), some_inputs(), some_gaussians()
    offset = torch.tensor([0.5, 0.0, -1.0])
    got = Ensemble(networks, torch.tensor([0.6, 0.3]), offset, gaussians).probs(inputs)
    p, g = Ensemble(networks).probs(inputs).double(), gaussians.log_posterior(inputs).double().exp()
    scores = p**0.6 * g**0.3 * offset.double().exp()
    torch.testing.assert_close(got.double(), scores / scores.sum(1, keepdim=True), atol=1e-5, rtol=1e-3)


def test_weights_of_one_and_no_offset_change_nothing() -> None:
    networks, inputs = mlps(2), some_inputs()
    plain, same = Ensemble(networks), Ensemble(networks, torch.tensor([1.0]), torch.zeros(3))
    torch.testing.assert_close(same.probs(inputs), plain.probs(inputs))


def test_classes_that_networks_rule_out_stay_finite() -> None:
    sure = Ensemble([passthrough(2)], torch.ones(1), torch.zeros(2))
    probs = sure.probs(torch.tensor([[0.0, 200.0], [0.0, 0.0]]))
    torch.testing.assert_close(probs, torch.tensor([[0.0, 1.0], [0.5, 0.5]]))


@pytest.mark.parametrize("training", [True, False])
def test_networks_are_asked_in_evaluation_mode_and_left_as_they_were(training: bool) -> None:
    networks, inputs = mlps(2, dropout=0.5), some_inputs()
    networks[1].train(training)
    networks[0].train(not training)
    before = [{name: value.clone() for name, value in network.state_dict().items()} for network in networks]
    ensemble = Ensemble(networks)
    assert torch.equal(ensemble.probs(inputs), ensemble.probs(inputs))
    assert [network.training for network in networks] == [not training, training]
    for network, state in zip(networks, before, strict=True):
        for name, value in network.state_dict().items():
            assert torch.equal(value, state[name])


def test_wrappers_are_taken_off() -> None:
    (network,) = mlps(1)
    assert Ensemble([nn.DataParallel(network)]).networks == [network]


@pytest.mark.parametrize("kind", ["networks", "offset", "gaussians"])
def test_the_state_holds_all_of_it(kind: str) -> None:
    weights, offset, gaussians = torch.tensor([0.6, 0.3]), torch.tensor([0.5, 0.0, -1.0]), some_gaussians()
    saved = {
        "networks": Ensemble(mlps(3)),
        "offset": Ensemble(mlps(3), weights[:1], offset),
        "gaussians": Ensemble(mlps(3), weights, offset, gaussians),
    }[kind]
    state = {name: value.clone() for name, value in saved.state_dict().items()}
    assert all(isinstance(value, Tensor) for value in state.values())
    assert count_networks(state) == 3
    fresh = Ensemble(mlps(6)[3:], torch.ones(2), torch.zeros(3), gaussians)
    networks = list(fresh.networks)
    fresh.load_state_dict(state)
    assert all(one is other for one, other in zip(fresh.networks, networks, strict=True))  # in place
    inputs = some_inputs()
    assert torch.equal(fresh.probs(inputs), saved.probs(inputs))
    assert (fresh.gaussians is None) == (saved.gaussians is None)
    again = fresh.state_dict()
    assert list(again) == list(state)
    assert all(torch.equal(again[name], state[name]) for name in state)
    if fresh.gaussians is not None:
        assert fresh.gaussians.shrink == pytest.approx(gaussians.shrink)


def test_moving_to_a_device_keeps_everything() -> None:
    ensemble = Ensemble(mlps(2), torch.tensor([0.6, 0.3]), torch.zeros(3), some_gaussians())
    before = ensemble.probs(some_inputs())
    assert ensemble.to(torch.device("cpu")) is ensemble
    assert torch.equal(ensemble.probs(some_inputs()), before)


def test_more_than_ten_networks_are_counted() -> None:
    assert count_networks(Ensemble(mlps(12)).state_dict()) == 12
