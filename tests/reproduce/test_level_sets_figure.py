"""Pure level sets: fast against slow, closed forms, and Lemma 1's promise kept where its premise holds."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from definition_1 import BinaryPmd
from level_sets_figure import Constants, draw_level_sets, largest_noise, measure, pure_size, running_mean, simulate

NOISE = BinaryPmd(t0=0.3, c1=1.0, c2=1.0, level=0.6)


def spread(examples: int) -> torch.Tensor:
    return (torch.arange(examples, dtype=torch.float64) + 0.5) / examples


def test_running_mean_is_the_mean_of_each_window() -> None:
    values = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slow = [values[max(0, i - 7) : i + 8].mean() for i in range(50)]
    torch.testing.assert_close(running_mean(values, 7), torch.stack(slow))


def test_pure_size_against_trying_every_threshold() -> None:
    eta = spread(40)
    right = torch.rand(40, generator=torch.Generator().manual_seed(1)) < 0.9
    distances = (eta - 0.5).abs()
    pure = [float(d) for d in distances if bool(right[distances > d].all())]
    assert pure_size(eta, right) == pytest.approx(0.5 - min(pure))
    assert pure_size(eta, torch.ones(40, dtype=torch.bool)) == 0.5


def test_constants_are_the_smallest_that_are_consistent() -> None:
    examples = 60
    random = torch.Generator().manual_seed(2)
    eta = spread(examples)
    f = (eta + 0.2 * torch.randn(examples, generator=random, dtype=torch.float64)).clamp(0, 1)
    wrong = (torch.rand(examples, generator=random) < 0.4) & ((eta - 0.5).abs() < 0.35)
    found = measure(eta, f, wrong, 0.5)

    distances = (eta - 0.5).abs()
    errors = [abs(float(f[i] - eta[i])) for i in range(examples)]
    # of equally confident examples the lower id is counted first
    rank = sorted(range(examples), key=lambda i: (-float(distances[i]), i))
    share = {i: sum(bool(wrong[j]) for j in rank[: place + 1]) / (place + 1) for place, i in enumerate(rank)}
    v = max(errors[i] for i in range(examples) if share[i] == 0)
    beta = max((errors[i] - v) / share[i] for i in range(examples) if share[i] > 0)
    assert (found.v, found.beta) == pytest.approx((v, beta))
    assert all(errors[i] <= found.beta * share[i] + found.v + 1e-12 for i in range(examples))


def test_the_largest_noise_has_a_closed_form_where_noise_is_unrestricted() -> None:
    """There a label is wrong with probability eta * level + (1 - eta) * (1 - level), largest at the edge."""
    assert largest_noise(spread(10_000), NOISE, pure=0.25) == pytest.approx(0.75 * 0.6 + 0.25 * 0.4, abs=1e-3)


def test_at_first_the_classifier_is_right_where_noise_is_restricted() -> None:
    """With a narrow window f is the noisy posterior, which crosses 1/2 at 1/2 +- t0 and nowhere beyond."""
    (first,) = simulate(1, examples=200_000, bandwidth=0.004, noise=NOISE)
    assert 0.5 - first.pure == pytest.approx(NOISE.t0, abs=0.004)


def test_the_window_moves_the_edge_as_far_as_its_share_of_right_labels_says() -> None:
    """Where labels beyond e are right and before it wrong with probability w, f is right from e + h - h / w on."""
    h, e, w, examples = 0.05, 0.8, 0.6, 100_000
    eta = spread(examples)
    chance = torch.where(eta >= e, 1.0, 1 - w)
    f = running_mean(chance, round(h * examples))
    edge = float(eta[(f >= 0.5) & (eta > 0.5 + h)].min())
    assert edge == pytest.approx(e + h - h / w, abs=1e-3)


def test_lemma_1_is_kept_wherever_it_promises() -> None:
    rounds = simulate(40, examples=20_000)
    promised = [(before.constants.promised(before.start), after.pure) for before, after in pairwise(rounds)]
    kept = [after >= least for least, after in promised if least is not None]
    assert len(kept) > 20
    assert all(kept)
    assert rounds[-1].pure > 2 * rounds[0].pure
    assert [r.threshold for r in rounds] == sorted((r.threshold for r in rounds), reverse=True)


def test_nothing_is_promised_without_the_premise() -> None:
    constants = Constants(v=0.2, beta=2.0, xi=0.5)
    assert constants.promised(0.1) == pytest.approx((1 + 0.5 * 0.2 / 2.0) * 0.1)
    assert constants.promised(0.195) == pytest.approx(0.2)  # no farther than tau = 3 xi v
    assert constants.promised(0.25) is None  # tau = 0.25 < 3 xi v = 0.3
    assert constants.promised(0.0) is None  # tau must be below 1/2
    assert Constants(v=0.2, beta=0.0, xi=0.5).promised(0.1) == pytest.approx(0.2)


def test_the_proof_carries_less_far_than_the_premise() -> None:
    constants = Constants(v=0.2, beta=2.0, xi=0.5)
    bound = 0.2 * (1 + 2 * 0.5 / (1 + 2 * 0.2 / 2.0))  # of |f - eta|, as the proof has it before its last step
    assert bound > 3 * 0.5 * 0.2
    for pure in (0.1, 0.11, 0.12, 0.13, 0.14, 0.15):
        promised = constants.promised(pure)
        assert promised is not None
        assert constants.follows(pure) == (bound <= 0.5 - promised)
    assert constants.follows(0.1)
    assert not constants.follows(0.15)


def test_the_same_seed_gives_the_same_rounds() -> None:
    assert simulate(3, examples=2000, seed=1) == simulate(3, examples=2000, seed=1)
    assert simulate(3, examples=2000, seed=1) != simulate(3, examples=2000, seed=2)


def test_both_panels_are_drawn(tmp_path: Path) -> None:
    draw_level_sets(tmp_path / "l.svg", simulate(12, examples=5000))
    assert "<!-- Growth per round -->" in (tmp_path / "l.svg").read_text()
