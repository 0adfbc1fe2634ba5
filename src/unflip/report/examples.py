"""Examples on the report: those with the lowest label quality and those with other issues, with picture or text."""

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

_LOWEST = 24  # examples with the lowest label quality
_NEIGHBORS = 10
_FLAGGED = 12  # examples of a check
_GROUPS, _MEMBERS = 6, 6  # groups of a check, and examples of each
_SIDE = 160  # pixels of a picture
_CHARACTERS = 300  # of a text


@dataclass(frozen=True)
class Views:
    """The pictures or texts of a run's examples.

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
        """Whether pictures are so small that single pixels should stay visible."""
        return self.pictures is not None and self.pictures.media_type == "image/png"

    def picture(self, index: int) -> str | None:
        """Return a picture as a data URL; None if there is none, or its file cannot be read any more."""
        if self.pictures is None:
            return None
        try:
            content = self.pictures.thumbnail(index, _SIDE)
        except InputError:
            return None
        return f"data:{self.pictures.media_type};base64,{b64encode(content).decode()}"

    def text(self, index: int) -> str | None:
        """Return the beginning of a text, in one line; None if examples are not texts."""
        text = self.rows.text(index) if self.rows else None
        if text is None:
            return None
        line = " ".join(text[: 4 * _CHARACTERS].split())
        return line if len(line) <= _CHARACTERS and len(text) <= 4 * _CHARACTERS else f"{line[:_CHARACTERS].rstrip()}…"


@dataclass(frozen=True)
class Shown:
    """An example on the page.

    Attributes:
        id: its name.
        given: name of the given label.
        picture: as a data URL.
        text: its beginning, in one line.
        suggested: name of the suggested label.
        quality: label quality; None if unknown.
        neighbors: current labels of the nearest neighbors with their counts, most frequent first.
        reason: why a check flagged it.
    """

    id: str = ""
    given: str = ""
    picture: str | None = None
    text: str | None = None
    suggested: str = ""
    quality: float | None = None
    neighbors: tuple[tuple[str, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Kind:
    """The issues of one check.

    Attributes:
        name: of the check; the template has its heading and explanation.
        count: number of flagged examples or classes.
        entries: the first of them, if they form no groups.
        groups: the first members of the first groups, different labels first.
        group_count: number of groups.
        of_classes: whether it flags classes instead of examples.
    """

    name: str
    count: int
    entries: tuple[Shown, ...]
    groups: tuple[tuple[Shown, ...], ...]
    group_count: int
    of_classes: bool


def open_views(run: Run, data: str | None) -> Views:
    """Open the pictures or texts of a run; ``data`` is where the data is now, if it was moved."""
    try:
        if pictures := run.pictures(data):
            return Views(pictures)
        if run.text_columns:
            return Views(rows=run.rows(data))
    except UnflipError as error:
        if data is not None:
            raise
        return Views(note=f"The {'texts' if run.text_columns else 'images'} are missing ({error}).")
    if data is not None:
        raise InputError(f"--data {data}: has no pictures or texts to show")
    return Views()


def find_lowest_quality(run: Run, table: pa.Table, names: Sequence[str], views: Views) -> list[Shown]:
    """Return the unreviewed examples with the lowest label quality; those without pictures with their neighbors."""
    order = lowest_quality_first(table)
    rows = table.take(order[~table["reviewed"].to_numpy()[order]][:_LOWEST])
    columns = ["index", "id", "given_label", "suggested_label", "label_quality"]
    examples = [
        Shown(name, names[given], views.picture(index), views.text(index), names[suggested], quality)
        for index, name, given, suggested, quality in zip(*(rows[key].to_pylist() for key in columns), strict=True)
    ]
    features = run.features
    if views.pictures is not None or features is None or len(features) != len(table) or not examples:
        return examples
    indices = rows["index"].to_numpy()
    neighbors = nearest(features, features[indices], _NEIGHBORS, leave_out=indices).indices
    current = np.append(table["current_label"].to_numpy(), -1)  # index -1 stands for a missing neighbor
    return [
        replace(example, neighbors=tuple(Counter(names[c] for c in labels if c >= 0).most_common()))
        for example, labels in zip(examples, current[neighbors].tolist(), strict=True)
    ]


def find_issues(table: pa.Table, issues: pa.Table, names: Sequence[str], views: Views) -> list[Kind]:
    """Return the flagged issues by check, in the order of the file; ``table`` is the label table."""
    flagged = issues.filter(issues["flag"])
    kinds = list(dict.fromkeys(flagged["issue"].to_pylist()))
    given = table["given_label"].to_numpy()
    return [_kind(name, flagged.filter(compute.equal(flagged["issue"], name)), given, names, views) for name in kinds]


def _kind(name: str, issues: pa.Table, given: Array, names: Sequence[str], views: Views) -> Kind:
    def show(rows: pa.Table) -> tuple[Shown, ...]:
        columns = zip(*(rows[key].to_pylist() for key in ("index", "id", "reason")), strict=True)
        return tuple(
            Shown(reason=reason)
            if i is None
            else Shown(id_, names[given[i]], views.picture(i), views.text(i), reason=reason)
            for i, id_, reason in columns
        )

    groups = _groups(issues, given)
    of_classes = issues["index"].null_count == len(issues)
    entries = () if groups else show(issues if of_classes else issues.slice(0, _FLAGGED))
    shown = tuple(show(issues.take(rows[:_MEMBERS])) for rows in groups[:_GROUPS])
    return Kind(name, len(issues), entries, shown, len(groups), of_classes)


def _groups(issues: pa.Table, given: Array) -> list[list[int]]:
    """Return the positions of each group's members; groups with different labels first, then in listing order."""
    members: dict[int, list[int]] = {}
    for position, group in enumerate(issues["group"].to_pylist()):
        if group is not None:
            members.setdefault(group, []).append(position)
    index = issues["index"].fill_null(-1).to_numpy()
    return sorted(members.values(), key=lambda rows: len(set(given[index[rows]].tolist())) == 1)
