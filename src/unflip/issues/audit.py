"""What a check looks at, and what it answers.

A check is a function ``find_...(examined: Examined) -> Found`` in a file of its own, registered in ``unflip.issues``
under the name that ``issues.csv`` shows. It scores examples from 0, as they should be, to 1, flags those that are
worth a look, and says in a line why. It never changes a label, and it never sees the truth. To add one:

1. Write the function. What it needs is in :class:`AuditInput`: the run's table of labels, the names of the classes, and
   the data. Where it does not apply, it returns :func:`no_issues`.
2. Go over examples in blocks: there may be a million, and features may lie on disk. No array has n times n numbers.
3. Choose the rule that flags without the truth, so that data without such examples gets hardly any flag.
4. Register it with a line on what it finds. ``tests/issues/test_contract.py`` then tests it.
5. Describe it in docs/your-data.md, and in docs/audit.md how good it is.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from unflip.data.arrays import Array, Shards
from unflip.data.dataset import Dataset
from unflip.errors import ConfigError, unknown
from unflip.issues import checks
from unflip.issues.duplicates import DuplicateIndex
from unflip.progress import Track, untracked
from unflip.runs.labels import Issue, issues_table

_NEXT = 100  # examples without a flag that are listed all the same, those with the highest scores


@dataclass(frozen=True)
class AuditInput:
    """The examples of a finished run, training and validation examples in the order of its table of labels.

    Attributes:
        table: the run's labels; see :func:`unflip.runs.labels.label_table`.
        class_names: by number of the class.
        data: the training data as rows of features.
        alike: which examples are the same or nearly so, if that was computed.
    """

    table: pa.Table
    class_names: Sequence[str]
    data: Dataset
    duplicates: DuplicateIndex | None = None

    @property
    def features(self) -> Shards:
        """All examples (n, ...) in the order of the table; they may lie on disk."""
        parts = [part.inputs for part in (self.data.train, self.data.val) if part is not None]
        return Shards([part for part in parts if isinstance(part, np.ndarray | Shards)])


class CheckResult(NamedTuple):
    """What a check says of m examples or classes.

    Attributes:
        rows: which rows of the table (m,); -1 for what is said of a class.
        scores: how much each is what the check looks for (m,), from 0 to 1.
        flags: whether each is worth a look (m,).
        reason: returns why, in one line, for a position among the m; only asked for what is listed.
        groups: numbers of the groups that issues form (m,), from 0 in the order of the list, where they form any.
    """

    rows: Array
    scores: Array
    flags: Array
    reason: Callable[[int], str]
    groups: Array | None = None

    def describe(self, positions: Array) -> list[str]:
        """Return the reasons for those at ``positions`` (p,)."""
        return [self.reason(position) for position in positions.tolist()]


def no_issues() -> CheckResult:
    """Return what a check says that does not apply to the data."""
    none = np.empty(0, np.int64)
    return CheckResult(none, none.astype(float), none.astype(bool), str)


def run_checks(audited: AuditInput, skip: Collection[str] = (), track: Track = untracked) -> pa.Table:
    """Return the issues of every check but those to ``skip``: what is flagged, and the next 100 of each."""
    wanted = [entry for entry in checks if entry.name not in skip]
    found = {entry.name: _listed(entry.load()(audited)) for entry in track(wanted, "looking for more", len(wanted))}
    return issues_table(audited.table, found)


def check_names(skip: Collection[str]) -> None:
    """Refuse names that no check has."""
    for name in skip:
        if name not in checks:
            raise ConfigError(unknown("check", name, checks.names()))


def _listed(found: CheckResult) -> Issue:
    first = -found.scores if found.groups is None else found.groups
    order = np.lexsort((found.rows, first, ~found.flags.astype(bool)))
    kept = order[: int(found.flags.sum()) + _NEXT]
    kept = kept[found.flags[kept] | (found.scores[kept] > 0)]
    groups = None if found.groups is None else found.groups[kept]
    return Issue(found.rows[kept], found.scores[kept], found.flags[kept], found.describe(kept), groups)
