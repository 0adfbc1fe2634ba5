"""The pool of two views against a loop, what it must and must not depend on, and what is suggested to people."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from unflip.engine.scoring import pooled, suggested_labels


@given(st.integers(0, 10_000), st.integers(2, 6))
def test_it_is_the_normalized_geometric_mean(seed: int, classes: int) -> None:
    random = torch.Generator().manual_seed(seed)
    probs, gaussian_probs = (torch.randn(7, classes, generator=random).softmax(1) for _ in range(2))
    got = pooled(probs, gaussian_probs)
    for i in range(7):
        pool = [math.sqrt(p * v) for p, v in zip(probs[i].tolist(), gaussian_probs[i].tolist(), strict=True)]
        for c in range(classes):
            assert math.isclose(float(got[i, c]), pool[c] / sum(pool), rel_tol=1e-4)
    torch.testing.assert_close(got, pooled(gaussian_probs, probs))  # neither view comes first
    torch.testing.assert_close(pooled(probs, probs), probs)


def test_what_one_view_rules_out_is_ruled_out() -> None:
    probs, gaussian_probs = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.0]])
    assert pooled(probs, gaussian_probs).tolist() == [[1.0, 0.0, 0.0]]


def test_views_that_exclude_each_other_leave_no_opinion() -> None:
    assert pooled(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).tolist() == [[0.5, 0.5]]


def test_the_suggestion_is_the_corrected_label_or_the_most_likely_of_the_pool() -> None:
    probs = torch.tensor([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.1, 0.2, 0.7]])
    gaussian_probs = torch.tensor([[0.1, 0.9, 0.0], [0.1, 0.9, 0.0], [0.1, 0.2, 0.7]])
    given, current = torch.tensor([0, 0, 2]), torch.tensor([0, 2, 2])
    assert suggested_labels(given, current, pooled(probs, gaussian_probs)).tolist() == [1, 2, 2]
