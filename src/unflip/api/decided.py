"""Decided: what people decided before a run, and what became of other labels since the run that they looked at."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from unflip.data.files.arrays import Array
from unflip.errors import UnflipError
from unflip.runs.folder import Run
from unflip.runs.labels import REMOVED, expect_errors


class Before(NamedTuple):
    """The run that people looked at, compared with a later one."""

    folder: Path
    changed: int
    """How many labels that nobody decided about are other ones now."""
    wrong: float
    """How many labels were to be expected wrong then."""


class Decided(NamedTuple):
    """What ``--reviewed`` said."""

    labels: int
    changed: int
    """How many of these labels are not the given ones."""
    removed: int
    before: Before | None
    """Known where the file lies in the folder of a run on the same examples, where ``clean`` proposes to put it."""


def compare_decided(run: Run, reviewed: str | None) -> Decided:
    """Return what people had decided about a run's examples in the file ``reviewed``."""
    table = run.labels()
    about, changed = (table[name].to_numpy() for name in ("reviewed", "changed"))
    removed = np.array(table["split"].to_pylist()) == REMOVED
    labels = about & ~removed
    folder = run.folder if reviewed is None else Path(reviewed).parent
    before = None if folder.resolve() == run.folder.resolve() else _before(folder, table, ~about)
    return Decided(int(labels.sum()), int((labels & changed).sum()), int(removed.sum()), before)


def _before(folder: Path, table: pa.Table, undecided: Array) -> Before | None:
    try:
        run = Run(folder)
        if not run.is_finished:
            return None
        earlier = run.labels()
    except UnflipError:  # whatever it is, people need not know
        return None
    if not all(earlier[name].equals(table[name]) for name in ("id", "given")):
        return None
    differs = earlier["current"].to_numpy() != table["current"].to_numpy()
    return Before(folder, int((differs & undecided).sum()), expect_errors(earlier["quality"].to_numpy()).total)
