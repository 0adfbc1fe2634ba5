"""Stacking against a general optimizer; views that say nothing, everything or too much; labels that mean nothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from unflip.stats import odds as module
from unflip.stats.odds import pool, stack


def views_and_labels(
    count: int = 3000, classes: int = 4, seed: int = 0, noise_rate: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The truth's log-probabilities, noise of the same size, and labels drawn from the truth or from all classes."""
    random = torch.Generator().manual_seed(seed)
    truth, noise = ((2 * torch.randn(count, classes, generator=random)).log_softmax(1) for _ in range(2))
    labels = truth.exp().multinomial(1, generator=random)[:, 0]
    anything = torch.randint(classes, (count,), generator=random)
    return truth, noise, torch.where(torch.rand(count, generator=random) < noise_rate, anything, labels)


def penalized(
    weights: np.ndarray[tuple[int], np.dtype[np.float64]], views: list[Tensor], labels: Tensor, e: float
) -> float:
    """The mean log-likelihood of the labels, by a loop over views, less the ridge about 1/2."""
    scores = sum(float(w) * view.double() for w, view in zip(weights, views, strict=True))
    assert isinstance(scores, Tensor)
    own = scores.softmax(1)[torch.arange(len(labels)), labels]
    likelihood = (1 - e) * own + e / views[0].shape[1]
    return float(likelihood.log().mean()) - sum(0.001 * (w - 0.5) ** 2 / 2 for w in weights)


@pytest.mark.parametrize("noise_rate", [0.0, 0.2, 0.5, 0.7, 0.9])
def test_weights_are_those_of_a_general_optimizer(noise_rate: float) -> None:
    truth, noise, labels = views_and_labels(noise_rate=noise_rate)
    half = (0.5 * truth + 0.5 * noise).log_softmax(1)
    views = [(2 * truth).log_softmax(1), half]
    found = stack(views, labels, noise_rate)
    best = minimize(
        lambda w: -penalized(w, views, labels, noise_rate), [0.5, 0.5], bounds=[(0, 4)] * 2, options={"ftol": 1e-12}
    )
    assert found.uniform_noise_rate == noise_rate
    np.testing.assert_allclose(
        found.weights.numpy(), best.x, atol=0.02 if noise_rate < 0.9 else 0.04
    )  # few labels mean anything there
    assert penalized(found.weights.double().numpy(), views, labels, noise_rate) == pytest.approx(-best.fun, abs=1e-5)


@pytest.mark.parametrize("noise_rate", [0.0, 0.15, 0.4, 0.7])
def test_the_share_of_labels_that_mean_nothing_is_found(noise_rate: float) -> None:
    truth, _, labels = views_and_labels(noise_rate=noise_rate)
    found = stack([truth], labels)
    assert found.uniform_noise_rate == pytest.approx(noise_rate, abs=0.07)
    best = max(
        (penalized(stack([truth], labels, e).weights.double().numpy(), [truth], labels, e), e)
        for e in np.linspace(0, 0.94, 48).tolist()
    )
    mine = penalized(found.weights.double().numpy(), [truth], labels, found.uniform_noise_rate)
    assert mine > best[0] - 2e-4  # no other of a fine grid is better


def test_noise_gets_no_weight_and_the_truth_its_own() -> None:
    truth, noise, labels = views_and_labels(count=4000)
    weights, noise_rate = stack([truth, noise], labels)
    assert float(weights[0]) == pytest.approx(1, abs=0.15)
    assert float(weights[1]) == pytest.approx(0, abs=0.05)
    assert noise_rate == pytest.approx(0, abs=0.07)


def test_a_view_that_is_too_sure_gets_less_weight() -> None:
    truth, _, labels = views_and_labels()
    for factor in (0.5, 1.0, 3.0):
        weights, _ = stack([(factor * truth).log_softmax(1)], labels, 0.0)
        assert float(weights) * factor == pytest.approx(1, abs=0.1)


def test_a_view_against_the_truth_counts_nothing_rather_than_less() -> None:
    truth, _, labels = views_and_labels()
    weights, _ = stack([truth, (-truth).log_softmax(1)], labels, 0.0)
    assert float(weights[1]) == pytest.approx(0, abs=0.01)


def test_equal_views_share_the_weight_and_their_order_is_theirs() -> None:
    truth, noise, labels = views_and_labels()
    twice, _ = stack([truth, truth], labels, 0.1)
    once, _ = stack([truth], labels, 0.1)
    torch.testing.assert_close(twice[0], twice[1])
    assert float(twice.sum()) == pytest.approx(float(once), abs=0.02)
    forward, backward = stack([truth, noise], labels, 0.1), stack([noise, truth], labels, 0.1)
    torch.testing.assert_close(forward.weights, backward.weights.flip(0), atol=1e-4, rtol=0)


def test_of_many_examples_evenly_spaced_ones_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 500)
    truth, noise, labels = views_and_labels(count=2001)
    rows = torch.arange(2001)[np.linspace(0, 2000, 500).astype(int)]
    some = stack([truth[rows], noise[rows]], labels[rows])
    every = stack([truth, noise], labels)
    assert torch.equal(every.weights, some.weights)
    assert every.uniform_noise_rate == some.uniform_noise_rate


def test_a_label_that_all_views_rule_out_is_possible_under_some_noise_only() -> None:
    """Its likelihood without noise is 0, which counts as tiny; all other labels are a little more likely than not."""
    view = torch.tensor([[0.1, 0.0]]).repeat(1000, 1).log_softmax(1)
    view[7] = torch.tensor([-30.0, 0.0])
    weights, noise_rate = stack([view], torch.zeros(1000, dtype=torch.long))
    assert float(weights) > 3.5
    assert 0 < noise_rate < 0.1


def test_views_that_rule_a_label_out_count_up_to_a_limit() -> None:
    views = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]]).repeat(50, 1)
    labels = torch.arange(100) % 2
    labels[0] = 1  # impossible, says the view
    weights, noise_rate = stack([views], labels)
    assert bool(weights.isfinite().all())
    assert math.isfinite(noise_rate)
    torch.testing.assert_close(pool([views[:1]], torch.tensor([0.1])), torch.tensor([[0.0, -3.0]]).log_softmax(1))


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(2, 5))
def test_a_pool_is_the_normalized_product_of_powers(seed: int, count: int, classes: int) -> None:
    random = torch.Generator().manual_seed(seed)
    views = [torch.randn(5, classes, generator=random).log_softmax(1) for _ in range(count)]
    weights = torch.rand(count, generator=random)
    got = pool(views, weights).exp()
    for i in range(5):
        powers = [
            math.prod(float(view[i, c].exp()) ** float(w) for view, w in zip(views, weights, strict=True))
            for c in range(classes)
        ]
        assert got[i].tolist() == pytest.approx([power / sum(powers) for power in powers], rel=1e-4)
    kept = views[0].clone()
    pool(views, weights)
    assert torch.equal(views[0], kept)
