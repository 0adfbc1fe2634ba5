"""Label quality: the pool against a loop, and what it must and must not depend on."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from unflip.labels.quality import label_quality, suggested_labels


@given(st.integers(0, 10_000), st.integers(2, 6))
def test_it_is_the_normalised_geometric_mean(seed: int, classes: int) -> None:
    random = torch.Generator().manual_seed(seed)
    probs, votes = (torch.randn(7, classes, generator=random).softmax(1) for _ in range(2))
    labels = torch.randint(classes, (7,), generator=random)
    quality = label_quality(labels, probs, votes)
    for i, label in enumerate(labels.tolist()):
        pool = [math.sqrt(p * v) for p, v in zip(probs[i].tolist(), votes[i].tolist(), strict=True)]
        assert math.isclose(float(quality[i]), pool[label] / sum(pool), rel_tol=1e-4)
    torch.testing.assert_close(quality, label_quality(labels, votes, probs))  # neither view comes first
    torch.testing.assert_close(label_quality(labels, probs, probs), probs.gather(1, labels[:, None])[:, 0])


def test_what_one_view_rules_out_is_ruled_out() -> None:
    probs, votes = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.0]])
    assert [float(label_quality(torch.tensor([c]), probs, votes)) for c in range(3)] == [1.0, 0.0, 0.0]


def test_views_that_exclude_each_other_leave_no_opinion() -> None:
    quality = label_quality(torch.tensor([0]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    assert float(quality) == 0.5


def test_the_suggestion_is_the_corrected_label_or_the_likeliest_of_the_pool() -> None:
    probs = torch.tensor([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.1, 0.2, 0.7]])
    votes = torch.tensor([[0.1, 0.9, 0.0], [0.1, 0.9, 0.0], [0.1, 0.2, 0.7]])
    given, current = torch.tensor([0, 0, 2]), torch.tensor([0, 2, 2])
    assert suggested_labels(given, current, probs, votes).tolist() == [1, 2, 2]
