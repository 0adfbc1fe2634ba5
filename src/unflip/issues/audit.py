"""Input and result of a check, and running all of them.

A check is a function ``find_...(audited: AuditInput) -> CheckResult`` in a module of its own, registered in
``unflip.issues`` under the name that ``issues.csv`` shows. It scores examples from 0 (fine) to 1, flags those worth a
look, and gives a one-line reason. It never changes a label and never sees true labels. To add one:

1. Write the function. :class:`AuditInput` has all it may use: the run's label table, the class names and the data.
   Return :func:`no_issues` where the check does not apply.
2. Process examples in blocks: there may be a million, with features on disk. Never allocate an (n, n) array.
3. Choose a threshold that needs no true labels and flags hardly anything in clean data.
4. Register it with a one-line summary. ``tests/issues/test_contract.py`` then covers it.
5. Describe it in docs/quality.md, and its accuracy in docs/results/.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from unflip.data.arrays import Array, Shards
from unflip.data.dataset import Dataset, Inputs
from unflip.issues import checks
from unflip.progress import Track, untracked
from unflip.runs.labels import Issue, issues_table

if TYPE_CHECKING:
    from unflip.issues.duplicates import DuplicateIndex

_log = logging.getLogger(__name__)
_UNFLAGGED = 100  # listed per check in addition to the flagged ones, by score


@dataclass(frozen=True)
class AuditInput:
    """The n training and validation examples of a finished run, in the order of its label table.

    Attributes:
        table: see :func:`unflip.runs.labels.label_table`.
        class_names: by class index.
        data: the training data as feature rows.
        duplicates: near-duplicates, if they were searched for.
        examples: the examples of each part before they were encoded, where they are known.
    """

    table: pa.Table
    class_names: Sequence[str]
    data: Dataset
    duplicates: "DuplicateIndex | None" = None
    examples: Mapping[str, Inputs] = field(default_factory=dict)

    @property
    def features(self) -> Shards:
        """Features (n, ...) in the order of the table; possibly on disk."""
        parts = [part.inputs for part in (self.data.train, self.data.val) if part is not None]
        return Shards([part for part in parts if isinstance(part, np.ndarray | Shards)])


class CheckResult(NamedTuple):
    """The result of a check for m examples, classes, columns or slices.

    Attributes:
        rows: row of each in the label table (m,); -1 for what is no example.
        scores: severity (m,), from 0 to 1.
        flags: whether each is worth a look (m,).
        reason: maps a position among the m to a one-line reason; called only for those that are listed.
        groups: group index of each (m,), in listing order; None if the check forms no groups.
    """

    rows: Array
    scores: Array
    flags: Array
    reason: Callable[[int], str]
    groups: Array | None = None


def no_issues() -> CheckResult:
    """Return the result of a check that does not apply to the data."""
    return of_no_example(())


def of_no_example(issues: Sequence[tuple[float, bool, str]]) -> CheckResult:
    """Return issues, each a score, a flag and a reason, that belong to classes, columns or slices."""
    scores, flags = (np.array([issue[place] for issue in issues], dtype) for place, dtype in ((0, float), (1, bool)))
    return CheckResult(np.full(len(issues), -1), scores, flags, lambda at: issues[at][2])


def run_checks(audited: AuditInput, skip: Collection[str] = (), track: Track = untracked) -> pa.Table:
    """Run every check not in ``skip`` and list all flagged examples, and the next 100 of each check, by score."""
    entries = [entry for entry in checks if entry.name not in skip]
    issues = {}
    for entry in track(entries, "checking data", len(entries)):
        issues[entry.name] = _ranked(entry.load()(audited))
        _log.info("check %s: %d flagged", entry.name, issues[entry.name].flags.sum())
    return issues_table(audited.table, issues)


def _ranked(result: CheckResult) -> Issue:
    rows, scores, flags, reason, groups = result
    order = np.lexsort((rows, -scores if groups is None else groups, ~flags.astype(bool)))
    order = order[: int(flags.sum()) + _UNFLAGGED]
    order = order[flags[order] | (scores[order] > 0)]
    reasons = [reason(position) for position in order.tolist()]
    return Issue(rows[order], scores[order], flags[order], reasons, None if groups is None else groups[order])
