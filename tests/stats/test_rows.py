import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unflip.errors import InputError
from unflip.stats.rows import class_indices, class_means, pooled_covariance


@given(st.lists(st.integers(0, 6), max_size=40), st.sampled_from([torch.int64, torch.int32, torch.uint8]))
def test_members_are_those_of_a_loop(labels: list[int], dtype: torch.dtype) -> None:
    members = class_indices(torch.tensor(labels, dtype=dtype), 7)
    assert [indices.tolist() for indices in members] == [
        [i for i, label in enumerate(labels) if label == c] for c in range(7)
    ]


def test_more_classes_than_a_short_integer_holds() -> None:
    members = class_indices(torch.tensor([40_000, 1, 40_000]), 50_000)
    assert members[40_000].tolist() == [0, 2]
    assert members[1].tolist() == [1]


@pytest.mark.parametrize("labels", [[-1, 0], [0, 3]])
def test_labels_out_of_range_are_named(labels: list[int]) -> None:
    with pytest.raises(InputError, match="must be from 0 to 2"):
        class_indices(torch.tensor(labels), 3)


def test_class_means_are_those_of_a_loop() -> None:
    features, labels = torch.randn(50, 4), torch.randint(3, (50,))
    for c, mean in enumerate(class_means(features, labels, 5)):
        members = features[labels == c]
        torch.testing.assert_close(mean, members.mean(0) if len(members) else torch.zeros(4))


@pytest.mark.parametrize("n", [50, 8192])  # the latter takes several rounds
def test_the_pooled_covariance_is_that_of_a_loop(n: int) -> None:
    random = torch.Generator().manual_seed(0)
    features, labels = torch.randn(n, 3, generator=random) + 5, torch.randint(3, (n,), generator=random)
    expected = torch.zeros(3, 3)
    for c in range(3):
        members = features[labels == c]
        expected += torch.cov(members.T, correction=0) * len(members) / n
    torch.testing.assert_close(pooled_covariance(features, labels, class_means(features, labels, 3)), expected)


def test_the_pooled_covariance_of_very_many_features_is_that_of_a_fixed_part_of_them() -> None:
    random = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 3.0, 0.1])
    features = torch.randn(100_000, 3, generator=random) * scale
    labels = torch.arange(100_000) % 10  # an order that picking every tenth would see one class of
    features += labels[:, None]
    pooled = pooled_covariance(features, labels, class_means(features, labels, 10))
    torch.testing.assert_close(pooled / (scale * scale[:, None]), torch.eye(3), rtol=0, atol=0.05)
    assert torch.equal(pooled, pooled_covariance(features, labels, class_means(features, labels, 10)))
