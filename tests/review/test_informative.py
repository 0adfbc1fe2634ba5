"""The most informative order, against slow references and true labels."""

from pathlib import Path

import numpy as np
import pytest

from reviewing import Client, served
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.review import Order
from unflip.review.examples import classes_in_turns, information_density, most_informative_first, uncertainty
from unflip.runs.folder import Run


def test_uncertainty_is_how_likely_the_suggestion_is_wrong() -> None:
    quality = np.array([0.9, 0.2, 0.2, np.nan, 0.0])
    of_given, of_suggested = np.array([0.8, 0.1, 0.1, 0.5, 1.0]), np.array([0.8, 0.9, 0.45, 0.5, 0.0])
    found = uncertainty(quality, of_given, of_suggested, differs=np.array([False, True, True, True, True]))
    # the given label stays; all that is not the given label is suggested; half of it; not known; nobody knows another
    np.testing.assert_allclose(found, [0.1, 1 - 0.8, 1 - 0.8 * 0.5, 0, 1])


def slow_density(uncertain: list[float], points: list[list[float]], k: int) -> list[float]:
    count = len(points)
    distance = [[float(np.linalg.norm(np.subtract(a, b))) for b in points] for a in points]
    pairs = [sorted((away, j) for j, away in enumerate(row) if j != i)[:k] for i, row in enumerate(distance)]
    near = [[j for _, j in nearest] for nearest in pairs]
    width = float(np.median([distance[i][near[i][-1]] for i in range(count)]))
    duplicates = [[np.exp(-((distance[i][j] / width) ** 2) / 2) for j in range(count)] for i in range(count)]
    worth = [uncertain[i] * sum(duplicates[i][j] for j in near[i]) / k for i in range(count)]
    result = []
    for i in range(count):
        before = sum(duplicates[i][j] for j in near[i] if worth[j] > worth[i] or (worth[j] == worth[i] and j < i))
        result.append(worth[i] / (1 + before))
    return result


def test_information_density_is_the_slow_sum() -> None:
    random = np.random.default_rng(0)
    points, uncertain = random.normal(size=(40, 3)), random.random(40)
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, :5]
    found = information_density(uncertain, near, np.take_along_axis(distances, near, 1))
    np.testing.assert_allclose(found, slow_density(uncertain.tolist(), points.tolist(), 5))


def test_the_second_of_two_copies_comes_later() -> None:
    near, distances = np.array([[1, 2], [0, 2], [0, 1], [2, 0]]), np.array([[0, 1], [0, 1], [1, 1], [1, 1.0]])
    worth = information_density(np.full(4, 0.5), near, distances)
    assert worth[1] == pytest.approx(worth[0] / 2)


def test_classes_take_turns() -> None:
    random = np.random.default_rng(1)
    worth, classes = random.random(30), random.integers(0, 4, 30)
    waiting = {c: sorted((i for i in range(30) if classes[i] == c), key=lambda i: -worth[i]) for c in range(4)}
    expected = []
    while any(waiting.values()):
        turn = [rows.pop(0) for rows in waiting.values() if rows]
        expected += sorted(turn, key=lambda i: -worth[i])
    assert classes_in_turns(worth, classes).tolist() == expected


def test_it_ranks_all_examples_and_wrong_suggestions_first(trained: Path) -> None:
    run = Run(trained)
    table, truth = run.labels(), load_raw(DataOptions(path="digits")).train.labels
    assert truth is not None
    truth = truth[:400]
    wrong = table["suggested_label"].to_numpy() != truth
    for pool in (10_000, 50, 1):
        for features in (run.hidden_features, None):
            order = most_informative_first(table, features, pool)
            assert sorted(order.tolist()) == list(range(400))
    order = most_informative_first(table, run.hidden_features)
    assert wrong[order[:50]].mean() > 2 * wrong.mean()
    reviewed = np.arange(400) % 2 == 0
    decided = table.set_column(table.column_names.index("reviewed"), "reviewed", [reviewed])
    assert not reviewed[most_informative_first(decided, run.hidden_features)[:200]].any()


def test_the_page_follows_the_requested_order(run: Path) -> None:
    table, features = Run(run).labels(), Run(run).hidden_features
    expected = most_informative_first(table, features).tolist()
    with served(run, order=Order.INFORMATIVE) as (address, _):
        client = Client(address)
        assert client.get("/api/about").json["order"] == "informative"
        page = client.get("/api/examples?count=20").json
        assert [one["index"] for one in page["examples"]] == expected[:20]
        second = client.get(f"/api/examples?count=20&after={page['last']}").json["examples"]
        assert [(one["index"], one["rank"]) for one in second] == list(zip(expected[20:40], range(20, 40), strict=True))
        other = client.get("/api/examples?count=1&order=lowest-quality").json["examples"][0]
        assert other["label_quality"] == pytest.approx(min(table["label_quality"].to_pylist()), abs=1e-6)
        assert client.get("/api/examples?order=alphabetical").status == 422
