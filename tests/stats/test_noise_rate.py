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

UNIFORM = Confident(
    contradicted=0.5, std=0.0, expected=0.0, uniform=1.0, by_class=0.0, purity=0.0, per_class=9.0, noise=0.5
)
FOLLOWS = UNIFORM._replace(contradicted=0.3, uniform=0.0, noise=0.0)  # noise follows the features


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
        weights.append(total * width * (1 - rate) ** 4 / math.sqrt(rate))
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
    nothing = torch.empty(0, dtype=torch.long)
    assert confident_part(nothing, nothing.float(), nothing.float(), nothing, 3) == (0, 0.5, 0, 1, 0, 0, 0, 0, 0)


def slow_shares(pairs: list[tuple[int, int]], by_example: list[float], num_classes: int) -> list[float]:
    """Return the shares of uniform, class-conditional and other labels, label by label."""
    shares = [1 / 3] * 3
    for _ in range(100):
        totals = [0.5] * 3
        for pair, own in zip(pairs, by_example, strict=True):
            same = pairs.count(pair) - 1
            of_class = sum(predicted == pair[0] for predicted, _ in pairs) - 1
            parts = [1 / (num_classes - 1), (same + 1 / (num_classes - 1)) / (of_class + 1), own]
            weights = [share * part for share, part in zip(shares, parts, strict=True)]
            totals = [total + weight / sum(weights) for total, weight in zip(totals, weights, strict=True)]
        shares = [total / sum(totals) for total in totals]
    return shares


def test_the_confident_part_is_that_of_a_slow_count() -> None:
    top = torch.tensor([0, 0, 1, 1, 1, 3] + [2] * 18)
    probs = torch.tensor([0.99, 0.98, 0.97, 0.96, 0.9, 0.8] + [0.4] * 18)
    labels = torch.tensor([0, 2, 2, 2, 3, 0] + [1] * 18)
    label_probs = torch.tensor([0.99, 0.01, 0.02, 0.001, 0.09, 0.15] + [0.3] * 18)
    part = confident_part(top, probs, label_probs, labels, 4)  # of the first six, all labels but one contradict
    assert part.contradicted == pytest.approx(5 / 6)
    assert part.std == pytest.approx(math.sqrt(5 / 36 / 6))
    assert part.expected == pytest.approx(0.4 / 6)
    assert part.per_class == 5 / 4
    assert part.floor == pytest.approx(0.01)  # of the first of 24
    by_example = [0.01 / 0.02, 0.02 / 0.03, 0.001 / 0.04, 0.09 / 0.1, 0.15 / 0.2]
    shares = slow_shares([(0, 2), (1, 2), (1, 2), (1, 3), (3, 0)], by_example, 4)
    assert [part.uniform, part.by_class] == pytest.approx(shares[:2], rel=1e-4)
    # of each class: the first of class 0 and 1, five of class 2 and that of class 3; all but the first contradict
    by_example = [0.02 / 0.03, *[0.3 / 0.6] * 5, 0.15 / 0.2]
    of_each = slow_shares([(1, 2), *[(2, 1)] * 5, (3, 0)], by_example, 4)
    assert part.noise == pytest.approx(max(5 / 6 * sum(shares[:2]), 7 / 8 * sum(of_each[:2])), rel=1e-4)


def test_noise_in_a_few_classes_is_noticed_though_these_are_predicted_with_less_confidence() -> None:
    top = torch.arange(1000) % 10
    noisy = (top < 3) & (torch.arange(1000) % 7 < 3)
    labels = torch.where(noisy, 9 - top, top)
    probs, own = torch.where(top < 3, 0.6, 0.99), torch.where(noisy, 0.04, 0.6)
    part = confident_part(top, probs, own, labels, 10)
    assert part.contradicted == 0  # all of them are of other classes
    assert part.noise == pytest.approx(float(noisy.float().mean()), abs=0.03)


@pytest.mark.parametrize("kind", ["uniform", "class", "example"])
def test_kinds_of_contradicted_labels_are_told_apart(kind: str) -> None:
    random, count, classes = torch.Generator().manual_seed(0), 4000, 10
    logits = torch.randn(count, classes, generator=random) * 2
    top = torch.randint(classes, (count,), generator=random)
    probs = logits.scatter(1, top[:, None], -torch.inf).softmax(1) * 0.1  # of the other classes
    other = (top[:, None] + torch.randint(1, classes, (count, 1), generator=random))[:, 0] % classes
    if kind == "class":
        other = (top + 1) % classes
    elif kind == "example":
        other = probs.multinomial(1, generator=random)[:, 0]
    labels = other.where(torch.rand(count, generator=random) < 0.3, top)
    part = confident_part(top, torch.full((count,), 0.9), probs.gather(1, labels[:, None])[:, 0], labels, classes)
    shares = {"uniform": part.uniform, "class": part.by_class, "example": 1 - part.uniform - part.by_class}
    assert shares[kind] > 0.75
    assert (part.purity > 0.95) == (kind == "class")
    assert evidence_of(lapses_of(0.2), part, 0.0) == (kind == "example")


def test_two_classes_have_one_kind_of_noise() -> None:
    top, labels = torch.tensor([0, 1] * 50), torch.tensor([0, 1, 1, 0] * 25)
    part = confident_part(top, torch.full((100,), 0.99), torch.full((100,), 0.01), labels, 2)
    assert (part.uniform, part.by_class) == (1, 0)
    assert evidence_of(lapses_of(0.45), part, 0.0) == 0


def evidence_of(lapses: Tensor, part: Confident, uniform: float) -> float:
    """Return the evidence if both views have the same lapse rates."""
    return feature_dependence(lapses, lapses, part, uniform)


def lapses_of(rate: float) -> Tensor:
    """Return lapse rates whose lower quartile is ``rate``."""
    return rate + torch.linspace(-0.1, 0.3, QUANTILES, dtype=torch.float64) * rate


@given(st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.3))
def test_evidence_grows_with_lapses_and_falls_with_explanations(
    rate: float, contradicted: float, share: float, purity: float, uniform: float
) -> None:
    lapses, part = lapses_of(rate), Confident(contradicted, 0.01, 0.1, share / 2, share / 2, purity, 9.0, 0.1)
    evidence = evidence_of(lapses, part, uniform)
    assert 0 <= evidence <= 1
    assert evidence_of(lapses + 0.01, part, uniform) >= evidence
    assert evidence_of(lapses, part._replace(uniform=share / 2 + 0.1), uniform) <= evidence
    assert evidence_of(lapses, part._replace(purity=purity + 0.1), uniform) <= evidence
    assert evidence_of(lapses, part, uniform + 0.01) <= evidence
    assert evidence_of(lapses, part._replace(expected=0.2), uniform) <= evidence
    assert evidence_of(lapses, part._replace(per_class=3.9), uniform) == 0


def test_evidence_needs_lapses_that_nothing_else_explains() -> None:
    lapses, part = lapses_of(0.1), FOLLOWS._replace(contradicted=0.2)
    assert evidence_of(lapses, part, 0.0) == 1
    assert evidence_of(lapses, part, 0.1) == 0  # uniform noise explains them
    assert evidence_of(lapses, part._replace(uniform=0.5), 0.0) == 0
    assert evidence_of(lapses, part._replace(by_class=0.5, purity=0.9), 0.0) == 0  # so does noise by class
    assert evidence_of(lapses, part._replace(by_class=0.5, purity=0.5), 0.0) == 1  # of too many targets
    assert 0 < evidence_of(lapses_of(0.0868), part._replace(by_class=0.5, purity=0.755), 0.0) < 1


def test_networks_tell_lapses_that_pooled_views_hide() -> None:
    few, some, part = lapses_of(0.0), lapses_of(0.0148), FOLLOWS._replace(contradicted=0.2)
    assert feature_dependence(few, some, part, 0.0) == evidence_of(some, part, 0.0) == 1
    assert feature_dependence(some, few, part, 0.0) == evidence_of((some + few) / 2, part, 0.0) < 1
    assert feature_dependence(lapses_of(0.06), few, part, 0.0) == 1


def test_labels_that_the_class_explains_are_less_evidence() -> None:
    part = FOLLOWS._replace(contradicted=0.2, purity=0.5)
    assert 0 < evidence_of(lapses_of(0.0124), part, 0.0) < evidence_of(lapses_of(0.013), part, 0.0) == 1
    assert evidence_of(lapses_of(0.013), part._replace(by_class=0.3), 0.0) == 0  # 0.7 ** 1.5 of it
    assert evidence_of(lapses_of(0.0149), part._replace(by_class=0.3), 0.0) == 1


def test_evidence_needs_more_contradicted_labels_than_the_predictions_expect() -> None:
    part = FOLLOWS._replace(contradicted=0.21, std=0.01, expected=1 / 6)  # an excess of a fifth
    assert evidence_of(lapses_of(0.0368), part, 0.0) == pytest.approx(0.5, abs=0.1)  # 0.0024: halfway
    assert evidence_of(lapses_of(0.0368), part._replace(expected=0.1), 0.0) == 1
    assert evidence_of(lapses_of(0.03), part, 0.0) == 0
    assert evidence_of(lapses_of(0.5), part._replace(expected=0.2), 0.0) == 0  # ambiguous features


def test_predictions_that_have_learned_uniform_noise_expect_less_than_they_say() -> None:
    part = FOLLOWS._replace(contradicted=0.5, expected=0.4)
    evidence = evidence_of(lapses_of(0.5), part, 0.3)  # (0.5 - 0.3) / 0.7 < 0.4
    assert evidence == 0
    learned = part._replace(floor=0.25)  # (0.4 - 0.25) / 0.75 = 0.2 < 0.286
    assert evidence_of(lapses_of(0.5), learned, 0.3) == 1
    assert evidence_of(lapses_of(0.5), learned._replace(contradicted=0.4), 0.3) == 0
    unlearned = part._replace(contradicted=0.6, floor=0.25)
    assert evidence_of(lapses_of(0.5), unlearned, 0.0) == 1  # there is no noise to learn
    assert evidence_of(lapses_of(0.5), part._replace(floor=0.25, expected=0.5), 0.0) == 0


FACTORS = torch.linspace(0.8, 1.3, QUANTILES, dtype=torch.float64)


def rates_by_lapses(
    pooled: Tensor, networks: Tensor, part: Confident, uniform: float, disputed: float, contradicted: float
) -> Tensor:
    evidence = evidence_of(pooled, part, uniform)
    return noise_rates(pooled, networks, part, evidence, uniform, disputed, contradicted)


def test_rates_are_the_larger_lapses_within_what_the_confident_part_allows() -> None:
    lapses, few = torch.linspace(0.02, 0.1, QUANTILES, dtype=torch.float64), torch.zeros(QUANTILES).double()
    assert torch.equal(rates_by_lapses(lapses, few, UNIFORM, 0.0, 0.4, 0.0), lapses * FACTORS)
    assert torch.equal(rates_by_lapses(few, lapses, UNIFORM, 0.0, 0.4, 0.0), lapses * FACTORS)
    part = UNIFORM._replace(contradicted=0.05, uniform=0.4, by_class=0.2, per_class=1.0, noise=0.03)
    assert rates_by_lapses(lapses, few, part, 0.0, 0.4, 0.0).max() == pytest.approx(0.03 * 1.3)
    assert rates_by_lapses(lapses, few, part, 0.06, 0.4, 0.0).max() == pytest.approx(0.06 * 1.3)  # shown by likelihood
    steps = torch.linspace(-1.8, 1.8, QUANTILES, dtype=torch.float64)
    uncertain = rates_by_lapses(torch.full_like(lapses, 0.5), few, part._replace(std=0.01), 0.0, 0.4, 0.0)
    assert uncertain.tolist() == pytest.approx(((0.03 + 0.01 * steps) * FACTORS).tolist())


def test_all_contradicted_labels_may_be_wrong() -> None:
    lapses = torch.full((QUANTILES,), 0.01, dtype=torch.float64)
    rates = rates_by_lapses(lapses, lapses, UNIFORM, 0.0, 0.1, 0.3)
    assert torch.equal(rates[:-1], (lapses * FACTORS)[:-1])
    assert rates[-1] == 0.3


def test_with_evidence_the_rate_moves_to_the_disputed_labels() -> None:
    lapses = torch.full((QUANTILES,), 0.1, dtype=torch.float64)
    disputed = 0.4 * torch.linspace(0.8, 1.2, QUANTILES, dtype=torch.float64)
    assert rates_by_lapses(lapses, lapses, FOLLOWS, 0.0, 0.4, 0.0).tolist() == pytest.approx(disputed.tolist())
    half = torch.full_like(lapses, 0.0124)  # halfway up the ramp
    moved = (half * FACTORS + disputed) / 2
    assert rates_by_lapses(half, lapses * 0, FOLLOWS, 0.0, 0.4, 0.0).tolist() == pytest.approx(moved.tolist())
    assert torch.equal(rates_by_lapses(lapses, lapses, FOLLOWS, 0.0, 0.05, 0.0), lapses * FACTORS)  # never below lapses
    assert rates_by_lapses(lapses, lapses, FOLLOWS, 0.0, 0.9, 0.0).max() == 0.95
