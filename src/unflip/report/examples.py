"""Examples on a page: those with the lowest label quality, and those that a check flagged, with picture or text."""

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from unflip.data.arrays import Array
from unflip.data.preview import Pictures, Rows
from unflip.errors import InputError, UnflipError
from unflip.runs.folder import Run
from unflip.runs.labels import lowest_quality_first
from unflip.stats.nearest import nearest

_LOWEST = 24  # examples of the lowest label quality
_NEIGHBORS = 10
_FLAGGED = 12  # examples of a check
_GROUPS, _MEMBERS = 6, 6  # groups of a check, and examples of each
_SIDE = 160  # pixels of a picture
_CHARACTERS = 300  # of a text


@dataclass(frozen=True)
class Views:
    """What can be shown of a run's examples.

    Attributes:
        pictures: if the examples are images.
        rows: if they are texts.
        note: why pictures or texts are missing, if they are.
    """

    pictures: Pictures | None = None
    rows: Rows | None = None
    note: str | None = None

    @property
    def small(self) -> bool:
        """Whether the pictures are so small that single pixels should stay visible."""
        return self.pictures is not None and self.pictures.media_type == "image/png"

    def picture(self, index: int) -> str | None:
        """Return a picture as a data URL; None if there is none or its file was damaged or removed since the run."""
        if self.pictures is None:
            return None
        try:
            content = self.pictures.thumbnail(index, _SIDE)
        except InputError:
            return None
        return f"data:{self.pictures.media_type};base64,{b64encode(content).decode()}"

    def text(self, index: int) -> str | None:
        """Return the beginning of a text, in one line; None where examples are no texts."""
        text = self.rows.text(index) if self.rows else None
        if text is None:
            return None
        line = " ".join(text[: 4 * _CHARACTERS].split())
        return line if len(line) <= _CHARACTERS and len(text) <= 4 * _CHARACTERS else f"{line[:_CHARACTERS].rstrip()}…"


@dataclass(frozen=True)
class Shown:
    """An example on a page.

    Attributes:
        id: its name.
        given: the name of its given label.
        picture: as a data URL; None if there is no image or it cannot be read.
        text: its beginning, in one line; None where examples are no texts.
        suggested: the name of the suggested label.
        quality: the probability that the given label is right; None where it cannot be estimated.
        neighbors: the current labels of its nearest neighbors with their counts, the most frequent first.
        reason: why a check flagged it.
    """

    id: str
    given: str
    picture: str | None = None
    text: str | None = None
    suggested: str = ""
    quality: float | None = None
    neighbors: tuple[tuple[str, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Kind:
    """What one check flagged.

    Attributes:
        name: of the check; the template has its heading, what it finds, and what to do about it.
        count: how many examples or classes are flagged.
        entries: the first of them, where they form no groups.
        groups: the first members of the first groups, those with different labels first.
        group_count: how many groups there are.
        of_classes: whether it flags classes instead of examples.
    """

    name: str
    count: int
    entries: tuple[Shown, ...]
    groups: tuple[tuple[Shown, ...], ...]
    group_count: int
    of_classes: bool


def open_views(run: Run, data: str | None) -> Views:
    """Find the pictures or texts of a run; ``data`` is where the data is now, if it was moved."""
    what = "images"
    try:
        pictures = run.pictures(data)
        if pictures is not None:
            return Views(pictures)
        if run.text_columns:
            what = "texts"
            return Views(rows=run.rows(data))
    except UnflipError as error:
        if data is not None:  # given explicitly
            raise
        return Views(note=f"The {what} are missing ({error}).")
    if data is not None:
        raise InputError(f"--data {data}: has no pictures or texts to show")
    return Views()


def find_lowest_quality(run: Run, table: pa.Table, names: Sequence[str], views: Views) -> list[Shown]:
    """Return the unreviewed examples with the lowest label quality, unknown ones last.

    Where there are no pictures, the labels of their nearest neighbors are what one can judge them by.
    """
    order = lowest_quality_first(table)
    rows = table.take(order[~table["reviewed"].to_numpy()[order]][:_LOWEST])
    examples = [
        Shown(row["id"], names[row["given_label"]], views.picture(row["index"]), views.text(row["index"]),
              names[row["suggested_label"]], row["label_quality"])
        for row in rows.select(["index", "id", "given_label", "suggested_label", "label_quality"]).to_pylist()
    ]  # fmt: skip
    features = run.features
    if views.pictures is not None or features is None or len(features) != len(table) or not examples:
        return examples
    indices = rows["index"].to_numpy()
    found = nearest(features, features[indices], _NEIGHBORS, leave_out=indices)
    current = np.append(table["current_label"].to_numpy(), -1)  # index -1 stands for a missing neighbor
    return [
        replace(example, neighbors=tuple(Counter(names[c] for c in around if c >= 0).most_common()))
        for example, around in zip(examples, current[found.indices].tolist(), strict=True)
    ]


def find_issues(table: pa.Table, issues: pa.Table, names: Sequence[str], views: Views) -> list[Kind]:
    """Return what was flagged, in the order of the file; ``table`` is that of the labels."""
    flagged = issues.filter(issues["flag"])
    kinds = list(dict.fromkeys(flagged["issue"].to_pylist()))
    given = table["given_label"].to_numpy()
    return [_kind(name, flagged.filter(compute.equal(flagged["issue"], name)), given, names, views) for name in kinds]


def _kind(name: str, found: pa.Table, given: Array, names: Sequence[str], views: Views) -> Kind:
    of_classes = found["index"].null_count == len(found)

    def show(rows: pa.Table) -> tuple[Shown, ...]:
        return tuple(
            Shown("", "", reason=row["reason"])
            if row["index"] is None
            else Shown(row["id"], names[given[row["index"]]], views.picture(row["index"]), views.text(row["index"]),
                       reason=row["reason"])
            for row in rows.select(["index", "id", "reason"]).to_pylist()
        )  # fmt: skip

    groups = _groups(found, given)
    return Kind(
        name=name,
        count=len(found),
        entries=() if groups else show(found if of_classes else found.slice(0, _FLAGGED)),
        groups=tuple(show(found.take(rows[:_MEMBERS])) for rows in groups[:_GROUPS]),
        group_count=len(groups),
        of_classes=of_classes,
    )


def _groups(found: pa.Table, given: Array) -> list[list[int]]:
    """Return the positions of each group's members; groups with different labels first, then in order of the list."""
    members: dict[int, list[int]] = {}
    labels: dict[int, set[int]] = {}
    for position, (group, index) in enumerate(
        zip(*(found[key].to_pylist() for key in ("group", "index")), strict=True)
    ):
        if group is not None:
            members.setdefault(group, []).append(position)
            labels.setdefault(group, set()).add(int(given[index]))
    return [members[group] for group in sorted(members, key=lambda group: len(labels[group]) == 1)]
