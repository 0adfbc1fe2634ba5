"""The posterior of the true class by hand in float64: prior, weights, transition, verdict, and what uses which."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unflip.methods.base import LabelStore
from unflip.methods.unflip import posterior as module
from unflip.methods.unflip.posterior import (
    PosteriorState,
    estimate_transition,
    fit_transition,
    informative_prob,
    label_weights,
    prior_trust,
    score_labels,
    temper_prior,
    update_posterior,
)
from unflip.stats.noise_rate import (
    QUANTILES,
    Confident,
    confident_part,
    feature_dependence,
    lapse_rates,
    noise_rates,
)
from unflip.stats.odds import PlattScaling, calibrate, disputed_fraction, fit_slope, pool, stack

Table = list[list[float]]
CONFIDENT = Confident(0.1, 0.01, 0.02, 0.5, 0.3, 0.9, 9.0, 0.08)


def views(count: int = 60, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of unequal classes, and labels that often contradict them."""
    random = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(count, classes, generator=random) + torch.tensor([1.5, 0.0, -0.5])).log_softmax(1)
    labels = log_probs.exp().multinomial(1, generator=random)[:, 0]
    return log_probs, torch.where(torch.rand(count, generator=random) < 0.3, (labels + 1) % classes, labels)


def normalized(values: list[float]) -> list[float]:
    return [value / sum(values) for value in values]


def slow_transition(p: Table, y: list[int], u: list[float], weight: float, rounds: int) -> Table:
    """Expectation maximization, example by example."""
    k, q = len(p[0]), p
    for _ in range(rounds):
        M = [[1 / k + (c == label) for label in range(k)] for c in range(k)]
        for row, label, share in zip(q, y, u, strict=True):
            for c in range(k):
                M[c][label] += share * row[c]
        M = [normalized(row) for row in M]
        q = [normalized([p[i][c] * M[c][y[i]] ** weight for c in range(k)]) for i in range(len(p))]
    return M


def slow_fit(p: Table, y: list[int], e: float) -> tuple[Table, list[float], float]:
    """Transition matrix, u of each label and the mean log-likelihood: three times three rounds."""
    k, u = len(p[0]), [1 - e] * len(y)
    for _ in range(3):
        M = slow_transition(p, y, u, 1.0, 3)
        own = [(1 - e) * sum(row[c] * M[c][label] for c in range(k)) for row, label in zip(p, y, strict=True)]
        u = [value / (value + e / k) for value in own]
    return M, u, sum(math.log(value + e / k) for value in own) / len(y)


@pytest.mark.parametrize(("trust", "steps", "progress"), [(0.3, 2, 0.5), (0.0, 1, 1.0), (1.0, 3, 0.0), (0.7, 1, 0.25)])
def test_an_update_is_that_by_hand(trust: float, steps: int, progress: float) -> None:
    log_probs, labels = views()
    e, k, y = 0.2, 3, labels.tolist()
    before = log_probs.double().exp().tolist()
    state = update_posterior(
        log_probs.clone(),
        labels,
        e,
        torch.ones(k, dtype=torch.bool),
        CONFIDENT,
        trust=trust,
        steps=steps,
        progress=progress,
    )
    u = [(1 - e) * p[label] / ((1 - e) * p[label] + e / k) for p, label in zip(before, y, strict=True)]
    assert state.informative.tolist() == pytest.approx(u, abs=1e-5)
    prior = normalized([sum(p[c] for p in before) for c in range(k)])
    wanted = normalized([share ** (trust ** (1 / steps)) for share in prior])
    after = state.log_probs.double().exp().tolist()
    assert [sum(p[c] for p in after) / len(after) for c in range(k)] == pytest.approx(wanted, abs=2e-3)
    offset = state.offset.tolist()
    assert (max(map(abs, offset)) > 0) == (trust < 1)
    for p, moved in zip(before, after, strict=True):
        assert moved == pytest.approx(normalized([p[c] * math.exp(offset[c]) for c in range(k)]), abs=1e-5)
    contradicted = [max(range(k), key=p.__getitem__) != label for p, label in zip(before, y, strict=True)]
    wrong = sum(share for share, other in zip(u, contradicted, strict=True) if other) / sum(u)
    target, label_weight = label_weights(e, wrong, k)
    assert state.label_weight == pytest.approx(label_weight, abs=1e-5)
    assert state.target_weight == pytest.approx(1 - progress * (1 - target), abs=1e-5)
    assert target < label_weight < 1
    M = slow_transition(after, y, u, state.target_weight, 5)
    torch.testing.assert_close(state.log_matrix.exp(), torch.tensor(M), atol=1e-4, rtol=1e-3)
    assert (state.uniform_noise_rate, state.prior_trust) == (e, trust)


def test_trust_is_estimated_unless_known(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs, labels = views()
    known = torch.ones(3, dtype=torch.bool)
    monkeypatch.setattr(module, "prior_trust", lambda *_: 0.4)
    assert update_posterior(log_probs.clone(), labels, 0.1, known, CONFIDENT).prior_trust == 0.4
    assert update_posterior(log_probs.clone(), labels, 0.1, known, CONFIDENT, trust=0.6).prior_trust == 0.6


def test_the_first_process_decides_about_offsets_and_matrix() -> None:
    log_probs, labels = views()
    shared: list[Tensor] = []

    def broadcast(tensor: Tensor) -> Tensor:
        shared.append(tensor)
        return tensor + 0.5

    known = torch.ones(3, dtype=torch.bool)
    state = update_posterior(log_probs, labels, 0.1, known, CONFIDENT, trust=0.5, broadcast=broadcast)
    assert torch.equal(state.offset, shared[0] + 0.5)
    assert torch.equal(state.log_matrix, shared[1] + 0.5)


def scaling_by_hand(state: PosteriorState, odds: Tensor, labels: Tensor, kept: Tensor) -> PlattScaling:
    """Calibrate to the noise rate of the labels at ``kept``."""
    top = state.log_probs.double().softmax(1).max(1)
    contradicted = (top.indices != labels)[kept]
    pooled = lapse_rates((top.values / (1 - top.values)).log()[kept], contradicted)
    networks = pooled if state.lapses is None else state.lapses
    plain = (odds - state.log_probs.gather(1, labels[:, None])[:, 0])[kept]
    disputed = disputed_fraction(plain, fit_slope(plain, state.informative[kept]))
    uniform, share = state.uniform_noise_rate * 2 / 3, sum(contradicted.tolist()) / len(contradicted)
    evidence = feature_dependence(pooled, networks, state.confident, uniform)
    rates = noise_rates(pooled, networks, state.confident, evidence, uniform, disputed, share)
    return calibrate(odds[kept], fit_slope(odds[kept], state.informative[kept]), rates)


def test_scores_use_the_weight_of_final_labels_and_their_quality_a_larger_one() -> None:
    log_probs, labels = views(count=400, seed=3)
    probs = log_probs.exp()
    suggested, odds, _ = score_labels(probs, labels)
    stacked = stack([log_probs], labels)
    top_probs, top = probs.max(1)
    part = confident_part(top, top_probs, probs.gather(1, labels[:, None])[:, 0], labels, 3)
    known = labels.bincount(minlength=3) > 0
    state = update_posterior(pool([log_probs], stacked.weights), labels, stacked.uniform_noise_rate, known, part)
    assert state.confident == pytest.approx(part, abs=1e-6)
    state.lapses = lapse_rates((top_probs / (1 - top_probs)).double().log(), top != labels)
    assert state.target_weight < state.label_weight < 0.85
    p, M, y = state.log_probs.double().exp().tolist(), state.log_matrix.double().exp().tolist(), labels.tolist()

    def slow_posterior(i: int, weight: float) -> list[float]:
        u, moved = float(state.informative[i]), normalized([p[i][c] * M[c][y[i]] ** weight for c in range(3)])
        return [(1 - u) * p[i][c] + u * moved[c] for c in range(3)]

    quality = [slow_posterior(i, state.label_weight + 0.15)[y[i]] for i in range(400)]
    score = torch.tensor([math.log(q / (1 - q)) + math.log(p[i][y[i]]) for i, q in enumerate(quality)])
    line = scaling_by_hand(state, score, labels, torch.ones(400, dtype=torch.bool))
    torch.testing.assert_close(odds, line.apply(score), atol=5e-3, rtol=5e-3)

    def replaced(i: int, weight: float) -> int:
        likely, quality = slow_posterior(i, weight), float(odds[i].sigmoid())
        others = [c for c in range(3) if c != y[i]]
        best = max(others, key=likely.__getitem__)
        return best if (1 - quality) * likely[best] / sum(likely[c] for c in others) > quality else y[i]

    for_labels, for_targets = (
        [replaced(i, weight) for i in range(400)] for weight in (state.label_weight, state.target_weight)
    )
    assert suggested.tolist() == for_labels != y
    assert for_targets != y


def test_a_changed_label_is_as_likely_as_the_given_one_is_not() -> None:
    log_probs, labels = views()
    state = update_posterior(log_probs, labels, 0.2, torch.ones(3, dtype=torch.bool), CONFIDENT, trust=1.0)
    log_odds = torch.linspace(-3, 3, 60, dtype=torch.float64)
    log_odds[50] = torch.nan
    corrected, confidence = state.correct(slice(None), labels, log_odds)
    likely = state.posterior(slice(None), labels, state.label_weight).double()
    for i in range(60):
        quality = float(log_odds[i].sigmoid())
        others = [float(likely[i, c]) for c in range(3) if c != labels[i]]
        of_other = (1 - quality) * max(others) / sum(others)
        assert bool(corrected[i] != labels[i]) == (of_other > quality)
        expected = max(quality, of_other)
        assert float(confidence[i]) == pytest.approx(1.0 if i == 50 else expected, abs=1e-5)


def test_targets_are_the_posterior_sharpened() -> None:
    log_probs, labels = views()
    state = update_posterior(log_probs, labels, 0.2, torch.ones(3, dtype=torch.bool), CONFIDENT, trust=1.0)
    likely = state.posterior(slice(None), labels, state.target_weight).double()
    targets = state.targets(slice(None), labels)
    for i, row in enumerate(likely.tolist()):
        total = sum(p**1.5 for p in row)
        assert targets[i].tolist() == pytest.approx([p**1.5 / total for p in row], abs=1e-5)
    assert torch.equal(targets.argmax(1), likely.argmax(1))  # no target changes sides
    assert bool((targets.amax(1) >= likely.amax(1) - 1e-6).all())
    state.log_probs[:], state.informative[:] = math.log(1 / 3), 0.0
    torch.testing.assert_close(state.targets(slice(None), labels), torch.full((60, 3), 1 / 3))  # uniform stays uniform


def test_the_expected_error_is_that_by_hand() -> None:
    log_probs, labels = views()
    state = update_posterior(
        log_probs, labels, 0.2, torch.ones(3, dtype=torch.bool), CONFIDENT, trust=1.0, ordinal=True
    )
    log_odds = torch.linspace(-3, 3, 60, dtype=torch.float64)
    likely = state.posterior(slice(None), labels, state.label_weight).tolist()
    for i, error in enumerate(state.expected_error(slice(None), labels, log_odds).tolist()):
        others = {abs(c - int(labels[i])): 0.0 for c in range(3) if c != labels[i]}
        for c in {0, 1, 2} - {int(labels[i])}:
            others[abs(c - int(labels[i]))] += likely[i][c]
        mean = sum(distance * p for distance, p in others.items()) / sum(others.values())
        assert error == pytest.approx((1 - float(log_odds[i].sigmoid())) * mean, rel=1e-4)


def test_a_class_without_labels_is_unknown_to_scores() -> None:
    """Its probability is not raised towards that of other classes."""
    random = torch.Generator().manual_seed(0)
    probs = torch.rand(300, 3, generator=random) * torch.tensor([1.0, 1.0, 0.05])
    probs /= probs.sum(1, keepdim=True)
    labels = torch.where(probs[:, 0] > probs[:, 1], 0, 1)
    suggested, odds, _ = score_labels(probs, labels)
    assert 2 not in suggested.tolist()
    assert bool(odds.isfinite().all())


def test_a_single_label_makes_a_class_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[bool]] = []

    def watched(log_probs: Tensor, labels: Tensor, rate: float, known: Tensor, confident: Confident) -> PosteriorState:
        asked.append(known.tolist())
        return update_posterior(log_probs, labels, rate, known, confident)

    monkeypatch.setattr(module, "update_posterior", watched)
    score_labels(torch.full((4, 4), 0.25), torch.tensor([0, 0, 2, 3]))
    assert asked == [[True, False, True, True]]


def test_reviewed_labels_do_not_count_when_log_odds_are_calibrated() -> None:
    log_probs, labels = views(count=200, seed=1)
    state = update_posterior(log_probs, labels, 0.2, torch.ones(3, dtype=torch.bool), CONFIDENT, trust=1.0)
    odds, unreviewed = state.odds(slice(None), labels), torch.arange(200) % 3 > 0
    got = state.fit_scaling(odds, labels, unreviewed)
    torch.testing.assert_close(
        got.shifts, scaling_by_hand(state, odds, labels, unreviewed).shifts, atol=1e-3, rtol=1e-3
    )
    more = replace(state, lapses=torch.full((QUANTILES,), 0.5, dtype=torch.float64))
    assert more.fit_scaling(odds, labels, unreviewed).shifts.max() < got.shifts.max()
    everything = state.fit_scaling(odds, labels, torch.ones(200, dtype=torch.bool))
    assert got.shifts.tolist() != pytest.approx(everything.shifts.tolist(), rel=1e-3)


def test_rows_of_a_state_are_those_of_the_whole() -> None:
    log_probs, labels = views()
    state = update_posterior(log_probs, labels, 0.2, torch.ones(3, dtype=torch.bool), CONFIDENT, trust=1.0)
    assert isinstance(state, PosteriorState)
    part = slice(7, 31)
    torch.testing.assert_close(state.posterior(part, labels, 0.4), state.posterior(slice(None), labels, 0.4)[part])
    torch.testing.assert_close(state.odds(part, labels), state.odds(slice(None), labels)[part])


def test_an_example_that_no_class_explains_scores_lower_than_an_ambiguous_one() -> None:
    """Both have a label that is as likely as the second class; one of them is like the eight others, too."""
    clear = torch.tensor([0.49, 0.49, *[0.0025] * 8])
    log_probs = torch.stack([clear, torch.tensor([0.11, 0.11, *[0.0975] * 8])]).log().repeat(30, 1)
    labels = torch.zeros(60, dtype=torch.long)
    state = update_posterior(log_probs, labels, 0.0, torch.ones(10, dtype=torch.bool), CONFIDENT, trust=1.0)
    ambiguous, of_no_class = state.odds(slice(0, 2), labels)
    assert of_no_class < ambiguous + math.log(0.11 / 0.49) + 0.1


@pytest.mark.parametrize("e", [0.0, 0.25])
def test_a_fitted_transition_is_that_by_hand(e: float) -> None:
    log_probs, labels = views()
    M, u, likelihood = slow_fit(log_probs.double().exp().tolist(), labels.tolist(), e)
    got = fit_transition(log_probs, labels, e)
    torch.testing.assert_close(got.log_matrix.exp(), torch.tensor(M), atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(got.informative, torch.tensor(u), atol=1e-5, rtol=1e-3)
    assert got.log_likelihood == pytest.approx(likelihood, abs=1e-5)


def test_rounds_of_the_transition_are_five() -> None:
    log_probs, labels = views()
    share = informative_prob(log_probs, labels, 0.1)
    M = slow_transition(log_probs.double().exp().tolist(), labels.tolist(), share.tolist(), 0.5, 5)
    torch.testing.assert_close(
        estimate_transition(log_probs, labels, share, 0.5).exp(), torch.tensor(M), atol=1e-5, rtol=0
    )


def test_inequality_within_sampling_error_is_not_trusted() -> None:
    """It is compared with (k - 1) / (2 n (1 - e)^2): just below none of it counts, just above it does."""
    probs = torch.tensor([[0.98, 0.02], [0.98, 0.02], [0.02, 0.98]])
    inequality = sum(share * math.log(2 * share) for share in (1.98 / 3, 1.02 / 3))
    known, times = torch.tensor([True, True]), 20
    limit = 1 - math.sqrt(1 / (2 * 3 * times * inequality))  # the uniform noise rate at which both are equal
    log_probs, labels = probs.log().repeat(times, 1), torch.tensor([0, 0, 1]).repeat(times)
    assert prior_trust(log_probs.clone(), labels, limit + 0.01, known) == 0
    assert prior_trust(log_probs.clone(), labels, limit - 0.01, known) > 0


def test_unknown_classes_do_not_count_as_unequal() -> None:
    """Two equal known classes and a rare unknown one: nothing is unequal; among three classes much would be."""
    probs = torch.tensor([[0.95, 0.049, 0.001], [0.049, 0.95, 0.001]]).repeat(600, 1)
    labels = torch.arange(1200) % 2
    assert prior_trust(probs.log(), labels, 0.0, torch.tensor([True, True, False])) == 0
    assert prior_trust(probs.log(), labels, 0.0, torch.tensor([True, True, True])) > 0
    skewed = torch.tensor([[0.95, 0.046, 0.004], [0.95, 0.046, 0.004], [0.02, 0.976, 0.004]])
    mean, k = skewed.mean(0).tolist(), 2
    inequality = sum(share * math.log(k * share) for share in mean[:2])
    limit = 1 - math.sqrt((k - 1) / (2 * 60 * inequality))
    given, known = torch.tensor([0, 0, 1]).repeat(20), torch.tensor([True, True, False])
    assert prior_trust(skewed.log().repeat(20, 1), given, limit + 0.01, known) == 0
    assert prior_trust(skewed.log().repeat(20, 1), given, limit - 0.01, known) > 0


def test_a_tempered_prior_leaves_unknown_classes_alone() -> None:
    prior, known = [0.5, 0.2, 0.2, 0.1], [True, True, False, True]
    powers = [share**0.4 if kept else 0.0 for share, kept in zip(prior, known, strict=True)]
    expected = [0.8 * power / sum(powers) if power else share for power, share in zip(powers, prior, strict=True)]
    assert temper_prior(torch.tensor(prior), 0.4, torch.tensor(known)).tolist() == pytest.approx(expected)


def test_what_a_label_store_hands_out_is_a_copy() -> None:
    store = LabelStore(torch.tensor([0, 1, 2]), 3, torch.tensor([-1, 2, -1]))
    for handed_out in (store.given, store.initial, store.trusted):
        handed_out.fill_(1)
    assert (store.given.tolist(), store.initial.tolist()) == ([0, 1, 2], [0, 2, 2])
    assert store.trusted.tolist() == [False, True, False]
    mine = torch.tensor([0, 1, 2])
    store = LabelStore(mine, 3)
    mine.fill_(0)
    saved = store.state_dict()
    store.change(1, torch.tensor([0]), torch.tensor([2]), torch.ones(1))
    assert (store.given.tolist(), store.initial.tolist(), store.current.tolist()) == ([0, 1, 2], [0, 1, 2], [2, 1, 2])
    assert saved["current"].tolist() == [0, 1, 2]
