"""The examples with the most doubtful labels: their images, or their texts and the labels of their neighbours."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow
import pyarrow.compute

from unflip.report.views import Views
from unflip.runs.folder import Run
from unflip.runs.labels import most_doubtful_first
from unflip.stats.nearest import nearest

_SHOWN = 24
_NEIGHBOURS = 10


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


def find_doubtful(run: Run, table: pyarrow.Table, names: Sequence[str], views: Views) -> Doubts:
    """Find the unreviewed examples with the lowest quality."""
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
    examples = [
        replace(example, picture=views.picture(place), text=views.text(place))
        for example, place in zip(examples, places.tolist(), strict=True)
    ]
    if views.pictures is not None:
        return Doubts(tuple(examples), True, views.small, None, below_half)
    features = run.features
    if features is None or len(features) != len(table) or not examples:
        return Doubts(tuple(examples), False, False, views.note, below_half)
    found = nearest(features, features[places], _NEIGHBOURS, leave_out=places)
    current = np.append(table["current"].to_numpy(), -1)  # index -1 stands for a missing neighbour
    shown = [
        replace(example, neighbours=tuple(Counter(names[c] for c in around if c >= 0).most_common()))
        for example, around in zip(examples, current[found.indices].tolist(), strict=True)
    ]
    return Doubts(tuple(shown), False, False, views.note, below_half)
