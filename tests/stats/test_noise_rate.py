"""The noise rate from noisy labels: slow references, limits, and made-up worlds with known truth."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.stats.noise_rate import (
    QUANTILES,
    Confident,
    confident_part,
    feature_dependence,
    lapse_rates,
    noise_rates,
)

NONE = Confident(contradicted=0.5, std=0.0, expected=0.0, by_class=1.0, per_class=9.0)  # allows any rate


def world(rate: float, sharpness: float, count: int = 4000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return margins, and whether labels contradict predictions that are right with probability sigmoid(margin)."""
    random = torch.Generator().manual_seed(seed)
    margins = sharpness * torch.rand(count, generator=random)
    errs = torch.rand(count, generator=random) > margins.sigmoid()
    return margins, errs ^ (torch.rand(count, generator=random) < rate)


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.05, 0.2, 0.4])
@pytest.mark.parametrize("sharpness", [6.0, 10.0])
def test_wrong_labels_are_told_from_wrong_predictions(rate: float, sharpness: float) -> None:
    margins, contradicted = world(rate, sharpness)
    rates = lapse_rates(margins, contradicted)
    assert float(rates.mean()) == pytest.approx(rate, abs=0.02 + rate / 6)
    if rate < 0.1:  # otherwise some errors of predictions are hidden by wrong labels
        assert float(contradicted.double().mean()) > rate + 0.05


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_the_interval_covers_the_rate_and_narrows_with_data(rate: float) -> None:
    covered, widths = 0, []
    for seed in range(20):
        rates = lapse_rates(*world(rate, 8.0, 1500, seed))
        covered += bool(rates[0] - 0.01 <= rate <= rates[-1] + 0.01)
        widths.append(float(rates[-1] - rates[0]))
    assert covered >= 17
    wide = lapse_rates(*world(rate, 8.0, 150, 0))
    assert float(wide[-1] - wide[0]) > sum(widths) / len(widths)


def test_the_posterior_is_that_of_a_slow_sum() -> None:
    margins, contradicted = world(0.1, 5.0, 300)
    groups = zip(
        *(part.tensor_split(100) for part in (margins.sort().values, contradicted[margins.argsort()])), strict=True
    )
    bins = [(float(m.double().mean()), int(c.sum()), len(c)) for m, c in groups]
    grid = [*(0.0001, 0.0003, 0.001, 0.002), *(i / 250 for i in range(1, 25)), *(i / 50 for i in range(5, 48))]
    weights = []
    for rate, width in zip(grid, torch.gradient(torch.tensor(grid, dtype=torch.float64))[0].tolist(), strict=True):
        total = 0.0
        for log_slope in [-3 + 4.2 * i / 21 for i in range(22)]:
            for shift in [-2 + i / 4 for i in range(21)]:
                value = -0.5 * (log_slope / 0.5) ** 2 - 0.5 * (shift - 0.3) ** 2
                for margin, wrong, size in bins:
                    p = rate + (1 - rate) / (1 + math.exp(math.exp(log_slope) * margin + shift))
                    value += wrong * math.log(p) + (size - wrong) * math.log(1 - p)
                total += math.exp(value + 100)
        weights.append(total * width / math.sqrt(rate))
    reached = 0.0
    expected: list[float] = []
    for rate, weight in zip(grid, weights, strict=True):
        reached += weight / sum(weights)
        expected += [rate] * (round(reached * QUANTILES) - len(expected))
    assert lapse_rates(margins, contradicted).tolist() == pytest.approx(expected, abs=1e-9)


@given(st.permutations(range(60)))
def test_the_order_of_examples_does_not_matter(order: list[int]) -> None:
    margins, contradicted = world(0.2, 6.0, 60)
    assert torch.equal(lapse_rates(margins, contradicted), lapse_rates(margins[order], contradicted[order]))


def test_nothing_is_wrong_without_labels() -> None:
    assert lapse_rates(torch.empty(0), torch.empty(0, dtype=torch.bool)).tolist() == [0.0] * QUANTILES


def test_the_confident_part_is_counted_by_hand() -> None:
    top2 = torch.tensor([[0, 1], [0, 2], [1, 0], [1, 2]] + [[2, 0]] * 12)
    probs = torch.tensor([0.99, 0.98, 0.97, 0.96] + [0.4] * 12)
    labels = torch.tensor([0, 2, 2, 2] + [1] * 12)
    part = confident_part(top2, probs, labels, 3)  # of the first four, labels 2, 2, 2 contradict 0, 1, 1
    assert part.contradicted == 0.75
    assert part.std == pytest.approx(math.sqrt(0.75 * 0.25 / 4))
    assert part.expected == pytest.approx(0.025)
    assert part.by_class == pytest.approx(
        2 / 3 - 2 / 3
    )  # both of class 1, once alone is no rule; second guesses 0 -> 2, 1 -> 2
    assert part.per_class == 1.0


@given(st.floats(0, 0.5), st.floats(0, 0.3), st.floats(-1, 1), st.floats(0, 0.3))
def test_evidence_grows_with_contradicted_labels_and_falls_with_explanations(
    contradicted: float, expected: float, by_class: float, uniform: float
) -> None:
    part = Confident(contradicted, 0.01, expected, by_class, 9.0)
    evidence = feature_dependence(part, uniform)
    assert 0 <= evidence <= 1
    assert feature_dependence(part._replace(contradicted=contradicted + 0.01), uniform) >= evidence
    assert feature_dependence(part._replace(expected=expected + 0.01), uniform) <= evidence
    assert feature_dependence(part, uniform + 0.01) <= evidence
    assert feature_dependence(part._replace(per_class=1.9), uniform) == 0


def test_evidence_needs_labels_that_neither_class_nor_second_guess_explains() -> None:
    part = Confident(0.2, 0.005, 0.05, 0.0, 20.0)
    assert feature_dependence(part, 0.0) == 1
    assert feature_dependence(part, 0.15) == 0  # uniform noise explains them
    assert feature_dependence(part._replace(by_class=0.3), 0.0) == 0  # the class does
    assert 0 < feature_dependence(part._replace(by_class=0.2), 0.0) < 1
    assert feature_dependence(part._replace(by_class=-1.0), 0.05) < feature_dependence(
        part, 0.05
    )  # predictions may err


def test_rates_are_lapses_within_what_the_confident_part_allows() -> None:
    lapses = torch.linspace(0.02, 0.1, QUANTILES, dtype=torch.float64)
    assert torch.equal(noise_rates(lapses, NONE, 0.0, 0.4), lapses)
    part = Confident(contradicted=0.05, std=0.0, expected=0.04, by_class=1.0, per_class=9.0)
    assert noise_rates(lapses, part, 0.0, 0.4).max() == pytest.approx(0.03)
    assert noise_rates(lapses, part, 0.06, 0.4).max() == pytest.approx(0.06)  # uniform noise is shown by likelihood


def test_with_evidence_the_rate_moves_to_the_disputed_labels() -> None:
    lapses = torch.full((QUANTILES,), 0.1, dtype=torch.float64)
    certain = Confident(contradicted=0.3, std=0.0, expected=0.0, by_class=0.0, per_class=9.0)
    disputed = [0.28 + 0.12 * i / (QUANTILES - 1) for i in range(QUANTILES)]
    assert noise_rates(lapses, certain, 0.0, 0.4).tolist() == pytest.approx(disputed)
    half = certain._replace(by_class=0.175)
    assert noise_rates(lapses, half, 0.0, 0.4).tolist() == pytest.approx([(0.1 + rate) / 2 for rate in disputed])
    assert torch.equal(noise_rates(lapses, certain, 0.0, 0.05), lapses)  # never below the lapse rate
