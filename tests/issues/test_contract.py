"""The contract of a check, tested for all that are registered."""

from collections.abc import Callable

import numpy as np
import pytest

from issue_inputs import clusters, made, reasons
from unflip.issues import checks
from unflip.issues.audit import AuditInput, CheckResult, run_checks

STATS = np.array([0.5, 0.2, 0.3, 32, 32], np.float32)


def ordinary() -> AuditInput:
    features, given = clusters(120, 3)
    return made(features, given, ["cat", "dog", "frog"], image_stats=np.tile(STATS, (120, 1)))


def in_half_precision() -> AuditInput:
    features, given = clusters(90, 3)
    return made(features.astype(np.float16), given, ["cat", "dog", "frog"], val=30)


def two_classes() -> AuditInput:
    features, given = clusters(60, 2)
    return made(features, given, ["no", "yes"])


def classes_of_one() -> AuditInput:
    features, given = clusters(64, 60)
    quality = np.where(np.bincount(given)[given] > 1, 0.9, np.nan)
    return made(features, given, [f"class {number}" for number in range(60)], quality=quality)


def without_quality() -> AuditInput:
    features, given = clusters(40, 2)
    return made(features, given, ["no", "yes"], quality=np.full(40, np.nan), out_of_sample=False)


def fewer_than_neighbors() -> AuditInput:
    features, given = clusters(5, 2)
    return made(features, given, ["no", "yes"], val=1)


def all_similar() -> AuditInput:
    return made(np.ones((50, 4)), np.arange(50) % 2, ["no", "yes"])


def pictures_as_rows() -> AuditInput:
    features, given = clusters(40, 2, width=12)
    return made(features.reshape(40, 3, 4), given, ["no", "yes"])


RUNS = [
    ordinary, in_half_precision, two_classes, classes_of_one, without_quality, fewer_than_neighbors, all_similar,
    pictures_as_rows,
]  # fmt: skip


@pytest.mark.parametrize("make", RUNS)
@pytest.mark.parametrize("name", checks.names())
def test_a_check_keeps_the_contract(name: str, make: Callable[[], AuditInput]) -> None:
    audited = make()
    found: CheckResult = checks.load(name)(audited)
    count = len(found.rows)
    assert found.rows.shape == found.scores.shape == found.flags.shape == (count,)
    assert found.groups is None or found.groups.shape == (count,)
    assert ((found.rows >= -1) & (found.rows < len(audited.table))).all()
    assert np.isfinite(found.scores).all()
    assert ((found.scores >= 0) & (found.scores <= 1)).all()
    assert found.flags.dtype == bool
    for reason in reasons(found):
        assert reason
        assert reason == " ".join(reason.split())
        assert len(reason) < 200
    again: CheckResult = checks.load(name)(make())
    np.testing.assert_array_equal(found.scores, again.scores)
    np.testing.assert_array_equal(found.flags, again.flags)
    assert reasons(again) == reasons(found)


@pytest.mark.parametrize("name", checks.names())
def test_ordinary_data_has_hardly_any_flags(name: str) -> None:
    found: CheckResult = checks.load(name)(ordinary())
    assert found.flags.sum() <= 2


@pytest.mark.parametrize("name", checks.names())
def test_a_check_can_be_skipped(name: str) -> None:
    others = [other for other in checks.names() if other != name]
    assert set(run_checks(classes_of_one(), skip=[name])["issue"].to_pylist()) <= set(others)
    assert len(run_checks(classes_of_one(), skip=checks.names())) == 0


def test_issues_list_what_is_flagged_and_what_comes_next() -> None:
    features, given = clusters(400, 2)
    features[:5] = 40 * np.random.default_rng(1).standard_normal((5, 8))
    table = run_checks(made(features, given, ["no", "yes"]), skip=[n for n in checks.names() if n != "outlier"])
    flags = table["flag"].to_numpy(zero_copy_only=False)
    assert len(table) == flags.sum() + 100
    assert flags[: flags.sum()].all()
    for part in (table.filter(flags), table.filter(~flags)):
        assert (np.diff(part["score"].to_numpy()) <= 0).all()
