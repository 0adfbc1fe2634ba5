"""Log-odds against plain sums, and their calibration to a noise rate: slow reference, invariances, made-up truth."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.methods.unflip.posterior import log_posterior, posterior
from unflip.stats.odds import PlattScaling, calibrate, disputed_fraction, fit_slope, log_odds


@given(st.integers(0, 1000), st.integers(2, 6))
def test_odds_are_of_one_class_against_all_others(seed: int, classes: int) -> None:
    random = torch.Generator().manual_seed(seed)
    log_probs, labels = torch.randn(7, classes, generator=random), torch.randint(classes, (7,), generator=random)
    for got, row, label in zip(log_odds(log_probs, labels).tolist(), log_probs.tolist(), labels.tolist(), strict=True):
        others = sum(math.exp(value) for c, value in enumerate(row) if c != label)
        assert got == pytest.approx(row[label] - math.log(others), abs=1e-4)


@given(st.integers(0, 1000), st.floats(0, 1))
def test_the_logarithm_of_the_posterior_is_its_logarithm(seed: int, weight: float) -> None:
    random = torch.Generator().manual_seed(seed)
    log_probs, labels = torch.randn(9, 3, generator=random).log_softmax(1), torch.arange(9) % 3
    matrix = torch.rand(3, 3, generator=random).softmax(1).log()
    share = torch.rand(9, generator=random)
    share[:2] = torch.tensor([0.0, 1.0])
    expected = posterior(log_probs, labels, share, matrix, weight)
    torch.testing.assert_close(log_posterior(log_probs, labels, share, matrix, weight).exp(), expected)


@given(st.integers(0, 1000), st.floats(0.1, 20), st.booleans())
def test_the_slope_gives_informative_labels_a_standard_deviation_of_three(
    seed: int, scale: float, some_unknown: bool
) -> None:
    random = torch.Generator().manual_seed(seed)
    odds, share = scale * torch.randn(40, generator=random) + 1, torch.rand(40, generator=random) + 0.01
    if some_unknown:
        odds[::7] = torch.nan
    pairs = [(max(-30.0, min(30.0, s)), u) for s, u in zip(odds.tolist(), share.tolist(), strict=True) if s == s]
    whole = sum(u for _, u in pairs)
    mean = sum(u * s for s, u in pairs) / whole
    std = math.sqrt(sum(u * (s - mean) ** 2 for s, u in pairs) / whole)
    assert fit_slope(odds, share) == pytest.approx(min(1.5, 3 / std), rel=1e-5)


@given(st.integers(0, 1000), st.floats(0.2, 2), st.lists(st.floats(0.02, 0.9), min_size=1, max_size=5))
def test_each_shift_makes_the_mean_quality_that_of_its_rate(seed: int, slope: float, rates: list[float]) -> None:
    odds = 3 * torch.randn(60, generator=torch.Generator().manual_seed(seed)) + 1
    scaling = calibrate(odds, slope, torch.tensor(rates))
    for rate, shift in zip(rates, scaling.shifts.tolist(), strict=True):
        doubts = [1 / (1 + math.exp(slope * s + shift)) for s in odds.tolist()]
        assert sum(doubts) / len(doubts) == pytest.approx(rate, abs=1e-6)
    assert float((1 - scaling.apply(odds).sigmoid()).mean()) == pytest.approx(sum(rates) / len(rates), abs=1e-6)
    assert scaling.wrong(odds).tolist() == pytest.approx([60 * rate for rate in rates], abs=1e-4)


def test_no_rate_is_below_half_a_label() -> None:
    odds = torch.linspace(-3, 9, 50)
    quality = calibrate(odds, 1.0, torch.zeros(3)).apply(odds).sigmoid()
    assert float((1 - quality).sum()) == pytest.approx(0.5, abs=1e-6)


def test_an_uncertain_rate_doubts_fewer_labels_than_its_mean() -> None:
    odds = torch.linspace(-4, 12, 2000)
    certain = calibrate(odds, 1.0, torch.tensor([0.1])).apply(odds)
    uncertain = calibrate(odds, 1.0, torch.tensor([0.0, 0.0, 0.3])).apply(odds)
    assert float(certain.sigmoid().mean()) == pytest.approx(float(uncertain.sigmoid().mean()), abs=1e-3)
    assert int((uncertain < 0).sum()) < int((certain < 0).sum())


@given(
    st.lists(st.floats(-200, 200, width=32), min_size=2, max_size=30),
    st.floats(0.01, 1.5),
    st.lists(st.floats(-5, 10), min_size=1, max_size=4),
)
def test_the_order_stays_and_nothing_ties_that_did_not(values: list[float], slope: float, shifts: list[float]) -> None:
    odds = torch.tensor(values)
    got = PlattScaling(slope, torch.tensor(shifts, dtype=torch.double)).apply(odds)
    assert got.dtype == torch.double
    least = max(1.0, float(odds.abs().max())) * 1e-7
    for i in range(len(values)):
        apart = (odds - odds[i]) > least
        assert bool((got[apart] > got[i]).all())


def test_what_is_not_known_stays_unknown_and_does_not_count() -> None:
    odds, rates = torch.tensor([3.0, -2.0, torch.nan, 0.5]), torch.tensor([0.1, 0.3])
    scaling, known = calibrate(odds, 1.2, rates), torch.tensor([True, True, False, True])
    assert torch.equal(scaling.shifts, calibrate(odds[known], 1.2, rates).shifts)
    assert torch.equal(scaling.wrong(odds), scaling.wrong(odds[known]))
    assert scaling.apply(odds).isnan().tolist() == [False, False, True, False]
    assert disputed_fraction(odds, 1.2) == disputed_fraction(odds[known], 1.2)
    assert disputed_fraction(odds[~known], 1.2) == 0
    assert calibrate(torch.tensor([torch.nan]), 1.5, rates).apply(torch.zeros(1)).tolist() == [0.0]


@pytest.mark.parametrize("scale", [0.8, 1.0, 3.0])
def test_labels_wrong_by_chance_are_as_often_right_as_their_quality_says(scale: float) -> None:
    """Whatever scale views put their log-odds on, as long as it is not so small that the steepest line is too flat."""
    random = torch.Generator().manual_seed(0)
    right = torch.rand(20_000, generator=random) > 0.2
    odds = scale * (torch.randn(20_000, generator=random) * 2.5 + torch.where(right, 6.0, -6.0))
    slope = fit_slope(odds, torch.where(right, 1.0, 0.02))
    quality = calibrate(odds, slope, torch.tensor([0.2])).apply(odds).sigmoid()
    assert expected_calibration_error(quality, right) < 0.03


def expected_calibration_error(quality: Tensor, right: Tensor) -> float:
    order = quality.argsort()
    bins = zip(quality[order].tensor_split(20), right[order].double().tensor_split(20), strict=True)
    return sum(abs(float(said.mean() - true.mean())) * len(said) for said, true in bins) / len(quality)
