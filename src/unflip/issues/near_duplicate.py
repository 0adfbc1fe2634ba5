"""Near-duplicates: copies, also re-encoded, cropped or retyped; groups with different labels come first."""

from functools import cache

import numpy as np

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult, no_issues
from unflip.runs.labels import names_of

_NAMED = 2  # duplicates that a reason names


def find_near_duplicates(audited: AuditInput) -> CheckResult:
    """Return all examples with a near-duplicate; see :meth:`unflip.issues.duplicates.DuplicateIndex.group`."""
    table = audited.table
    if audited.duplicates is None:
        return no_issues()
    leaders, scores = audited.duplicates.group(len(table))
    keys = audited.duplicates.keys
    copies = np.bincount(keys[: len(table)])
    _, numbers, sizes = np.unique(leaders, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(sizes[numbers] > 1)
    given = np.array(names_of(table, "given_label").to_pylist(), object)
    groups, differ = _order_groups(numbers[rows], scores[rows], np.unique(given[rows], return_inverse=True)[1])
    ids = table["id"].to_pylist()
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(len(groups) + 1))

    @cache
    def heads(group: int) -> list[int]:
        """Return the first examples of each label, as many as a reason may need."""
        by_label: dict[str, list[int]] = {}
        for row in rows[order[starts[group] : starts[group + 1]]].tolist():
            by_label.setdefault(given[row], []).append(row)
        return sorted(row for members in by_label.values() for row in members[: _NAMED + 1])

    def reason(position: int) -> str:
        group, label, key = int(groups[position]), given[rows[position]], keys[rows[position]]
        others = [row for row in heads(group) if row != rows[position]]
        others.sort(key=lambda row: given[row] == label)  # other labels first
        size, equal = int(starts[group + 1] - starts[group]), int(copies[key])
        named = [(f"{ids[row]} ({given[row]})", keys[row] == key) for row in others[:_NAMED]]
        parts = [
            _enumerate("the same as", [name for name, same in named if same], equal - 1),
            _enumerate("nearly the same as", [name for name, same in named if not same], size - equal),
        ]
        return ", ".join(filter(None, parts)) + (f", and labeled {label}" if differ[position] else "")

    return CheckResult(rows, scores[rows], np.ones(len(rows), bool), reason, groups)


def _enumerate(how: str, named: list[str], count: int) -> str:
    """Name some of ``count`` duplicates and count the rest; empty if there are none."""
    rest = count - len(named)
    more = "more" if named else "other" if rest == 1 else "others"
    names = " and ".join([*named, f"{rest:,} {more}"] if rest else named)
    return f"{how} {names}" if count else ""


def _order_groups(groups: Array, scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return group numbers (m,) in listing order (different labels first, then by score), and which groups differ."""
    _, numbers = np.unique(groups, return_inverse=True)
    count = int(numbers.max(initial=-1)) + 1
    low, high, best = np.full(count, len(labels)), np.full(count, -1), np.zeros(count)
    np.minimum.at(low, numbers, labels)
    np.maximum.at(high, numbers, labels)
    np.maximum.at(best, numbers, scores)
    differ = low < high
    rank = np.empty(count, np.int64)
    rank[np.lexsort((np.arange(count), -best, ~differ))] = np.arange(count)
    return rank[numbers], differ[numbers]
