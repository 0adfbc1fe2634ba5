"""Near-duplicates: copies, also re-encoded, cropped or retyped, in groups; and leakage, copies in another split."""

from functools import cache

import numpy as np

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult, no_issues
from unflip.runs.labels import names_of


def find_near_duplicates(audited: AuditInput) -> CheckResult:
    """Return all examples with a near-duplicate; see :meth:`unflip.issues.duplicates.DuplicateIndex.group`."""
    table = audited.table
    if audited.duplicates is None:
        return no_issues()
    leaders, scores = audited.duplicates.group(len(table))
    keys = audited.duplicates.keys
    rows = np.flatnonzero(np.bincount(leaders)[leaders] > 1)
    given = np.array(names_of(table, "given_label").to_pylist(), object)
    groups, differ = _order_groups(leaders[rows], scores[rows], np.unique(given[rows], return_inverse=True)[1])
    ids = table["id"].to_pylist()
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(len(groups) + 1))

    @cache
    def heads(group: int) -> list[int]:
        """Return two examples of a group, and one with another label than the first, if any."""
        members = rows[order[starts[group] : starts[group + 1]]]
        return [*members[:2], *members[given[members] != given[members[0]]][:1]]

    def reason(position: int) -> str:
        group, row = int(groups[position]), rows[position]
        other = min((given[head] == given[row], head) for head in heads(group) if head != row)[1]
        more = int(starts[group + 1] - starts[group]) - 2
        also = f" and {more:,} more" if more else ""
        labeled = f", and labeled {given[row]}" if differ[position] else ""
        return f"{_how(keys[row] == keys[other])} {ids[other]} ({given[other]}){also}{labeled}"

    return CheckResult(rows, scores[rows], np.ones(len(rows), bool), reason, groups)


def _how(equal: bool) -> str:
    return "the same as" if equal else "nearly the same as"


def _order_groups(groups: Array, scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return group numbers (m,) in listing order (different labels first, then by score), and which groups differ."""
    _, numbers = np.unique(groups, return_inverse=True)
    differ = np.bincount(np.unique(np.stack([numbers, labels]), axis=1)[0]) > 1
    best = np.zeros(len(differ))
    np.maximum.at(best, numbers, scores)
    rank = np.lexsort((-best, ~differ)).argsort()
    return rank[numbers], differ[numbers]


def find_leakage(audited: AuditInput) -> CheckResult:
    """Return the training and validation examples with a near-duplicate in another split, each with the closest one."""
    duplicates = audited.duplicates
    if duplicates is None or len(duplicates.parts) == 1:
        return no_issues()
    count = len(duplicates.keys)
    splits = [duplicates.rows_of(name) for name in ("train", "val") if name in duplicates.parts]
    matches = [duplicates.partners(rows, slice(rows.stop, count)) for rows in splits]  # with the splits that follow
    rows, others, scores = (np.concatenate(column) for column in zip(*matches, strict=True))

    def reason(position: int) -> str:
        name = next(name for name in duplicates.parts if others[position] < duplicates.rows_of(name).stop)
        part, row = audited.data.parts()[name], int(others[position]) - duplicates.rows_of(name).start
        example = f"example {row}" if part.ids is None else part.ids[row]
        label = "" if part.labels is None else f" ({part.labels[row]})"
        return f"{_how(scores[position] == 1)} {example}{label} of '{name}'"

    return CheckResult(rows, scores, np.ones(len(rows), bool), reason)
