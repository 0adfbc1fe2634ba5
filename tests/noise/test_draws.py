"""Draws by hand: systematic sampling, steps of a recipe one after the other, and values exactly at a border."""

from collections import Counter
from itertools import combinations

import pytest
import torch
from torch import Tensor

from definition_1 import BinaryPmd, smallest_c1
from unflip.compute import generator
from unflip.errors import ConfigError, InputError
from unflip.noise.corrupt import ClassRelations, corrupt
from unflip.noise.pmd import check_posterior, draw_evenly, solve_factor, top_two
from unflip.noise.recipe import parse
from unflip.noise.transition import apply_matrix, check_labels, check_matrix, cycle_map, pair, pairs_map, symmetric

CLEAN = torch.randint(4, (3001,), generator=generator(0, "clean"))


def slow_even_draws(probability: list[float], group: list[int], draws: torch.Generator) -> list[bool]:
    """Walk along a line of intervals in random order, group by group, and draw those that hold a whole number."""
    order = torch.randperm(len(group), generator=draws).tolist()
    order = [i for g in sorted(set(group)) for i in order if group[i] == g]
    end = int(torch.randint(1 << 32, (1,), generator=draws))
    drawn = [False] * len(group)
    for i in order:
        start, end = end, end + round(probability[i] * (1 << 32))
        drawn[i] = start >> 32 < end >> 32
    return drawn


def test_even_draws_are_those_of_a_walk() -> None:
    random = generator(0, "chances")
    probability = torch.rand(50, generator=random, dtype=torch.float64)
    group = torch.randint(3, (50,), generator=random)
    for seed in range(20):
        expected = slow_even_draws(probability.tolist(), group.tolist(), generator(seed))
        assert draw_evenly(probability, group, generator(seed)).tolist() == expected


def test_even_draws_start_anywhere_and_in_any_order() -> None:
    alone, nobody = torch.tensor([0.3], dtype=torch.float64), torch.zeros(1, dtype=torch.int)
    share = sum(bool(draw_evenly(alone, nobody, generator(seed))) for seed in range(400)) / 400
    assert share == pytest.approx(0.3, abs=0.1)
    half, group = torch.full((4,), 0.5, dtype=torch.float64), torch.zeros(4, dtype=torch.int)
    drawn = Counter(tuple(draw_evenly(half, group, generator(seed)).nonzero()[:, 0].tolist()) for seed in range(200))
    assert set(drawn) == set(combinations(range(4), 2))


def test_the_nearest_factor_is_not_always_the_first() -> None:
    """The rate is 1 - 0.6 w below w = 1 and 0.4 w above it, halved: 0.35 at w = 0.5 and, nearer to 1, at w = 1.75."""
    margins = torch.tensor([1.0, 0.4 ** (1 / 3)], dtype=torch.float64)
    top = top_two(torch.stack([(1 + margins) / 2, (1 - margins) / 2], dim=1))
    clean = torch.tensor([0, 1])
    assert solve_factor(top, clean, kind=2, level=0.35) == pytest.approx(1 / 1.75, rel=1e-5)
    assert solve_factor(top, clean, kind=2, level=0.29) == pytest.approx(1 / 0.7, rel=1e-5)  # 1.45 is farther


def test_each_step_draws_from_its_own_generator() -> None:
    recipe = parse("sym:0.3 + sym:0.3 + pair:0.2")
    expected = CLEAN
    for position, (name, matrix) in enumerate((("sym", symmetric(4, 0.3)),) * 2 + (("pair", pair(4, 0.2)),)):
        expected = apply_matrix(expected, matrix, generator(7, "noise", position, name))
    assert torch.equal(corrupt(recipe, CLEAN, num_classes=4, seed=7).labels, expected)


def test_rates_are_measured_against_the_clean_labels_and_changes_against_the_previous_ones() -> None:
    base = apply_matrix(CLEAN, pair(4, 0.5), generator(1))
    noisy = corrupt(parse("sym:0.2 + asym:0.4"), CLEAN, num_classes=4, seed=0, base_labels=base,
                    relations=ClassRelations(class_map={1: 2}))  # fmt: skip
    middle = apply_matrix(base, symmetric(4, 0.2), generator(0, "noise", 0, "sym"))
    first, second = noisy.provenance["steps"]
    assert first["realized"] == round(float((middle != base).double().mean()), 6)
    assert first["noise_rate"] == round(first["noise_rate"], 6) != float((middle != CLEAN).double().mean())
    assert first["noise_rate"] == pytest.approx(float((middle != CLEAN).double().mean()), abs=1e-6)
    assert first["noise_rate"] > 0.45 > 0.25 > first["realized"]
    ones = middle == 1
    assert second["realized"] == pytest.approx(float((noisy.labels[ones] != 1).double().mean()), abs=1e-6)
    assert noisy.provenance["noise_rate"] == pytest.approx(float((noisy.labels != CLEAN).double().mean()), abs=1e-6)


def test_a_step_that_can_change_nothing_realizes_nothing() -> None:
    noisy = corrupt(parse("asym:0.4"), torch.zeros(5, dtype=torch.long), num_classes=3, seed=0,
                    relations=ClassRelations(class_map={1: 2}))  # fmt: skip
    assert noisy.provenance["steps"][0]["realized"] == 0.0


def test_a_cycle_goes_to_the_next_class() -> None:
    assert cycle_map([0, 0, 0]) == {0: 1, 1: 2, 2: 0}
    assert cycle_map([1, 0, 1, 0, 1]) == {1: 3, 3: 1, 0: 2, 2: 4, 4: 0}
    noisy = corrupt(parse("asym-cycle:0.999"), torch.arange(3).repeat(9), num_classes=3, seed=0,
                    relations=ClassRelations(superclasses=[5, 5, 5]))  # fmt: skip
    assert noisy.provenance["steps"][0]["class_map"] == {"0": 1, "1": 2, "2": 0}
    pairs = pairs_map([5, 5, 5], generator(0, "noise", 0, "asym-pairs"))
    noisy = corrupt(parse("asym-pairs:0.5"), torch.arange(3).repeat(9), num_classes=3, seed=0,
                    relations=ClassRelations(superclasses=[5, 5, 5]))  # fmt: skip
    assert noisy.provenance["steps"][0]["class_map"] == {str(key): value for key, value in sorted(pairs.items())}


@pytest.mark.parametrize(
    ("uniform", "drawn"), [(0.0, [0, 1, 0]), (0.25, [1, 1, 0]), (0.5, [2, 2, 0]), (0.75, [2, 2, 1])]
)
def test_a_number_at_the_border_of_two_classes_draws_the_upper_one(
    monkeypatch: pytest.MonkeyPatch, uniform: float, drawn: list[int]
) -> None:
    """As u < P(class 0) draws class 0; and a class of probability 0 is not drawn by 0 itself."""

    def chosen(count: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        return torch.full((count,), uniform, dtype=dtype)

    monkeypatch.setattr(torch, "rand", chosen)
    matrix = torch.tensor([[0.25, 0.25, 0.5], [0.0, 0.5, 0.5], [0.75, 0.25, 0.0]], dtype=torch.float64)
    assert apply_matrix(torch.arange(3), matrix, generator(0)).tolist() == drawn


def test_definition_1_holds_at_its_border() -> None:
    noise = BinaryPmd(t0=0.25, c1=2.0, c2=1.0, level=0.5)
    eta = torch.tensor([0.25, 0.2500001, 0.75, 0.7499999], dtype=torch.float64)
    assert noise.rho_01(eta).tolist() == [2 * 0.25**2, 0.5, 0.5, 0.5]
    assert noise.rho_10(eta).tolist() == [0.5, 0.5, 2 * 0.25**2, 0.5]
    assert smallest_c1(torch.tensor([0.25]), torch.tensor([0.5]), t0=0.25, c2=1.0) == pytest.approx(8)
    assert smallest_c1(torch.tensor([0.2500001]), torch.tensor([0.5]), t0=0.25, c2=1.0) == 0
    assert smallest_c1(torch.tensor([0.0, 0.1]), torch.tensor([0.0, 0.1]), t0=0.25, c2=1.0) == pytest.approx(10)


def test_a_flip_of_probability_0_or_1_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    for low in (0.0, 0.9999999):
        monkeypatch.setattr(torch, "rand", lambda *_, low=low, **__: torch.full((2,), low, dtype=torch.float64))
        sure = BinaryPmd(t0=0.25, c1=2.0, c2=1.0, level=1.0)
        assert sure.draw(torch.tensor([0, 1]), torch.tensor([0.0, 0.5]), generator(0)).tolist() == [0, 0]


def test_binary_labels_are_flipped_by_one_number_each_in_double_precision() -> None:
    noise, random = BinaryPmd(t0=0.1, c1=2.0, c2=1.0, level=0.4), generator(2, "eta")
    eta = torch.rand(200, generator=random, dtype=torch.float64)
    clean = torch.randint(2, (200,), generator=random)
    uniform = torch.rand(200, generator=generator(3), dtype=torch.float64).tolist()
    expected = []
    for e, label, u in zip(eta.tolist(), clean.tolist(), uniform, strict=True):
        minor = 1 - e if label else e
        flip = min(0.4, 2 * minor**2) if minor <= 0.4 else 0.4
        expected.append(1 - label if u < flip else label)
    assert noise.draw(clean, eta, generator(3)).tolist() == expected


def test_a_level_of_one_is_no_percentage() -> None:
    with pytest.raises(ConfigError) as error:
        parse("sym:1")
    assert str(error.value).endswith("level 1 is outside (0, 1)")
    with pytest.raises(ConfigError, match=r"try sym:0\.3"):
        parse("sym:30")


def test_errors_name_the_labels_and_rows_that_are_wrong() -> None:
    with pytest.raises(InputError, match="clean labels: row 1 holds class 5"):
        corrupt(parse("sym:0.2"), torch.tensor([0, 5]), num_classes=3, seed=0)
    with pytest.raises(InputError, match="base labels: row 0 holds class 4"):
        corrupt(parse("sym:0.2"), torch.tensor([0, 1]), num_classes=3, seed=0, base_labels=torch.tensor([4, 0]))
    with pytest.raises(InputError, match=r"row 1 sums to 0\.9"):
        check_posterior(torch.tensor([[0.5, 0.5], [0.4, 0.5]]), 2, 2)
    assert check_posterior(torch.tensor([[0.5, 0.5005], [1.0, 0.0]]).half(), 2, 2).dtype == torch.float32
    assert symmetric(3, 0.2).dtype == torch.float64


def test_limits_of_labels_and_matrices() -> None:
    assert check_labels(torch.tensor([0, 1]), 2).tolist() == [0, 1]
    with pytest.raises(InputError, match="row 1 holds class 2"):
        check_labels(torch.tensor([0, 2]), 2)
    with pytest.raises(InputError, match="num_classes is 1"):
        check_labels(torch.tensor([0]), 1)
    nearly = check_matrix(torch.tensor([[0.5, 0.5000005], [0.0, 1.0]], dtype=torch.float64))
    assert nearly.sum(1).tolist() == pytest.approx([1, 1], abs=1e-15)
    with pytest.raises(InputError, match="row 0 sums to"):
        check_matrix(torch.tensor([[0.5, 0.500002], [0.0, 1.0]], dtype=torch.float64))
