"""A sample of labels against plain loops, its balance and its weights; the fit to its decisions against a slow sum."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unflip.stats.odds import PlattScaling
from unflip.stats.sampling import (
    _LOG_SLOPES,
    _SHIFTS,
    Sample,
    calibrate_to_review,
    draw_sample,
    fit_review,
    inclusion_weights,
)


def some_labels(seed: int, count: int = 400, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(3, 3, count), random.choice(classes, count, p=np.arange(1, classes + 1) / 6)


@given(seed=st.integers(0, 100), unknown=st.integers(0, 5))
def test_every_beginning_has_equally_many_of_each_stratum(seed: int, unknown: int) -> None:
    log_odds, classes = some_labels(seed)
    log_odds[:unknown] = np.nan
    sample = draw_sample(log_odds, classes, seed)
    assert sorted(sample.order.tolist()) == list(range(unknown, 400))
    assert set(sample.strata[:unknown].tolist()) <= {-1}
    ascending = np.argsort(log_odds)[: 400 - unknown]
    assert (np.diff(sample.strata[ascending]) >= 0).all()
    quality = 1 / (1 + np.exp(-log_odds))
    sums = np.zeros(10)
    for i in ascending:
        sums[sample.strata[i]] += max(0.05, math.sqrt(quality[i] * (1 - quality[i])))
    assert sums.max() - sums.min() <= 1.0 + 1e-9  # one label at each end
    smallest = min(Counter(sample.strata[ascending].tolist()).values())
    for end in range(1, 10 * smallest):
        counts = np.bincount(sample.strata[sample.order[:end]], minlength=10)
        assert counts.max() - counts.min() <= 1
    for stratum in range(10):
        rows = sample.order[sample.strata[sample.order] == stratum]
        shares = np.bincount(classes[rows], minlength=3) / len(rows)
        for end in range(1, len(rows)):
            assert np.abs(np.bincount(classes[rows[:end]], minlength=3) - end * shares).max() <= 2


def test_a_sample_is_reproducible_and_random() -> None:
    log_odds, classes = some_labels(0)
    first, again, other = (draw_sample(log_odds, classes, seed).order.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert draw_sample(np.full(3, np.nan), np.zeros(3, int), 0).order.tolist() == []


def test_weighted_decisions_count_the_wrong_labels_without_bias() -> None:
    log_odds, classes = some_labels(4)
    wrong = np.random.default_rng(4).random(400) < 1 / (1 + np.exp(0.7 * log_odds))
    totals = []
    for seed in range(400):
        sample = draw_sample(log_odds, classes, seed)
        decided = np.isin(np.arange(400), sample.order[:40])
        weights = inclusion_weights(sample, decided, np.zeros(400, bool))
        assert weights.sum() == pytest.approx(400)
        totals.append(weights @ wrong)
    error = np.std(totals) / math.sqrt(400)
    assert abs(np.mean(totals) - wrong.sum()) < 3.5 * error
    at_random = math.sqrt(400**2 * wrong.mean() * (1 - wrong.mean()) / 40)
    assert np.std(totals) < 0.8 * at_random  # what strata are for


@given(
    states=st.lists(st.sampled_from(["open", "decided", "skipped"]), min_size=30, max_size=30), seed=st.integers(0, 9)
)
def test_in_each_stratum_the_sample_ends_before_the_first_open_label(states: list[str], seed: int) -> None:
    strata = np.random.default_rng(seed).integers(-1, 4, 30)
    order = np.random.default_rng(seed + 1).permutation(np.flatnonzero(strata >= 0))
    decided, skipped = (np.array([state == kind for state in states]) for kind in ("decided", "skipped"))
    expected = np.zeros(30)
    for stratum in range(4):
        mine, reached = [i for i in order.tolist() if strata[i] == stratum], []
        for i in mine:
            if states[i] == "open":
                break
            if states[i] == "decided":
                reached.append(i)
        for i in reached:
            expected[i] = len(mine) / len(reached)
    assert inclusion_weights(Sample(order, strata), decided, skipped).tolist() == expected.tolist()


def slow_fit(
    log_odds: list[float], sampled: list[float], wrong: list[bool], weights: list[float]
) -> tuple[float, float]:
    """Return slope and mean noise rate by plain sums."""
    variances = [max(0.0025, 1 / (1 + math.exp(s)) / (1 + math.exp(-s))) for s in sampled]
    pairs = list(zip(weights, variances, strict=True))
    factor = sum(w * v for w, v in pairs) / sum(w * w * v for w, v in pairs)
    total = mean_slope = mean_rate = 0.0
    for log_slope in _LOG_SLOPES.tolist():
        for shift in _SHIFTS.tolist():
            logarithm = -0.5 * (log_slope / 0.5) ** 2 - 0.5 * (shift / 3) ** 2
            for s, is_wrong, w in zip(sampled, wrong, weights, strict=True):
                right = 1 / (1 + math.exp(-math.exp(log_slope) * s - shift))
                logarithm += factor * w * math.log(1 - right if is_wrong else right)
            rate = sum(1 / (1 + math.exp(math.exp(log_slope) * s + shift)) for s in log_odds) / len(log_odds)
            total += math.exp(logarithm)
            mean_slope += math.exp(logarithm) * log_slope
            mean_rate += math.exp(logarithm) * rate
    return math.exp(mean_slope / total), mean_rate / total


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_the_posterior_mean(seed: int) -> None:
    random = np.random.default_rng(seed)
    log_odds, sampled = random.normal(2, 2, 40), random.normal(1, 2, 25)
    wrong, weights = random.random(25) < 0.4, random.random(25) + 0.1
    slope, rates = fit_review(log_odds, sampled, wrong, weights)
    expected = slow_fit(log_odds.tolist(), sampled.tolist(), wrong.tolist(), weights.tolist())
    assert slope == pytest.approx(expected[0], rel=1e-6)
    assert rates.mean() == pytest.approx(expected[1], abs=0.004)  # 20 values instead of all
    assert (np.diff(rates) >= 0).all()
    everything_reviewed = fit_review(log_odds[:0], sampled, wrong, weights)
    assert everything_reviewed[0] == slope
    assert everything_reviewed[1].tolist() == [0.0] * 20
    scaled = fit_review(log_odds, sampled, wrong, 7 * weights)
    assert scaled[1] == pytest.approx(rates)
    changed = wrong.copy()
    changed[np.flatnonzero(~wrong)[0]] = True
    assert (fit_review(log_odds, sampled, changed, weights)[1] > rates).all()


def test_no_wrong_label_among_many_leaves_room_for_some() -> None:
    log_odds, classes = some_labels(0, 5000)
    sample = draw_sample(log_odds + 4, classes, 0)
    highest = []
    for count in (20, 100, 400):
        decided = np.isin(np.arange(5000), sample.order[:count])
        weights = inclusion_weights(sample, decided, ~decided & False)
        rates = fit_review(log_odds[~decided] + 4, log_odds[decided] + 4, decided[decided] & False, weights[decided])[1]
        highest.append(rates[-1])
        assert 0 <= rates[0] < rates[-1] < 0.1
    assert highest[0] > highest[1] > highest[2]


def test_quality_expects_what_the_sample_found() -> None:
    log_odds, classes = some_labels(3, 3000)
    wrong = np.random.default_rng(0).random(3000) < 1 / (1 + np.exp(log_odds - 2))  # the quality is much too high
    sample = draw_sample(log_odds, classes, 3)
    decided = np.isin(np.arange(3000), sample.order[:300])
    weights = torch.from_numpy(inclusion_weights(sample, decided, ~decided & False)[decided])
    odds, flags, scaling = torch.from_numpy(log_odds), torch.from_numpy(wrong), PlattScaling(1.0, torch.zeros(1))
    rest, taken = torch.from_numpy(~decided), torch.from_numpy(decided)
    fitted = calibrate_to_review(scaling, odds[rest], odds[taken], flags[taken], weights)
    expected, truth = float(fitted.wrong(odds[rest]).mean()), int(flags[rest].sum())
    assert float(scaling.wrong(odds[rest]).mean()) < 0.75 * truth
    assert expected == pytest.approx(truth, rel=0.15)
    assert fitted.wrong(odds[rest])[0] < truth < fitted.wrong(odds[rest])[-1]
    few = calibrate_to_review(scaling, odds[rest], odds[taken][:19], flags[taken][:19], weights[:19])
    assert few is scaling
    assert calibrate_to_review(scaling, odds[rest], odds[:0], flags[:0], weights[:0]) is scaling
