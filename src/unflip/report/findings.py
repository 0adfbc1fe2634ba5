"""What else was found in a run's data: how much of it, what one can do about it, and the worst of it to look at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from unflip.data.arrays import Array
from unflip.report.views import Views

_SHOWN = 12  # examples of a finding
_GROUPS, _MEMBERS = 6, 6  # groups of a finding, and examples of each
_ABOUT = {
    "stranger": (
        "Strangers",
        "Examples that are far from every class: pictures or texts that belong to none of them.",
        "Remove those that should not be in the data. If many belong together, a class may be missing.",
    ),
    "near_duplicate": (
        "Near-duplicates",
        "Groups of examples that are nearly the same: copies, crops, mirrored or re-encoded pictures, re-typed texts.",
        "Where their labels differ, at least one is wrong. Of the same label, keep one: the others count it twice.",
    ),
    "leak": (
        "Leaks",
        "Training or validation examples that are nearly the same as a test example.",
        "Remove them: what was learnt by heart makes the test accuracy too good.",
    ),
    "ambiguous": (
        "Ambiguous examples",
        "Two classes are about equally likely.",
        "Worth a look, not a correction: they show where a guideline leaves room. Keep them, or mark them as not sure.",
    ),
    "weak_class": (
        "Weak classes",
        "Classes that are confused more than one should expect, or that have few examples.",
        "Merge them, write a better guideline, or collect more examples.",
    ),
    "odd_image": (
        "Odd images",
        "Images that are nearly blank, very dark or bright, tiny, or of an odd shape.",
        "Remove those on which nothing can be seen.",
    ),
}
"""By name of a finding: heading, what it is, and what one can do about it."""


@dataclass(frozen=True)
class Entry:
    """An example of a finding, or what is said of a class."""

    id: str
    given: str
    reason: str
    picture: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Kind:
    """What was found under one name."""

    name: str
    heading: str
    what: str
    advice: str
    count: int
    """How many examples or classes are flagged."""
    entries: tuple[Entry, ...]
    """The worst, where they form no groups."""
    groups: tuple[tuple[Entry, ...], ...]
    """The first members of the worst groups, those under different labels first."""
    group_count: int
    of_classes: bool


def find_findings(table: pa.Table, findings: pa.Table, names: Sequence[str], views: Views) -> list[Kind]:
    """Return what was flagged, in the order of the file; ``table`` is that of the labels."""
    flagged = findings.filter(findings["flag"])
    kinds = list(dict.fromkeys(flagged["finding"].to_pylist()))
    return [_kind(name, flagged.filter(compute.equal(flagged["finding"], name)), table, names, views) for name in kinds]


def _kind(name: str, found: pa.Table, table: pa.Table, names: Sequence[str], views: Views) -> Kind:
    heading, what, advice = _ABOUT.get(name, (name.replace("_", " ").capitalize(), "", ""))
    given = table["given"].to_numpy()

    def entries(rows: pa.Table) -> tuple[Entry, ...]:
        places = rows["index"].to_pylist()
        labels = ["" if place is None else names[given[place]] for place in places]
        return tuple(
            Entry(str(id_ or ""), label, reason, *(() if place is None else (views.picture(place), views.text(place))))
            for place, id_, label, reason in zip(
                places, rows["id"].to_pylist(), labels, rows["reason"].to_pylist(), strict=True
            )
        )

    groups = _groups(found, given)
    return Kind(
        name=name,
        heading=heading,
        what=what,
        advice=advice,
        count=len(found),
        entries=() if groups else entries(found if name == "weak_class" else found.slice(0, _SHOWN)),
        groups=tuple(entries(found.take(rows[:_MEMBERS])) for rows in groups[:_GROUPS]),
        group_count=len(groups),
        of_classes=found["index"].null_count == len(found),
    )


def _groups(found: pa.Table, given: Array) -> list[list[int]]:
    """Return the positions of each group's members; groups under different labels first, then as they are listed."""
    members: dict[int, list[int]] = {}
    for position, group in enumerate(found["group"].to_pylist()):
        if group is not None:
            members.setdefault(group, []).append(position)
    index = found["index"].to_numpy(zero_copy_only=False) if members else np.arange(0)
    labels = {group: {int(given[int(index[i])]) for i in rows} for group, rows in members.items()}
    return [members[group] for group in sorted(members, key=lambda group: len(labels[group]) == 1)]
