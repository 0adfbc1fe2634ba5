"""The running mean of weights against a loop in double precision."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.nn.base import EMA, Members, build_network
from unflip.nn.mlp import MLP, MLPOptions


def some_members(batch_norm: bool = True) -> Members:
    options = MLPOptions(hidden=(3,), batch_norm=batch_norm)
    return MLP.side_by_side([build_network("mlp", options, (4,), 2, seed) for seed in range(2)])


def values(members: Members) -> dict[str, Tensor]:
    return {name: value.double().clone() for name, value in members.state_dict().items() if value.is_floating_point()}


def move(members: Members, random: torch.Generator) -> None:
    with torch.no_grad():
        for value in members.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape, generator=random))


@given(st.sampled_from([0.0, 0.5, 0.9, 0.99]), st.integers(1, 40), st.integers(0, 100))
def test_it_is_the_mean_of_a_loop(decay: float, steps: int, seed: int) -> None:
    members, random = some_members(), torch.Generator().manual_seed(seed)
    averaged, expected = EMA(members, decay), values(members)
    for t in range(1, steps + 1):
        move(members, random)
        averaged.update_parameters(members)
        kept = min(decay, t / (t + 10))
        for name, value in values(members).items():
            expected[name] = kept * expected[name] + (1 - kept) * value
    assert any("running_var" in name for name in expected)  # batch-norm statistics too
    for name, value in values(averaged.module).items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-6)
    assert int(averaged.n_averaged) == 1 + steps


def test_it_does_not_follow_by_itself_and_changes_nobody() -> None:
    members, random = some_members(), torch.Generator().manual_seed(0)
    averaged = EMA(members, 0.9)
    first = values(averaged.module)
    move(members, random)
    theirs = values(members)
    for name, value in values(averaged.module).items():
        assert torch.equal(value, first[name])
    averaged.update_parameters(members)
    for name, value in values(members).items():
        assert torch.equal(value, theirs[name])
    copied = copy.deepcopy(averaged)
    second = values(copied.module)
    averaged.update_parameters(members)
    for name, value in values(copied.module).items():
        assert torch.equal(value, second[name])


@pytest.mark.parametrize("batch_norm", [True, False])
def test_without_decay_it_is_the_last_weights(batch_norm: bool) -> None:
    members = some_members(batch_norm)
    averaged = EMA(members, 0.0)
    move(members, torch.Generator().manual_seed(0))
    averaged.update_parameters(members)
    for name, value in values(averaged.module).items():
        torch.testing.assert_close(value, values(members)[name])


def test_what_stays_the_same_is_its_own_mean() -> None:
    members = some_members()
    averaged, first = EMA(members, 0.99), values(members)
    for _ in range(5):
        averaged.update_parameters(members)
    for name, value in values(averaged.module).items():
        assert torch.equal(value, first[name])


def test_it_only_evaluates_and_the_members_go_on_learning() -> None:
    members = some_members().train()
    averaged = EMA(members, 0.9)
    assert members.training
    assert not averaged.module.training
    assert not any(parameter.requires_grad for parameter in averaged.module.parameters())
    assert all(parameter.requires_grad for parameter in members.parameters())
