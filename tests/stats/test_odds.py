"""Log-odds against plain sums, and the line that calibrates them: slow reference, invariances, made-up truth."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.methods.unflip.posterior import class_conditional_noise, log_posterior, posterior
from unflip.stats.odds import PlattScaling, calibrate, log_odds


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


@pytest.mark.parametrize("matrix", [[[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.1, 0.0, 0.9]], torch.eye(3).tolist()])
def test_noise_that_depends_on_classes_is_explained(matrix: list[list[float]]) -> None:
    random = torch.Generator().manual_seed(0)
    truth = torch.randint(3, (9000,), generator=random)
    labels = torch.tensor(matrix)[truth].multinomial(1, generator=random)[:, 0]
    scores = 2 * torch.randn(9000, 3, generator=random)
    scores[torch.arange(9000), truth] += 8
    noise = float((labels != truth).float().mean())
    for sharpness in (0.5, 2.0):  # views that are less sure than they could be, and views that are not
        got = class_conditional_noise((sharpness * scores).log_softmax(1), labels, 0.0)
        assert got == pytest.approx(noise, abs=0.03)


def slowly(odds: list[float], share: list[float], explained: float, wrong: float) -> tuple[float, float]:
    """Return slope and shift as the docstring says them."""

    def doubt(s: float, shift: float) -> float:
        return 1 / (1 + math.exp(min(700.0, slope * s + shift)))

    pairs = [(max(-30.0, min(30.0, s)), u) for s, u in zip(odds, share, strict=True) if not math.isnan(s)]
    whole = sum(u for _, u in pairs)
    mean = sum(u * s for s, u in pairs) / whole
    spread = math.sqrt(sum(u * (s - mean) ** 2 for s, u in pairs) / whole)
    slope = min(1.5, 3 / spread) if spread else 1.5
    counted = (wrong / 0.35) ** 2
    if counted >= 1:
        return slope, 0.25
    rest = sum(doubt(s, 0.25) for s, _ in pairs) / len(pairs) - explained
    expected = max(explained + counted * rest, 0.5 / len(pairs))
    shift = 0.25
    while sum(doubt(s, shift) for s, _ in pairs) / len(pairs) > expected:
        shift += 0.01
    return slope, shift


@given(st.integers(0, 1000), st.floats(0.1, 20), st.floats(0, 0.9), st.floats(0, 0.6), st.booleans())
def test_the_line_is_what_its_docstring_says(
    seed: int, scale: float, explained: float, wrong: float, some_unknown: bool
) -> None:
    random = torch.Generator().manual_seed(seed)
    odds, share = scale * torch.randn(40, generator=random) + 1, torch.rand(40, generator=random) + 0.01
    if some_unknown:
        odds[::7] = torch.nan
    got = calibrate(odds, share, explained=explained, wrong=wrong)
    slope, shift = slowly(odds.tolist(), share.tolist(), explained, wrong)
    assert got.slope == pytest.approx(slope, rel=1e-5)
    assert shift - 0.02 <= got.shift <= shift + 1e-6


@given(st.lists(st.floats(-200, 200, width=32), min_size=2, max_size=30), st.floats(0.01, 1.5), st.floats(0.25, 100))
def test_the_order_stays_and_nothing_ties_that_did_not(values: list[float], slope: float, shift: float) -> None:
    odds = torch.tensor(values)
    got = PlattScaling(slope, shift).apply(odds)
    assert got.dtype == torch.double
    least = max(1.0, float(odds.abs().max())) * 1e-7
    for i in range(len(values)):
        apart = (odds - odds[i]) > least
        assert bool((got[apart] > got[i]).all())


def test_what_is_not_known_stays_unknown_and_does_not_count() -> None:
    odds, share = torch.tensor([3.0, -2.0, torch.nan, 0.5]), torch.tensor([1.0, 0.5, 1.0, 1.0])
    line = calibrate(odds, share, explained=0.1, wrong=0.2)
    known = torch.tensor([True, True, False, True])
    assert line == calibrate(odds[known], share[known], explained=0.1, wrong=0.2)
    assert line.apply(odds).isnan().tolist() == [False, False, True, False]
    nothing = torch.tensor([torch.nan])
    assert calibrate(nothing, torch.ones(1), explained=0.0, wrong=0.0) == (1.5, 0.25)


@pytest.mark.parametrize("scale", [0.8, 1.0, 3.0])
def test_labels_wrong_by_chance_are_as_often_right_as_their_quality_says(scale: float) -> None:
    """Whatever scale views put their log-odds on, as long as it is not so small that the steepest line is too flat."""
    random = torch.Generator().manual_seed(0)
    right = torch.rand(20_000, generator=random) > 0.2
    odds = torch.randn(20_000, generator=random) * 2.5 + torch.where(right, 6.0, -6.0)
    share = torch.where(right, 1.0, 0.02)
    quality = calibrate(scale * odds, share, explained=0.2, wrong=0.02).apply(scale * odds).sigmoid()
    assert expected_calibration_error(quality, right) < 0.03
    assert float(quality.mean()) == pytest.approx(0.8, abs=0.01)


def expected_calibration_error(quality: Tensor, right: Tensor) -> float:
    order = quality.argsort()
    bins = zip(quality[order].tensor_split(20), right[order].double().tensor_split(20), strict=True)
    return sum(abs(float(said.mean() - true.mean())) * len(said) for said, true in bins) / len(quality)
