"""Transition matrices against loops written from the formulas, and the labels drawn from them against chi-square."""

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from unflip.compute import generator
from unflip.engine.scoring import transition_matrix
from unflip.errors import InputError
from unflip.noise.transition import apply_matrix, asymmetric, check_labels, pair, symmetric


def slow_symmetric(k: int, level: float) -> list[list[float]]:
    return [[1 - level if i == j else level / (k - 1) for j in range(k)] for i in range(k)]


def slow_draw(labels: list[int], matrix: Tensor, uniform: list[float]) -> list[int]:
    drawn = []
    for label, u in zip(labels, uniform, strict=True):
        total, target = 0.0, 0
        for target, p in enumerate(matrix[label].tolist()):  # noqa: B007 (the last target is the result)
            total += p
            if u < total:
                break
        drawn.append(target)
    return drawn


@pytest.mark.parametrize("k", [2, 3, 10])
def test_symmetric_is_the_formula(k: int) -> None:
    torch.testing.assert_close(symmetric(k, 0.3), torch.tensor(slow_symmetric(k, 0.3), dtype=torch.float64))


def test_asymmetric_moves_only_mapped_classes() -> None:
    matrix = asymmetric(4, 0.4, {0: 2, 2: 0})
    assert matrix.tolist() == [[0.6, 0, 0.4, 0], [0, 1, 0, 0], [0.4, 0, 0.6, 0], [0, 0, 0, 1]]


def test_pair_goes_round() -> None:
    assert pair(3, 0.25).tolist() == [[0.75, 0.25, 0], [0, 0.75, 0.25], [0.25, 0, 0.75]]


def test_drawn_labels_are_those_of_the_slow_reference() -> None:
    matrix = torch.rand(7, 7, generator=generator(0, "matrix"), dtype=torch.float64)
    matrix[2] = torch.eye(7, dtype=torch.float64)[5]
    matrix /= matrix.sum(dim=1, keepdim=True)
    labels = torch.randint(7, (2000,), generator=generator(0, "labels"))
    uniform = torch.rand(2000, generator=generator(1))
    assert apply_matrix(labels, matrix, generator(1)).tolist() == slow_draw(labels.tolist(), matrix, uniform.tolist())


@pytest.mark.parametrize(
    "matrix",
    [symmetric(5, 0.4), pair(5, 0.3), asymmetric(5, 0.2, {1: 3}), symmetric(2, 0.45)],
    ids=["symmetric", "pair", "asymmetric", "two classes"],
)
def test_chi_square_of_the_realized_matrix(matrix: Tensor) -> None:
    k, per_class = len(matrix), 20_000
    clean = torch.arange(k).repeat_interleave(per_class)
    counts = transition_matrix(clean, apply_matrix(clean, matrix, generator(3)), k) * per_class
    expected = matrix * per_class
    possible = expected > 0
    assert (counts[~possible] == 0).all()
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    degrees = int(possible.sum()) - k  # every row's counts add up to per_class
    assert chi2.ppf(1e-4, degrees) < statistic < chi2.ppf(1 - 1e-4, degrees)


def test_the_chi_square_test_notices_a_wrong_matrix() -> None:
    clean = torch.arange(5).repeat_interleave(20_000)
    counts = transition_matrix(clean, apply_matrix(clean, symmetric(5, 0.42), generator(3)), 5) * 20_000
    expected = symmetric(5, 0.4) * 20_000
    assert float(((counts - expected) ** 2 / expected).sum()) > chi2.ppf(1 - 1e-4, 20)


def test_a_class_of_probability_zero_is_never_drawn() -> None:
    matrix = torch.tensor([[0.0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]])
    drawn = apply_matrix(torch.arange(3).repeat(10_000), matrix, generator(0)).reshape(-1, 3)
    assert drawn[:, 0].unique().tolist() == [1]
    assert drawn[:, 1].unique().tolist() == [0, 2]
    assert drawn[:, 2].unique().tolist() == [1]


def test_nor_by_a_uniform_number_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.zeros(*size))
    matrix = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
    assert apply_matrix(torch.tensor([0, 1, 2]), matrix, torch.Generator()).tolist() == [1, 0, 2]


def test_same_seed_same_labels() -> None:
    labels = torch.arange(10).repeat(100)
    first, again, other = (apply_matrix(labels, symmetric(10, 0.5), generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


NOT_MATRICES = {
    "shape (2, 3); it must be square": torch.ones(2, 3) / 3,
    "shape (3,); it must be square": torch.ones(3),
    "row 1 sums to 0.9": torch.tensor([[1.0, 0], [0.4, 0.5]]),
    "row 0 sums to 1, its smallest value is -0.5": torch.tensor([[1.5, -0.5], [0, 1]]),
    "row 1 sums to nan": torch.tensor([[1.0, 0], [float("nan"), 1]]),
}


@pytest.mark.parametrize("message", NOT_MATRICES)
def test_what_is_no_transition_matrix_is_refused(message: str) -> None:
    with pytest.raises(InputError) as error:
        apply_matrix(torch.tensor([0, 1]), NOT_MATRICES[message], generator(0))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [({}, "empty"), ({0: 3}, "names class 3; there are 3 classes"), ({-1: 0}, "class -1"), ({1: 1}, "to itself")],
)
def test_bad_maps_are_refused(mapping: dict[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        asymmetric(3, 0.2, mapping)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 5]), "row 2 holds class 5; there are 3 classes"),
        (torch.tensor([0, -1]), "row 1 holds class -1"),
        (torch.tensor([0.0, 1.0]), "expected integer class ids"),
        (torch.tensor([[0, 1]]), r"shape \(1, 2\)"),
        (torch.tensor([], dtype=torch.long), r"shape \(0,\)"),
    ],
)
def test_bad_labels_are_refused(labels: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_matrix(labels, symmetric(3, 0.2), generator(0))


def test_labels_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match="3 labels for 2 examples"):
        check_labels(torch.tensor([0, 1, 1]), 2, clean=torch.tensor([0, 1]))


def test_one_class_is_no_data() -> None:
    with pytest.raises(InputError, match="at least 2 classes"):
        check_labels(torch.tensor([0]), 1)
