"""The examples with the most doubtful labels: their images, or their texts and the labels of their neighbours."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow
import pyarrow.compute

from unflip.data.viewing.pictures import Pictures
from unflip.errors import InputError, UnflipError
from unflip.report.page import embedded
from unflip.runs.folder import Run
from unflip.runs.labels import most_doubtful_first
from unflip.stats.nearest import nearest

_SHOWN = 24
_NEIGHBOURS = 10
_SIDE = 160  # pixels
_CHARACTERS = 300  # of a text


@dataclass(frozen=True)
class Doubtful:
    """An example with a doubtful label."""

    id: str
    given: str
    suggested: str
    quality: float | None
    """None where it cannot be said; such examples come last."""
    picture: str | None = None
    """As a data URL; None if there is no image or it cannot be read."""
    text: str | None = None
    """Its beginning, in one line; None where examples are no texts."""
    neighbours: tuple[tuple[str, int], ...] = ()
    """The current labels of its nearest neighbours with their counts, the most frequent first."""


@dataclass(frozen=True)
class Doubts:
    """The most doubtful examples, and why images or texts may be missing."""

    examples: tuple[Doubtful, ...]
    pictured: bool
    small: bool
    """Whether the images are so small that single pixels should stay visible."""
    note: str | None
    below_half: int
    """Examples whose given label has a quality below one half."""

    @property
    def has_texts(self) -> bool:
        """Whether there are texts to show."""
        return any(example.text is not None for example in self.examples)


def find_doubtful(run: Run, table: pyarrow.Table, names: Sequence[str], data: str | None) -> Doubts:
    """Find the unreviewed examples with the lowest quality; ``data`` is where the data is now, if it was moved."""
    compute = pyarrow.compute
    below_half = int(compute.sum(compute.less(table["quality"], 0.5)).as_py() or 0)
    order = most_doubtful_first(table)
    undecided = ~table["reviewed"].to_numpy()
    rows = table.take(order[undecided[order]][:_SHOWN])
    examples = [
        Doubtful(row["id"], names[row["given"]], names[row["suggested"]], row["quality"])
        for row in rows.select(["id", "given", "suggested", "quality"]).to_pylist()
    ]
    places = rows["index"].to_numpy()
    note, what = None, "images"
    try:
        pictures = run.pictures(data)
        if pictures is not None:
            shown = [
                replace(example, picture=_picture(pictures, place))
                for example, place in zip(examples, places.tolist(), strict=True)
            ]
            return Doubts(tuple(shown), True, pictures.media_type == "image/png", None, below_half)
        cells = None
        if run.text_columns:
            what = "texts"
            cells = run.rows(data)
        if cells is not None:
            examples = [
                replace(example, text=_beginning(cells.text(place)))
                for example, place in zip(examples, places.tolist(), strict=True)
            ]
        elif data is not None:
            raise InputError(
                f"--data {data}: holds no pictures or texts, and a report shows nothing else of it; leave it out"
            )
    except UnflipError as error:
        if data is not None:  # given explicitly
            raise
        note = f"The {what} are missing ({error})."
    features = run.features
    if features is None or len(features) != len(table) or not examples:
        return Doubts(tuple(examples), False, False, note, below_half)
    found = nearest(features, features[places], _NEIGHBOURS, leave_out=places)
    current = np.append(table["current"].to_numpy(), -1)  # index -1 stands for a missing neighbour
    shown = [
        replace(example, neighbours=tuple(Counter(names[c] for c in around if c >= 0).most_common()))
        for example, around in zip(examples, current[found.indices].tolist(), strict=True)
    ]
    return Doubts(tuple(shown), False, False, note, below_half)


def _picture(pictures: Pictures, place: int) -> str | None:
    """Return an image as a data URL; None if its file was damaged or removed since the run."""
    try:
        return embedded(pictures.thumbnail(place, _SIDE), pictures.media_type)
    except InputError:
        return None


def _beginning(text: str | None) -> str | None:
    if text is None:
        return None
    line = " ".join(text[: 4 * _CHARACTERS].split())
    return line if len(line) <= _CHARACTERS and len(text) <= 4 * _CHARACTERS else f"{line[:_CHARACTERS].rstrip()}…"
