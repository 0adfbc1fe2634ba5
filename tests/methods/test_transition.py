"""The transition matrix against loops and against the one that made the labels; what a posterior is at its limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.methods.unflip import posterior as module
from unflip.methods.unflip.posterior import estimate_transition, fit_transition, informative_prob, posterior


def train_probs(count: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, labels, and how likely each label is informative."""
    random = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(count, classes, generator=random)).log_softmax(1)
    return log_probs, torch.randint(classes, (count,), generator=random), torch.rand(count, generator=random)


def some_matrix(classes: int, seed: int = 0) -> Tensor:
    return torch.randn(classes, classes, generator=torch.Generator().manual_seed(seed)).log_softmax(1)


def normalized(values: list[float]) -> list[float]:
    return [value / sum(values) for value in values]


@given(st.integers(0, 1000), st.integers(2, 5), st.floats(0, 1))
def test_a_label_is_informative_as_bayes_rule_says(seed: int, classes: int, background: float) -> None:
    log_probs, labels, _ = train_probs(6, classes, seed)
    for i, u in enumerate(informative_prob(log_probs, labels, background).tolist()):
        from_the_class = (1 - background) * math.exp(float(log_probs[i, labels[i]]))
        by_chance = background / classes
        assert u == pytest.approx(from_the_class / (from_the_class + by_chance), abs=1e-5)


def test_without_background_every_label_is_informative_even_an_impossible_one() -> None:
    log_probs = torch.tensor([[0.0, -200.0], [math.log(0.5), math.log(0.5)]])
    assert informative_prob(log_probs, torch.tensor([0, 1]), 0.0).tolist() == pytest.approx([1, 1])
    assert math.isfinite(float(informative_prob(log_probs, torch.tensor([1, 1]), 0.0)[0]))


@given(st.integers(0, 1000), st.integers(2, 5), st.floats(0, 1))
def test_a_posterior_is_the_mixture_of_the_formula(seed: int, classes: int, weight: float) -> None:
    log_probs, labels, share = train_probs(6, classes, seed)
    log_matrix = some_matrix(classes, seed)
    got = posterior(log_probs, labels, share, log_matrix, weight)
    for i, y in enumerate(labels.tolist()):
        p, u = log_probs[i].exp().tolist(), float(share[i])
        q = normalized([p[c] * math.exp(float(log_matrix[c, y])) ** weight for c in range(classes)])
        assert got[i].tolist() == pytest.approx([(1 - u) * p[c] + u * q[c] for c in range(classes)], abs=1e-5)


def test_at_its_limits_a_posterior_is_the_prior_or_bayes_rule() -> None:
    log_probs, labels, share = train_probs(50, 4)
    log_matrix, none, all_of_it = some_matrix(4), torch.zeros(50), torch.ones(50)
    p = log_probs.exp()
    torch.testing.assert_close(posterior(log_probs, labels, share, log_matrix, 0.0), p)
    torch.testing.assert_close(posterior(log_probs, labels, none, log_matrix, 1.0), p)
    joint = p * log_matrix.exp()[:, labels].T
    torch.testing.assert_close(
        posterior(log_probs, labels, all_of_it, log_matrix, 1.0), joint / joint.sum(1, keepdim=True)
    )
    nothing_said = torch.full((4, 4), 0.25).log()
    torch.testing.assert_close(posterior(log_probs, labels, all_of_it, nothing_said, 1.0), p)


@pytest.mark.parametrize(("weight", "rounds"), [(1.0, 1), (1.0, 5), (0.4, 3)])
def test_the_estimate_is_that_of_a_loop(weight: float, rounds: int) -> None:
    log_probs, labels, share = train_probs(40, 3)
    p, u, y = log_probs.double().exp().tolist(), share.tolist(), labels.tolist()
    train_probs_now = p
    for _ in range(rounds):
        M = [[1 / 3 + (c == label) for label in range(3)] for c in range(3)]
        for i in range(40):
            for c in range(3):
                M[c][y[i]] += u[i] * train_probs_now[i][c]
        M = [normalized(row) for row in M]
        train_probs_now = [normalized([p[i][c] * M[c][y[i]] ** weight for c in range(3)]) for i in range(40)]
    got = estimate_transition(log_probs, labels, share, weight, rounds).exp()
    torch.testing.assert_close(got, torch.tensor(M), atol=1e-5, rtol=1e-4)


def test_blocks_of_examples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs, labels, share = train_probs(40, 3)
    whole = estimate_transition(log_probs, labels, share)
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    torch.testing.assert_close(estimate_transition(log_probs, labels, share), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_offsets_adjust_the_prior_as_in_a_table_of_their_own(dtype: torch.dtype) -> None:
    log_probs, labels, _ = train_probs(40, 3)
    log_probs, offset = log_probs.to(dtype), torch.tensor([0.5, -1.0, 0.2])
    before = log_probs.clone()
    moved = fit_transition((log_probs.float() + offset).log_softmax(1), labels, 0.1)
    found = fit_transition(log_probs, labels, 0.1, offset)
    assert found.log_likelihood == moved.log_likelihood
    assert torch.equal(found.log_matrix, moved.log_matrix)
    assert torch.equal(log_probs, before)


def test_a_matrix_that_made_the_labels_is_found() -> None:
    """Half of the labels of class 0 read 1, a fifth of class 2 read 0; a third of all labels mean nothing."""
    random = torch.Generator().manual_seed(0)
    M = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.0, 0.8]])
    log_probs = (5 * torch.randn(20_000, 3, generator=random)).log_softmax(1)
    classes = log_probs.exp().multinomial(1, generator=random)[:, 0]
    labels = M[classes].multinomial(1, generator=random)[:, 0]
    means_something = torch.rand(20_000, generator=random) > 1 / 3
    labels = labels.where(means_something, torch.randint(3, (20_000,), generator=random))
    found = estimate_transition(log_probs, labels, means_something.float(), rounds=30).exp()
    torch.testing.assert_close(found, M, atol=0.02, rtol=0)
    right = posterior(log_probs, labels, means_something.float(), found.log(), 1.0).argmax(1) == classes
    assert float(right.float().mean()) > float((log_probs.argmax(1) == classes).float().mean()) + 0.01


def test_rows_add_up_to_one_and_labels_are_right_where_nothing_is_known() -> None:
    log_probs, labels, share = train_probs(30, 4)
    matrix = estimate_transition(log_probs, labels, share).exp()
    torch.testing.assert_close(matrix.sum(1), torch.ones(4))
    unknown = estimate_transition(log_probs, labels, torch.zeros(30)).exp()
    torch.testing.assert_close(unknown, (torch.eye(4) + 0.25) / 2)
