"""Mixture: against scikit-learn and a slow expectation maximization, and what must not make it stumble."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from unflip.stats.gaussians import low_probability, normalized, subsample


def two_heaps(low: int = 300, high: int = 200) -> torch.Tensor:
    draws = torch.Generator().manual_seed(0)
    return torch.cat([0.2 + 0.1 * torch.randn(low, generator=draws), 3 + 0.3 * torch.randn(high, generator=draws)])


def density(x: float, mean: float, variance: float) -> float:
    return math.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)


def test_it_tells_two_heaps_apart() -> None:
    probability = low_probability(two_heaps(), seed=0)
    assert probability[:300].min() > 0.99
    assert probability[300:].max() < 0.01


def test_it_is_the_mixture_of_the_paper() -> None:
    values = two_heaps() + torch.linspace(0, 2, 500)  # so that the heaps touch
    line = ((values - values.min()) / (values.max() - values.min())).double().numpy()[:, None]
    theirs = GaussianMixture(n_components=2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=7).fit(line)
    expected = theirs.predict_proba(line)[:, theirs.means_.argmin()]
    torch.testing.assert_close(low_probability(values, seed=7), torch.from_numpy(expected).float())


def test_it_is_close_to_a_slow_expectation_maximization() -> None:
    values = normalized(two_heaps(60, 40) + torch.linspace(0, 1, 100))
    points = values.tolist()
    weights, means, variances = [0.5, 0.5], [min(points), max(points)], [0.05, 0.05]
    for _ in range(200):
        shares = []
        for x in points:
            parts = [weights[c] * density(x, means[c], variances[c]) for c in (0, 1)]
            shares.append([part / sum(parts) for part in parts])
        for c in (0, 1):
            total = sum(share[c] for share in shares)
            weights[c] = total / len(points)
            means[c] = sum(share[c] * x for share, x in zip(shares, points, strict=True)) / total
            subsample = sum(share[c] * (x - means[c]) ** 2 for share, x in zip(shares, points, strict=True))
            variances[c] = subsample / total + 5e-4
    low = means.index(min(means))
    expected = torch.tensor([share[low] for share in shares])
    torch.testing.assert_close(low_probability(values, seed=0), expected, atol=0.05, rtol=0)  # ours stops early


@given(st.lists(st.floats(0, 50, width=32), min_size=1, max_size=30), st.integers(0, 2**63 - 1))
def test_any_losses_give_probabilities_without_a_warning(values: list[float], seed: int) -> None:
    probability = low_probability(torch.tensor(values), seed)
    assert probability.shape == (len(values),)
    assert bool(((probability >= 0) & (probability <= 1 + 1e-6)).all())


@pytest.mark.parametrize("values", [[0.0] * 5, [0.7] * 5, [3.0], []])
def test_losses_that_are_all_the_same_count_as_low(values: list[float]) -> None:
    assert low_probability(torch.tensor(values), seed=0).tolist() == [1.0] * len(values)


def test_a_fit_that_does_not_converge_is_used_as_it_stands() -> None:
    values = torch.cat([torch.zeros(350), torch.linspace(0, 1, 650)])
    with pytest.warns(ConvergenceWarning):
        GaussianMixture(n_components=2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(values[:, None])
    probability = low_probability(values, seed=0)
    assert probability[values.argmin()] > 0.9 > 0.1 > probability[values.argmax()]


@given(st.floats(0.1, 10), st.floats(-5, 5))
def test_scale_and_origin_do_not_matter(scale: float, shift: float) -> None:
    values = two_heaps(30, 20).double()
    torch.testing.assert_close(
        low_probability(scale * values + shift, 0), low_probability(values, 0), atol=1e-6, rtol=0
    )


def test_the_same_seed_gives_the_same_fit() -> None:
    values = two_heaps() + torch.linspace(0, 2, 500)
    assert torch.equal(low_probability(values, 3), low_probability(values, 3))


def test_many_values_are_fitted_by_evenly_spaced_ones() -> None:
    draws = torch.Generator().manual_seed(2)
    values = torch.cat([torch.rand(20_000, generator=draws).pow(2), 0.8 + 0.3 * torch.randn(13_000, generator=draws)])
    line = normalized(values).double().numpy()[:, None]
    whole = GaussianMixture(n_components=2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(line)
    expected = torch.from_numpy(whole.predict_proba(line)[:, whole.means_.argmin()]).float()
    torch.testing.assert_close(low_probability(values, 0), expected, atol=0.02, rtol=0)
    assert subsample(torch.tensor([3.0, 0.0, 5.0, 1.0, 2.0, 4.0]), 2).tolist() == [1.0, 4.0]


def test_normalized_values_reach_from_0_to_1() -> None:
    assert normalized(torch.tensor([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert normalized(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]
    assert normalized(torch.empty(0)).tolist() == []
