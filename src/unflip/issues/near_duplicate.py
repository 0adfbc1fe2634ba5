"""near_duplicate: examples that are there twice, also re-encoded, cropped or re-typed; under different labels first."""

from functools import cache

import numpy as np

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult, no_issues
from unflip.runs.labels import names_of

_NAMED = 2  # partners that a reason names


def find_near_duplicates(audited: AuditInput) -> CheckResult:
    """Return all examples that have a partner; see :meth:`unflip.issues.duplicates.DuplicateIndex.group`."""
    table = audited.table
    if audited.duplicates is None:
        return no_issues()
    leaders, scores = audited.duplicates.group(len(table))
    keys = audited.duplicates.keys
    copies = np.bincount(keys[: len(table)])
    _, numbers, sizes = np.unique(leaders, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(sizes[numbers] > 1)
    given = np.array(names_of(table, "given_label").to_pylist(), object)
    groups, differ = _in_order(numbers[rows], scores[rows], np.unique(given[rows], return_inverse=True)[1])
    ids = table["id"].to_pylist()
    members = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[members], np.arange(len(groups) + 1))

    @cache
    def heads(group: int) -> list[int]:
        """Return the first members of each label, as many as a reason may need."""
        found: dict[str, list[int]] = {}
        for row in rows[members[starts[group] : starts[group + 1]]].tolist():
            own = found.setdefault(given[row], [])
            if len(own) <= _NAMED:
                own.append(row)
        return sorted(row for own in found.values() for row in own)

    def reason(position: int) -> str:
        group = int(groups[position])
        others = [row for row in heads(group) if row != rows[position]]
        others.sort(key=lambda row: given[row] == given[rows[position]])  # another label first
        own = keys[rows[position]]
        size, same = int(starts[group + 1] - starts[group]), int(copies[own])
        named = [(f"{ids[row]} ({given[row]})", keys[row] == own) for row in others[:_NAMED]]
        equal = _listed("the same as", [name for name, is_equal in named if is_equal], same - 1)
        near = _listed("nearly the same as", [name for name, is_equal in named if not is_equal], size - same)
        labels = f", and labeled {given[rows[position]]}" if differ[position] else ""
        return ", ".join([*equal, *near]) + labels

    return CheckResult(rows, scores[rows], np.ones(len(rows), bool), reason, groups)


def _listed(how: str, named: list[str], count: int) -> list[str]:
    """Name some of ``count`` partners, and say how many others there are; nothing where there is none."""
    rest = count - len(named)
    more = "more" if named else "other" if rest == 1 else "others"
    names = " and ".join([*named, f"{rest:,} {more}"] if rest else named)
    return [f"{how} {names}"] if count else []


def _in_order(groups: Array, scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return the groups (m,) numbered anew, those of different labels first, then the most alike, and which differ."""
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
