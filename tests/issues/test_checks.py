"""Each check finds what it looks for, with a reason."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_digits

from issue_inputs import clusters, made, reasons
from unflip.data.dataset import Split
from unflip.issues.audit import CheckResult
from unflip.issues.class_quality import find_ambiguous, find_class_issues
from unflip.issues.duplicates import DuplicateIndex, find_leakage, find_near_duplicates
from unflip.issues.image_quality import find_poor_images
from unflip.issues.outlier import find_outliers

NAMES = ["cat", "dog", "frog"]


def all_reasons(found: CheckResult) -> list[str]:
    return reasons(found, np.flatnonzero(found.flags))


def test_outliers_are_unlike_all_others() -> None:
    features, given = clusters(600, 3, width=16)
    foreign = 6 * np.random.default_rng(5).standard_normal((12, 16))
    found = find_outliers(made(np.r_[features, foreign], np.r_[given, np.arange(12) % 3], NAMES))
    assert np.flatnonzero(found.flags).tolist() == [*range(600, 612)]
    assert set(np.argsort(-found.scores)[:12]) == {*range(600, 612)}
    assert re.fullmatch(r"its nearest examples have a similarity of 0\.\d\d; 0\.9\d is typical", all_reasons(found)[0])


@pytest.mark.parametrize("units", [False, True])
def test_outliers_are_those_of_a_slow_reference(units: bool) -> None:
    random = np.random.default_rng(3)
    features = random.standard_normal((80, 9)) @ random.standard_normal((9, 9)) + 1
    features[:3] = 40 * random.standard_normal((3, 9))
    if units:
        features[:, 2] = 1e4 * features[:, 2] + 1e5
    found = find_outliers(made(features, np.arange(80) % 3, NAMES))
    rows = features
    if units:
        standardized = (features - features.mean(0)) / features.std(0)
        covariance = 0.7 * np.cov(standardized.T, bias=True) + 0.3 * np.eye(9)  # whose mean variance is 1
        root = np.linalg.cholesky(np.linalg.inv(covariance))
        white = standardized @ root
        rows = np.column_stack([white, np.full(80, 0.5 * np.square(white).sum(1).mean() ** 0.5)])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    far = -np.log(np.sort(cosines, 1)[:, -20:].mean(1).clip(min=0.02))
    flagged = np.zeros(80, bool)
    for _ in range(20):
        kept = far[~flagged]
        middle = np.median(kept)
        sigmas = [(np.quantile(kept, q) - middle) / z for q, z in ((0.75, 0.6745), (0.9, 1.2816))]
        deviations = (far - middle) / max(*sigmas, 0.05)
        flagged = (deviations > 3.4) & (far > np.quantile(far, 0.9))
    np.testing.assert_array_equal(found.flags, deviations > 3.4)
    np.testing.assert_allclose(found.scores, deviations.clip(0) / (deviations.clip(0) + 3.4), atol=1e-4)
    assert 1 <= found.flags[:3].sum() <= found.flags.sum() <= 8


@pytest.mark.parametrize("count", [60, 200, 1500, 6000])
def test_data_without_outliers_has_hardly_any(count: int) -> None:
    random = np.random.default_rng(0)
    given = np.arange(count) % 3
    noise = random.standard_normal((count, 50)) + 0.4 * random.standard_normal((3, 50))[given]
    skewed = np.exp(random.standard_normal((count, 6))) * 10.0 ** np.arange(6)
    diffuse = (random.standard_normal((count, 12)) + 4) * np.where(random.random(count) < 0.2, 1, 0.1)[:, None]
    for features in (noise, skewed, diffuse, random.standard_normal((count, 1)), clusters(count, 3)[0]):
        assert find_outliers(made(features, given, NAMES)).flags.sum() <= max(1, 0.01 * count)


def test_digits_and_scrambled_digits() -> None:
    digits, labels = load_digits(return_X_y=True)
    scrambled = np.random.default_rng(0).permuted(digits[::40], axis=1)
    found = find_outliers(made(np.r_[digits, scrambled], np.r_[labels, labels[::40]], [*"0123456789"]))
    assert found.flags[len(digits) :].all()
    assert found.flags[: len(digits)].mean() < 0.01


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


def test_odd_images_are_blank_blurry_dark_bright_tiny_or_long() -> None:
    features, given = clusters(60, 3)
    stats = np.tile(np.array([0.5, 0.2, 0.3, 300, 200], np.float32), (60, 1))
    stats[:, 2] *= np.exp(np.random.default_rng(0).standard_normal(60))
    stats[:6] = [
        [0.5, 0.001, 0.3, 300, 200], [0.02, 0.1, 0.3, 300, 200], [0.99, 0.1, 0.3, 300, 200],
        [0.5, 0.2, 0.3, 12, 12], [0.5, 0.2, 0.3, 2000, 200], [0.5, 0.2, 0.001, 300, 200],
    ]  # fmt: skip
    found = find_poor_images(made(features, given, NAMES, val=20, image_stats=stats))
    assert np.flatnonzero(found.flags).tolist() == [0, 1, 2, 3, 4, 5]
    assert [reason.partition(":")[0] for reason in all_reasons(found)] == [
        "nearly blank", "very dark", "very bright", "tiny", "odd shape", "blurry",
    ]  # fmt: skip
    assert len(find_poor_images(made(features, given, NAMES)).rows) == 0  # no statistics


def test_where_all_images_are_tiny_none_is_odd() -> None:
    features, given = clusters(60, 3)
    stats = np.tile(np.array([0.5, 0.2, 0.3, 8, 8], np.float32), (60, 1))
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
