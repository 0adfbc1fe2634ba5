"""PMD noise against loops written from section 4.2: probabilities, expected rate, solved factor, drawn labels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unflip.compute import generator
from unflip.errors import InputError
from unflip.noise.pmd import (
    check_posterior,
    draw_evenly,
    expected_rate,
    keep_probability,
    pmd,
    rho,
    solve_factor,
    top_two,
)


def made_up(n: int, k: int, *, sharpness: float = 3.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Posteriors, and clean labels drawn from them: u mostly, s at times, another class now and then."""
    posterior = (sharpness * torch.randn(n, k, generator=generator(seed, "posterior"))).softmax(dim=1)
    clean = torch.multinomial(posterior, 1, generator=generator(seed, "clean")).squeeze(1)
    return posterior, clean


def slow_rho(kind: int, m: float) -> float:
    if kind == 1:
        return -1 / 2 * m**2 + 1 / 2
    if kind == 2:
        return 1 - m**3
    return 1 - 1 / 3 * (m**3 + m**2 + m)


def slow_expected_rate(posterior: Tensor, clean: Tensor, kind: int, factor: float) -> float:
    wrong = 0.0
    for row, label in zip(posterior.double().tolist(), clean.tolist(), strict=True):
        u, s = sorted(range(len(row)), key=lambda c: (-row[c], c))[:2]
        keep = min(1.0, (1 - slow_rho(kind, row[u] - row[s])) / factor)
        wrong += keep * (label != u) + (1 - keep) * (label != s)
    return wrong / len(clean)


def test_top_two_is_sorting_with_the_lower_id_first() -> None:
    posterior, _ = made_up(500, 6)
    posterior[:100] = (posterior[:100] * 4).round() / 4  # many ties
    top = top_two(posterior)
    for i, row in enumerate(posterior.tolist()):
        u, s = sorted(range(6), key=lambda c: (-row[c], c))[:2]
        assert (int(top.first[i]), int(top.second[i])) == (u, s)
        assert float(top.margin[i]) == row[u] - row[s]


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_rho_is_the_formula(kind: int) -> None:
    margin = torch.linspace(0, 1, 101, dtype=torch.float64)
    slow = torch.tensor([slow_rho(kind, m) for m in margin.tolist()], dtype=torch.float64)
    torch.testing.assert_close(rho(margin, kind=kind), slow, atol=1e-15, rtol=1e-14)


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("factor", [0.2, 1, 1.43, 3.4])
@pytest.mark.parametrize("k", [2, 5])
def test_expected_rate_is_that_of_the_slow_reference(kind: int, factor: float, k: int) -> None:
    posterior, clean = made_up(300, k)
    top = top_two(posterior)
    rate = expected_rate(top, clean, keep_probability(top.margin, kind=kind, factor=factor))
    assert rate == pytest.approx(slow_expected_rate(posterior, clean, kind, factor), abs=1e-12)


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("level", [0.35, 0.7])
@pytest.mark.parametrize("k", [2, 10, 100])
def test_expected_and_drawn_rate_meet_the_level(kind: int, level: float, k: int) -> None:
    posterior, clean = made_up(10_000, k, sharpness=8.0)
    drawn, factor, expected = pmd(clean, posterior, kind=kind, level=level, generator=generator(0))
    assert slow_expected_rate(posterior, clean, kind, factor) == pytest.approx(level, abs=1e-3)
    assert expected == pytest.approx(level, abs=1e-3)
    assert float((drawn != clean).double().mean()) == pytest.approx(level, abs=5e-3)


def test_drawn_rate_meets_the_level_whatever_the_seed() -> None:
    posterior, clean = made_up(10_000, 10, sharpness=8.0)
    for seed in range(50):
        drawn = pmd(clean, posterior, kind=1, level=0.5, generator=generator(seed))[0]
        assert abs(float((drawn != clean).double().mean()) - 0.5) < 1e-3


def test_every_label_is_u_or_s() -> None:
    posterior, clean = made_up(2000, 10)
    drawn = pmd(clean, posterior, kind=3, level=0.6, generator=generator(0))[0]
    top = top_two(posterior)
    assert ((drawn == top.first) | (drawn == top.second)).all()


def test_each_example_keeps_u_with_its_own_probability() -> None:
    posterior, clean = made_up(200, 4)
    repeats = 400
    kept = torch.zeros(200)
    for seed in range(repeats):
        drawn, factor, _ = pmd(clean, posterior, kind=1, level=0.55, generator=generator(seed))
        kept += drawn == top_two(posterior).first
    keep = keep_probability(top_two(posterior).margin, kind=1, factor=factor)
    deviation = (kept / repeats - keep) / (keep * (1 - keep) / repeats).sqrt()
    assert float(deviation.abs().max()) < 4.5  # of 200 normal deviates; exceeded once in a thousand
    assert float(deviation.square().mean()) == pytest.approx(1, abs=0.4)  # four standard errors of 200 squares


def test_same_seed_same_labels_on_any_number_of_threads() -> None:
    posterior, clean = made_up(50_000, 14)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(pmd(clean, posterior, kind=2, level=0.6, generator=generator(5)))
    finally:
        torch.set_num_threads(threads)
    assert results[0][1] == results[1][1]
    assert torch.equal(results[0][0], results[1][0])
    other = pmd(clean, posterior, kind=2, level=0.6, generator=generator(6))
    assert not torch.equal(results[0][0], other[0])


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), min_size=1, max_size=12),
    st.floats(0.01, 0.99),
)
def test_solved_factor_meets_any_reachable_level(kind: int, examples: list[tuple[int, int]], level: float) -> None:
    """Few examples, margins that repeat or are 0 or 1, clean labels that are u, s or neither."""
    margins = torch.tensor([m / 8 for m, _ in examples], dtype=torch.float64)
    posterior = torch.stack([(1 + margins) / 2, (1 - margins) / 2, 0 * margins], dim=1)
    clean = torch.tensor([label for _, label in examples])
    grid = [slow_expected_rate(posterior, clean, kind, 10 ** (e / 8)) for e in range(-48, 49)]
    try:
        factor = solve_factor(top_two(posterior), clean, kind=kind, level=level)
    except InputError:
        assert not min(grid) <= level <= max(grid)
    else:
        assert slow_expected_rate(posterior, clean, kind, factor) == pytest.approx(level, abs=1e-4)


def test_of_several_factors_the_one_nearest_1_is_taken() -> None:
    # A wide margin whose clean label is u, a narrow one whose clean label is s: the rate falls, then rises.
    margins = torch.tensor([1.0, 0.5], dtype=torch.float64)
    posterior = torch.stack([(1 + margins) / 2, (1 - margins) / 2], dim=1)
    top, clean = top_two(posterior), torch.tensor([0, 1])
    for factor in (0.875 / 0.6, 0.0625 / 0.2):
        assert slow_expected_rate(posterior, clean, 2, factor) == pytest.approx(0.2)
    assert solve_factor(top, clean, kind=2, level=0.2) == pytest.approx(0.875 / 0.6, rel=1e-5)


@pytest.mark.parametrize(("kind", "level"), [(1, 0.01), (2, 0.01), (3, 0.995)])
def test_a_level_out_of_reach_says_the_range(kind: int, level: float) -> None:
    posterior, clean = made_up(2000, 5)
    with pytest.raises(InputError, match=rf"pmd{kind}: level {level} cannot be reached.*reachable: 0\.\d+ to 0\.\d+"):
        pmd(clean, posterior, kind=kind, level=level, generator=generator(0))


def test_ends_of_the_reachable_range_are_those_of_all_s_and_all_u() -> None:
    posterior, clean = made_up(2000, 5)
    top = top_two(posterior)
    lowest, highest = float((clean != top.first).double().mean()), float((clean != top.second).double().mean())
    for level in (lowest + 1e-3, highest - 1e-3):
        factor = solve_factor(top, clean, kind=1, level=level)
        assert slow_expected_rate(posterior, clean, 1, factor) == pytest.approx(level, abs=1e-4)


def test_posteriors_without_any_margin_reach_one_level_only() -> None:
    posterior, clean = torch.full((10, 2), 0.5), torch.zeros(10, dtype=torch.long)
    with pytest.raises(InputError, match=r"reachable: 1\.0000 to 1\.0000"):
        pmd(clean, posterior, kind=2, level=0.5, generator=generator(0))
    assert pmd(clean, posterior, kind=2, level=1.0, generator=generator(0))[0].tolist() == [1] * 10


def test_unknown_type_is_refused() -> None:
    with pytest.raises(InputError, match="PMD type 4 does not exist; choose from 1, 2, 3"):
        rho(torch.zeros(1), kind=4)


def test_even_draws_count_right_in_every_group() -> None:
    probability = torch.rand(1000, generator=generator(0, "p"), dtype=torch.float64)
    probability[:20], probability[20:40] = 0, 1
    group = torch.randint(3, (1000,), generator=generator(0, "g"))
    for seed in range(20):
        drawn = draw_evenly(probability, group, generator(seed))
        assert not drawn[:20].any()
        assert drawn[20:40].all()
        for g in range(3):
            assert abs(int(drawn[group == g].sum()) - float(probability[group == g].sum())) < 1 + 1e-6


def bad_posterior(row: int, column: int, value: float) -> Tensor:
    posterior = torch.full((6, 3), 1 / 3)
    posterior[row, column] = value
    return posterior


@pytest.mark.parametrize(
    ("posterior", "message"),
    [
        (bad_posterior(2, 1, -0.1), "its smallest value is -0.1; rows must sum to 1 within 0.001 and not be negative"),
        (bad_posterior(3, 0, float("nan")), "row 3 sums to nan"),
        (bad_posterior(3, 0, float("inf")), "row 3 sums to inf"),
        (bad_posterior(4, 2, 0.5), "row 4 sums to 1.166667"),
        (torch.full((5, 3), 1 / 3), "shape (5, 3); expected (6, 3)"),
        (torch.full((6, 4), 1 / 4), "shape (6, 4); expected (6, 3)"),
        (torch.full((6,), 1.0), "shape (6,); expected (6, 3)"),
        (torch.ones(6, 3, dtype=torch.long), "row 0 sums to 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_posteriors_are_refused(posterior: Tensor, message: str) -> None:
    with pytest.raises(InputError) as error:
        check_posterior(posterior, 6, 3)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_half_precision_posteriors_will_do() -> None:
    posterior, clean = made_up(1000, 10)
    drawn = pmd(clean, check_posterior(posterior.half(), 1000, 10), kind=1, level=0.5, generator=generator(0))
    assert drawn[1] > 0
    assert drawn[2] == pytest.approx(0.5, abs=1e-3)
