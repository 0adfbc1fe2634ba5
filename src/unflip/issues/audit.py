"""What a check looks at, and what it answers.

A check is a function ``find_...(examined: Examined) -> Found`` in a file of its own, registered in ``unflip.issues``
under the name that ``findings.csv`` shows. It scores examples from 0, as they should be, to 1, flags those that are
worth a look, and says in a line why. It never changes a label, and it never sees the truth. To add one:

1. Write the function. What it needs is in :class:`Examined`: the run's table of labels, the names of the classes, and
   the data. Where it does not apply, it returns :func:`nothing`.
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
from unflip.issues.duplicates import Alike
from unflip.progress import Track, untracked
from unflip.runs.labels import Finding, findings_table

_NEXT = 100  # examples without a flag that are listed all the same, those with the highest scores


@dataclass(frozen=True)
class Examined:
    """The examples of a finished run, training and validation examples in the order of its table of labels."""

    table: pa.Table
    """The run's labels; see :func:`unflip.runs.labels.label_table`."""
    class_names: Sequence[str]
    data: Dataset
    """What was learnt from, as rows of features."""
    alike: Alike | None = None
    """Which examples are the same or nearly so, if anybody looked."""

    @property
    def features(self) -> Shards:
        """All examples (n, ...) in the order of the table; they may lie on disk."""
        parts = [part.inputs for part in (self.data.train, self.data.val) if part is not None]
        return Shards([part for part in parts if isinstance(part, np.ndarray | Shards)])


class Found(NamedTuple):
    """What a check says of m examples or classes."""

    rows: Array
    """Which rows of the table (m,); -1 for what is said of a class."""
    scores: Array
    """How much each is what the check looks for (m,), from 0 to 1."""
    flags: Array
    """Whether each is worth a look (m,)."""
    say: Callable[[Array], list[str]]
    """Returns the reasons for those at positions (p,) among the m; a line each."""
    groups: Array | None = None
    """Numbers of the groups that findings form (m,), from 0 in the order of the list, where they form any."""


def nothing() -> Found:
    """Return what a check says that does not apply to the data."""
    none = np.empty(0, np.int64)
    return Found(none, none.astype(float), none.astype(bool), lambda _: [])


def run_checks(examined: Examined, skip: Collection[str] = (), track: Track = untracked) -> pa.Table:
    """Return the findings of every check but those to ``skip``: what is flagged, and the next 100 of each."""
    wanted = [entry for entry in checks if entry.name not in skip]
    found = {}
    for entry in track(wanted, "looking for more", len(wanted)):
        result: Found = entry.load()(examined)
        found[entry.name] = _listed(result)
    return findings_table(examined.table, found)


def check_names(skip: Collection[str]) -> None:
    """Refuse names that no check has."""
    for name in skip:
        if name not in checks:
            raise ConfigError(unknown("check", name, checks.names()))


def _listed(found: Found) -> Finding:
    first = -found.scores if found.groups is None else found.groups
    order = np.lexsort((found.rows, first, ~found.flags.astype(bool)))
    kept = order[: int(found.flags.sum()) + _NEXT]
    kept = kept[found.flags[kept] | (found.scores[kept] > 0)]
    groups = None if found.groups is None else found.groups[kept]
    return Finding(found.rows[kept], found.scores[kept], found.flags[kept], found.say(kept), groups)
