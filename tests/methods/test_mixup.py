"""Mixup: what a mixture is made of, and what it depends on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from unflip.methods.losses import mix


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def example(count: int = 8, classes: int = 3) -> tuple[Tensor, Tensor]:
    random = draw(99)
    return torch.randn(count, 2, 2, generator=random), torch.randn(count, classes, generator=random).softmax(1)


def weight_of(alpha: float, seed: int) -> float:
    """What each example keeps of itself: examples are unit vectors, so a mixture shows its weights."""
    mixed, _ = mix(torch.eye(6), torch.eye(6), alpha, draw(seed))
    return float(mixed.max())


@given(st.integers(0, 1000), st.sampled_from([0.1, 1.0, 4.0]))
def test_a_mixture_is_of_two_examples_and_of_their_targets_alike(seed: int, alpha: float) -> None:
    inputs, targets = example()
    kept = inputs.clone(), targets.clone()
    mixed, mixed_targets = mix(inputs, targets, alpha, draw(seed))
    shown, _ = mix(torch.eye(8), torch.eye(8), alpha, draw(seed))  # row i holds the weights of mixture i
    for i, weights in enumerate(shown):
        torch.testing.assert_close(mixed[i], sum(w * x for w, x in zip(weights, inputs, strict=True)))
        torch.testing.assert_close(mixed_targets[i], sum(w * t for w, t in zip(weights, targets, strict=True)))
        assert float(weights[i]) >= 0.5 - 1e-6  # closer to itself
        assert int((weights > 0).sum()) <= 2
    torch.testing.assert_close(shown.sum(0), torch.ones(8))  # each is a partner once
    torch.testing.assert_close(mixed_targets.sum(1), torch.ones(8))
    assert bool((mixed_targets >= 0).all())
    assert torch.equal(inputs, kept[0])
    assert torch.equal(targets, kept[1])


def test_examples_may_lie_along_another_dimension() -> None:
    inputs, targets = example()
    along_rows = mix(inputs, targets, 1.0, draw(0))
    stacked = torch.stack([inputs, inputs + 1]), torch.stack([targets, targets])
    along_second = mix(*stacked, 1.0, draw(0), dim=1)
    torch.testing.assert_close(along_second[0][0], along_rows[0])
    torch.testing.assert_close(along_second[0][1], along_rows[0] + 1)  # nothing is mixed across the first
    torch.testing.assert_close(along_second[1], along_rows[1].expand(2, -1, -1))


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    first, same, other = (mix(*example(), 1.0, draw(seed))[0] for seed in (3, 3, 4))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    before = torch.random.get_rng_state()
    mix(*example(), 1.0, draw(3))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_weights_are_the_larger_half_of_a_beta_distribution(alpha: float) -> None:
    weights = [weight for seed in range(400) if (weight := weight_of(alpha, seed)) < 1]
    beta = stats.beta(alpha, alpha)
    assert stats.kstest(weights, lambda weight: 2 * beta.cdf(weight) - 1).pvalue > 0.01


def test_a_single_example_stays_what_it_is() -> None:
    inputs, targets = example(1)
    mixed, mixed_targets = mix(inputs, targets, 1.0, draw(0))
    torch.testing.assert_close(mixed, inputs)
    torch.testing.assert_close(mixed_targets, targets)
