"""Nearest neighbours against a loop."""

from pathlib import Path

import numpy as np
import pytest
import torch

from unflip.errors import InputError
from unflip.stats import neighbours
from unflip.stats.neighbours import nearest


def slow(features: torch.Tensor, query: torch.Tensor, k: int, among: list[int]) -> tuple[list[int], list[float]]:
    distances = {i: float((features[i].double() - query.double()).norm()) for i in among}
    order = sorted(among, key=lambda i: (distances[i], i))[:k]
    return order, [distances[i] for i in order]


@pytest.fixture
def features() -> torch.Tensor:
    return torch.randn(300, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_nearest_are_those_of_a_slow_search_in_any_precision(features: torch.Tensor, dtype: torch.dtype) -> None:
    features, queries = features.to(dtype), torch.randn(70, 7, generator=torch.Generator().manual_seed(1))
    found = nearest(features, queries, 5)
    for query, indices, distances in zip(queries, *found, strict=True):
        expected = slow(features, query, 5, list(range(300)))
        assert indices.tolist() == expected[0]
        torch.testing.assert_close(distances.double(), torch.tensor(expected[1]).double(), rtol=1e-5, atol=1e-5)


def test_neighbours_far_from_the_origin_are_not_lost_to_rounding(features: torch.Tensor) -> None:
    far = features.double() + 2000.0
    found = nearest(far.float(), far[:20].float(), 3)
    assert (found.indices[:, 0] == torch.arange(20)).all()
    assert (found.distances[:, 0] == 0).all()
    for row in range(20):
        assert found.indices[row].tolist() == slow(far.float(), far[row].float(), 3, list(range(300)))[0]


def test_only_some_rows_are_looked_among_and_ones_own_is_left_out(features: torch.Tensor) -> None:
    rows = torch.arange(299, -1, -3)
    own = torch.tensor([2, 5, 7])
    found = nearest(features, features[own], 4, rows=rows, leave_out=own)
    for row, index in enumerate(own.tolist()):
        among = [i for i in rows.tolist() if i != index]
        assert found.indices[row].tolist() == slow(features, features[index], 4, among)[0]


def test_chunks_change_nothing(features: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = nearest(features, features[:9], 6)
    monkeypatch.setattr(neighbours, "_VALUES", 7 * 11)
    monkeypatch.setattr(neighbours, "_QUERIES", 2)
    parts = nearest(features, features[:9], 6)
    assert torch.equal(whole.indices, parts.indices)
    torch.testing.assert_close(whole.distances, parts.distances)


def test_of_equals_the_first_is_nearest(features: torch.Tensor) -> None:
    twice = torch.cat([features[:10], features[:10]])
    assert nearest(twice, twice[4:5], 2).indices.tolist() == [[4, 14]]


def test_where_there_are_too_few_the_rest_is_marked(features: torch.Tensor) -> None:
    found = nearest(features[:3], features[:1], 5, leave_out=torch.tensor([0]))
    assert sorted(found.indices[0, :2].tolist()) == [1, 2]
    assert found.indices[0, 2:].tolist() == [-1, -1, -1]
    assert found.distances[0, 2:].isinf().all()
    assert nearest(features, features[:0], 2).indices.shape == (0, 2)
    assert nearest(features, features[:1], 2, rows=torch.empty(0, dtype=torch.long)).indices.tolist() == [[-1, -1]]


def test_what_does_not_fit_is_refused(features: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"features \(300, 7\) and queries \(2, 6\) must be"):
        nearest(features, features[:2, :6], 1)
    with pytest.raises(InputError, match="k must be 1 or more, not 0"):
        nearest(features, features[:2], 0)


def test_mapped_features_are_searched_where_they_are(features: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "features.npy"
    np.save(path, features.half().numpy())
    mapped = torch.from_numpy(np.load(path, mmap_mode="c"))
    assert torch.equal(nearest(mapped, features[:4], 3).indices, nearest(features.half(), features[:4], 3).indices)
