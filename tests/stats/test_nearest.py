"""Nearest neighbors against a loop, and the index against an exact search."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unflip.data.arrays import Shards
from unflip.stats import nearest as module
from unflip.stats.nearest import all_nearest, nearest

Array = np.ndarray[Any, Any]


def slow(features: Array, query: Array, k: int, among: list[int]) -> tuple[list[int], list[float]]:
    distances = {i: float(np.linalg.norm(features[i].astype(float) - query.astype(float))) for i in among}
    order = sorted(among, key=lambda i: (distances[i], i))[:k]
    return order, [distances[i] for i in order]


def made(count: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, width))


@pytest.fixture
def features() -> Array:
    return made(300, 7).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_nearest_are_those_of_a_slow_search_in_any_precision(features: Array, dtype: type) -> None:
    features, queries = features.astype(dtype), made(70, 7, 1).astype(np.float32)
    found = nearest(features, queries, 5)
    for query, indices, distances in zip(queries, *found, strict=True):
        expected = slow(features, query, 5, list(range(300)))
        assert indices.tolist() == expected[0]
        np.testing.assert_allclose(distances, expected[1], rtol=1e-5, atol=1e-5)


def test_neighbors_far_from_the_origin_are_not_lost_to_rounding(features: Array) -> None:
    far = (features.astype(float) + 2000).astype(np.float32)
    found = nearest(far, far[:70], 3)
    assert (found.indices[:, 0] == np.arange(70)).all()
    assert (found.distances[:, 0] == 0).all()
    for row in range(70):
        assert found.indices[row].tolist() == slow(far, far[row], 3, list(range(300)))[0]


def test_only_some_rows_are_looked_among_and_ones_own_is_left_out(features: Array) -> None:
    rows, own = np.arange(299, -1, -3), np.array([2, 5, 7])
    found = nearest(features, features[own], 4, rows=rows, leave_out=own)
    for row, index in enumerate(own.tolist()):
        among = [i for i in rows.tolist() if i != index]
        assert found.indices[row].tolist() == slow(features, features[index], 4, among)[0]


def test_blocks_change_nothing(features: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(0, 300, 2)
    whole = nearest(features, features[:9], 6), nearest(features, features[:9], 6, rows=rows)
    monkeypatch.setattr(module, "BLOCK_VALUES", 7 * 11)
    parts = nearest(features, features[:9], 6), nearest(features, features[:9], 6, rows=rows)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_allclose(one.distances, other.distances, rtol=1e-6)


def test_of_equals_the_first_is_nearest(features: Array) -> None:
    twice = np.concatenate([features[:10], features[:10]])
    assert nearest(twice, twice[4:5], 2).indices.tolist() == [[4, 14]]
    assert all_nearest(twice, 1).indices.ravel().tolist() == [*range(10, 20), *range(10)]
    often = np.repeat(features[:2], 40, axis=0)  # more than an insertion sort is used for
    assert nearest(often, often[:1], 30).indices.tolist() == [[*range(30)]]


def test_where_there_are_too_few_the_rest_is_marked(features: Array) -> None:
    found = nearest(features[:3], features[:1], 5, leave_out=np.array([0]))
    assert sorted(found.indices[0, :2].tolist()) == [1, 2]
    assert found.indices[0, 2:].tolist() == [-1, -1, -1]
    assert np.isinf(found.distances[0, 2:]).all()
    assert nearest(features, features[:0], 2).indices.shape == (0, 2)
    assert nearest(features, features[:1], 2, rows=np.empty(0, np.int64)).indices.tolist() == [[-1, -1]]
    assert all_nearest(features[:1], 2).indices.tolist() == [[-1, -1]]
    assert all_nearest(features[:0], 2).indices.shape == (0, 2)


def test_mapped_and_sharded_features_are_searched_where_they_are(features: Array, tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", features.astype(np.float16))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    shards = Shards([mapped[:120], mapped[120:]])
    rows, own = np.arange(0, 300, 2), np.arange(4)
    for some in (None, rows):
        expected = nearest(features.astype(np.float16), features[:4], 3, rows=some, leave_out=own).indices
        for form in (mapped, shards):
            np.testing.assert_array_equal(nearest(form, features[:4], 3, rows=some, leave_out=own).indices, expected)
    np.testing.assert_array_equal(all_nearest(shards, 3).indices, all_nearest(mapped, 3).indices)


@pytest.mark.parametrize("width", [5, 160])
def test_an_index_finds_almost_all_neighbors_and_the_same_again(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    centers = 3 * made(40, width, 1)
    features = (centers[np.arange(4000) % 40] + made(4000, width)).astype(np.float16)
    exact = all_nearest(features)
    monkeypatch.setattr(module, "EXACT_ROWS", 1000)
    monkeypatch.setattr(module, "QUERY_ROWS", 1500)
    monkeypatch.setattr(module, "LIST_ROWS", 50)  # 80 lists
    found = all_nearest(features)
    same = [len({*one} & {*other}) for one, other in zip(exact.indices, found.indices, strict=True)]
    assert np.mean(same) >= 9.5
    assert (found.indices != np.arange(4000)[:, None]).all()
    assert (np.diff(found.distances, axis=1) >= 0).all()
    chosen = features[found.indices[:, 0]].astype(np.float32)
    np.testing.assert_allclose(found.distances[:, 0], np.linalg.norm(chosen - features, axis=1), rtol=1e-5)
    again = all_nearest(Shards([features[:1700], features[1700:]]))
    np.testing.assert_array_equal(found.indices, again.indices)


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e12])
def test_an_index_takes_features_of_any_size(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    features = (scale * made(1200, 6)).astype(np.float32)
    exact = all_nearest(features, 3)
    monkeypatch.setattr(module, "EXACT_ROWS", 1000)
    monkeypatch.setattr(module, "LIST_ROWS", 100)
    found = all_nearest(features, 3)
    assert (found.indices >= 0).all()
    np.testing.assert_allclose(np.median(found.distances), np.median(exact.distances), rtol=1e-3)


def test_faiss_is_imported_when_it_is_used() -> None:
    script = "import sys, unflip.stats.nearest; raise SystemExit('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_one_candidate_more_is_found_where_one_is_left_out(features: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    own = np.arange(len(features))
    expected = nearest(features, features, 3, leave_out=own).indices
    monkeypatch.setattr(module, "_SPARE", 0)
    np.testing.assert_array_equal(nearest(features, features, 3, leave_out=own).indices, expected)
