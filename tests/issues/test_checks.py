"""Each check finds what it looks for, with a reason."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from issue_inputs import clusters, made, reasons
from unflip.data.dataset import Split
from unflip.issues.ambiguous import find_ambiguous
from unflip.issues.audit import CheckResult
from unflip.issues.class_quality import find_class_issues
from unflip.issues.duplicates import DuplicateIndex
from unflip.issues.image_quality import find_poor_images
from unflip.issues.near_duplicate import find_leakage, find_near_duplicates
from unflip.issues.outlier import Directions, find_outliers, nearest_class

NAMES = ["cat", "dog", "frog"]


def all_reasons(found: CheckResult) -> list[str]:
    return reasons(found, np.flatnonzero(found.flags))


def test_outliers_are_far_from_every_class() -> None:
    features, given = clusters(600, 3, width=16)
    foreign = 6 * np.random.default_rng(5).standard_normal((12, 16))
    found = find_outliers(made(np.r_[features, foreign], np.r_[given, np.arange(12) % 3], NAMES))
    assert (np.argsort(-found.scores)[:12] >= 600).sum() >= 11
    assert found.flags[600:].sum() >= 3
    assert not found.flags[:600].any()
    assert all_reasons(found)[0].startswith("farther from every class than 9")
    assert all_reasons(found)[0].rpartition(": ")[2] in NAMES


def test_what_is_between_two_classes_is_no_outlier() -> None:
    random = np.random.default_rng(0)
    given = np.arange(400) % 2
    features = random.standard_normal((400, 5)) + 4 * np.eye(5)[0] * given[:, None]
    found = find_outliers(made(features, given, ["cat", "dog"]))
    assert not found.flags.any()
    assert (found.scores > 0.5).sum() > 20


def test_a_class_of_two_has_no_mean() -> None:
    features, given = clusters(600, 3, width=16)
    foreign = 6 * np.random.default_rng(5).standard_normal((12, 16))
    labels = np.r_[given, np.arange(10) % 3, 3, 3]
    found = find_outliers(made(np.r_[features, foreign], labels, [*NAMES, "other"]))
    assert not any(reason.endswith("other") for reason in all_reasons(found))


def test_the_distance_of_outliers_is_that_of_a_slow_reference() -> None:
    features, given = clusters(60, 3)
    features[:, 2] += 1e4  # a column in units of its own
    found = find_outliers(made(features, given, NAMES))
    rows = (features - features.mean(0)) / features.std(0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    distances = []
    for i in range(60):
        others = [[j for j in range(60) if given[j] == c and j != i] for c in range(3)]
        squares = [
            np.square(rows[i] - rows[members].mean(0)).sum() - rows[members].var(0, ddof=1).sum() / len(members)
            for members in others
        ]
        distances.append(max(0, min(squares)) ** 0.5)
    apart = np.linalg.norm(rows[:, None] - rows, axis=2)
    np.fill_diagonal(apart, np.inf)
    near = apart.argsort(1)[:, :10]
    far = np.array([distances[i] + np.mean([distances[j] for j in near[i]]) for i in range(60)])
    lower, upper = np.quantile(far, [0.25, 0.75])
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp((2 - far) / (upper - lower))), rtol=1e-3)
    np.testing.assert_array_equal(found.flags, far > 2)


@pytest.mark.parametrize("count", [60, 200, 2000])
def test_the_distance_to_a_class_does_not_depend_on_its_size(count: int) -> None:
    """A few examples in many columns: their means are far off, and yet nobody is a outlier."""
    random = np.random.default_rng(0)
    given = np.arange(count) % 5
    features = random.standard_normal((count, 200)) + 0.4 * random.standard_normal((5, 200))[given]
    directions = Directions(features)
    distances, _ = nearest_class(directions, given, np.ones(5, bool))
    within = 1 / (1 + 0.4**2 * 4 / 5)  # what is left of the squared length 1 without the class means
    assert np.square(distances).mean() == pytest.approx(within, abs=0.03)
    assert not find_outliers(made(features, given, list("abcde"))).flags.any()


def test_directions_do_not_depend_on_units_or_blocks() -> None:
    features, _ = clusters(9000, 3)
    whole = Directions(features)[:9000]
    np.testing.assert_allclose(Directions(5 + 100 * features)[np.arange(9000)], whole, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-5)


def test_two_classes_about_equally_likely_are_ambiguous() -> None:
    features, given = clusters(6, 3)
    probs = np.array([[0.5, 0.49], [0.5, 0.4], [0.6, 0.3], [0.99, 0.01], [0.3, 0.3], [0.5, 0.5]])
    found = find_ambiguous(made(features, given, NAMES, probs=probs))
    assert found.flags.tolist() == [True, True, False, False, False, True]
    assert found.scores.argmax() == 5
    assert found.scores[5] == 1
    assert all_reasons(found)[0] == "cat (0.50) or dog (0.49): the two most likely classes"
    learned = find_ambiguous(made(features, given, NAMES, probs=probs, out_of_sample=False))
    assert len(learned.rows) == 0


@pytest.mark.parametrize(("share", "flagged"), [(0.02, False), (0.3, True)])
def test_classes_confused_in_both_directions_are_flagged(share: float, flagged: bool) -> None:
    features, given = clusters(900, 3)
    top2 = np.stack([given, (given + 1) % 3], 1)
    swap = (np.random.default_rng(0).random(900) < share) & (given < 2)
    top2[swap, 0], top2[swap, 1] = 1 - given[swap], given[swap]
    found = find_class_issues(made(features, given, NAMES, top2=top2))
    assert found.rows.tolist() == [-1]
    assert found.flags.tolist() == [flagged]
    assert found.reason(0).startswith("cat and dog: ")
    assert found.reason(0).endswith("merge them or clarify the guideline") == flagged


def test_chance_errors_and_one_sided_confusion_are_not_flagged() -> None:
    features, given = clusters(900, 3)
    random = np.random.default_rng(0)
    anywhere = np.where(random.random(900) < 0.3, random.integers(3, size=900), given)
    one_way = np.where((given == 0) & (random.random(900) < 0.4), 1, given)
    for first in (anywhere, one_way):
        found = find_class_issues(made(features, given, NAMES, top2=np.stack([first, (first + 1) % 3], 1)))
        assert not found.flags.any()


def test_small_and_unscored_classes_are_flagged() -> None:
    given = np.repeat([0, 1, 2, 3], [200, 190, 5, 1])
    features = np.random.default_rng(0).standard_normal((len(given), 4))
    quality = np.where(given == 3, np.nan, 0.9)
    found = find_class_issues(made(features, given, [*NAMES, "owl"], quality=quality))
    assert sorted(all_reasons(found)) == [
        "frog: 5 examples, where a class has 99 on average; add some or merge it",
        "owl: 1 example, too few to score; add some or merge it",
    ]


def test_odd_images_are_blank_dark_bright_tiny_or_long() -> None:
    features, given = clusters(60, 3)
    stats = np.tile(np.array([0.5, 0.2, 300, 200], np.float32), (60, 1))
    stats[:5] = [
        [0.5, 0.001, 300, 200], [0.02, 0.1, 300, 200], [0.99, 0.1, 300, 200], [0.5, 0.2, 12, 12], [0.5, 0.2, 2000, 200],
    ]  # fmt: skip
    found = find_poor_images(made(features, given, NAMES, val=20, image_stats=stats))
    assert np.flatnonzero(found.flags).tolist() == [0, 1, 2, 3, 4]
    assert [reason.partition(":")[0] for reason in all_reasons(found)] == [
        "nearly blank", "very dark", "very bright", "tiny", "odd shape",
    ]  # fmt: skip
    assert len(find_poor_images(made(features, given, NAMES)).rows) == 0  # no statistics


def test_where_all_images_are_tiny_none_is_odd() -> None:
    features, given = clusters(60, 3)
    stats = np.tile(np.array([0.5, 0.2, 8, 8], np.float32), (60, 1))
    assert not find_poor_images(made(features, given, NAMES, image_stats=stats)).flags.any()


def test_class_quality_uses_reviewed_labels() -> None:
    """Removed examples are in no class, and decided ones in that which people chose."""
    given = np.repeat([0, 1, 2], [100, 100, 100])
    top2 = np.stack([given, (given + 1) % 3], 1)
    top2[:80] = [1, 0]
    top2[100:180] = [0, 1]
    audited = made(np.zeros((300, 2)), given, NAMES, top2=top2, quality=np.full(300, 0.5))
    assert [reason.partition(":")[0] for reason in all_reasons(find_class_issues(audited))] == ["cat and dog"]
    table = audited.table
    decided = np.arange(300) // 100 == 1
    merged = table.set_column(table.column_names.index("reviewed"), "reviewed", pa.array(decided))
    current = np.where(decided, 0, given)
    merged = merged.set_column(merged.column_names.index("current_label"), "current_label", pa.array(current))
    assert all_reasons(find_class_issues(replace(audited, table=merged))) == []
    splits = pa.array(["removed" if i >= 203 else "train" for i in range(300)])
    fewer = table.set_column(table.column_names.index("split"), "split", splits)
    of_frog = [reason for reason in all_reasons(find_class_issues(replace(audited, table=fewer))) if "frog" in reason]
    assert of_frog == ["frog: 3 examples, where a class has 68 on average; add some or merge it"]


def test_reasons_of_a_large_group_are_those_of_a_slow_reference() -> None:
    random = np.random.default_rng(0)
    given = random.integers(0, 3, 60)
    audited = made(np.zeros((60, 2)), given, NAMES)
    keys = np.where(np.arange(60) < 40, 0, np.arange(60) // 2)
    duplicates = DuplicateIndex(
        {"train": 60}, np.unique(keys, return_inverse=True)[1], np.empty((0, 2), np.int64), np.empty(0)
    )
    found = find_near_duplicates(replace(audited, duplicates=duplicates))
    for row, text in zip(found.rows.tolist(), reasons(found), strict=True):
        others = [other for other in range(60) if keys[other] == keys[row] and other != row]
        others.sort(key=lambda other: (given[other] == given[row], other))
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        assert text.startswith(f"the same as {others[0]} ({NAMES[given[others[0]]]}){more}")


def test_each_duplicate_is_called_the_same_or_nearly_the_same() -> None:
    audited = made(np.zeros((6, 2)), np.array([0, 1, 0, 0, 0, 1]), NAMES)
    keys = np.array([0, 1, 0, 2, 0, 3])  # 0, 2 and 4 are equal, 1 and 5 are nearly so
    duplicates = DuplicateIndex({"train": 6}, keys, np.array([[0, 1], [0, 3]]), np.full(2, 0.98))
    found = find_near_duplicates(replace(audited, duplicates=duplicates))
    texts = dict(zip(found.rows.tolist(), reasons(found), strict=True))
    assert texts == {
        0: "nearly the same as 1 (dog) and 3 more, and labeled cat",
        1: "nearly the same as 0 (cat) and 3 more, and labeled dog",
        2: "nearly the same as 1 (dog) and 3 more, and labeled cat",
        4: "nearly the same as 1 (dog) and 3 more, and labeled cat",
        5: "nearly the same as 0 (cat) and 3 more, and labeled dog",
    }
    fewer = DuplicateIndex({"train": 6}, np.array([0, 1, 2, 3, 0, 4]), np.array([[0, 1]]), np.array([0.98]))
    found = find_near_duplicates(replace(audited, duplicates=fewer))
    assert reasons(found, np.flatnonzero(found.rows == 0)) == ["nearly the same as 1 (dog) and 1 more, and labeled cat"]


def test_leakage_is_listed_once_with_the_closest_duplicate() -> None:
    features, given = clusters(20, 2)
    audited = made(features, given, ["cat", "dog"], val=5)
    tests = {"test": Split(features[:3], given[:3])}
    keys = np.r_[np.arange(20), 0, 15, 16]  # train 0 is in the test set, val 15 and 16, too, and val 17 is like train 0
    duplicates = DuplicateIndex({"train": 15, "val": 5, "test": 3}, keys, np.array([[0, 17]]), np.array([0.97]))
    found = find_leakage(replace(audited, duplicates=duplicates, data=replace(audited.data, tests=tests)))
    assert found.rows.tolist() == [0, 15, 16, 17]
    assert reasons(found)[:1] == ["the same as example 0 (0) of 'test'"]
