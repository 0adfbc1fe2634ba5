"""The examples whose given labels a run doubts most: their pictures, or what their neighbours are called."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow
import pyarrow.compute
import torch

from unflip.data.viewing.pictures import Pictures
from unflip.errors import InputError, UnflipError
from unflip.report.page import embedded
from unflip.runs.folder import Run
from unflip.stats.neighbours import nearest

_SHOWN = 24
_NEIGHBOURS = 10
_SIDE = 160  # pixels


@dataclass(frozen=True)
class Doubtful:
    """One example."""

    id: str
    given: str
    suggested: str
    quality: float
    picture: str | None = None
    """As an address that is part of the page; None where there is none, or its file broke."""
    neighbours: tuple[tuple[str, int], ...] = ()
    """What its nearest neighbours are called now, and how many of them: the most frequent first."""


@dataclass(frozen=True)
class Doubts:
    """The most doubtful examples, and why there is not more to see of them."""

    examples: tuple[Doubtful, ...]
    pictured: bool
    small: bool
    """Whether the pictures have so few pixels that each should be seen."""
    note: str | None
    below_half: int
    """Examples whose given label has a quality below one half."""


def find_doubtful(run: Run, table: pyarrow.Table, names: Sequence[str], data: str | None) -> Doubts:
    """Take the examples of lowest quality that nobody decided about; ``data`` says where the data is by now."""
    compute = pyarrow.compute
    below_half = int(compute.sum(compute.less(table["quality"], 0.5)).as_py() or 0)
    open_ones = table.filter(compute.invert(table["reviewed"])) if "reviewed" in table.column_names else table
    rows = open_ones.take(
        compute.select_k_unstable(open_ones, _SHOWN, [("quality", "ascending"), ("index", "ascending")])
    )
    examples = [
        Doubtful(row["id"], names[row["given"]], names[row["suggested"]], row["quality"])
        for row in rows.select(["id", "given", "suggested", "quality"]).to_pylist()
    ]
    places = torch.tensor(rows["index"].to_numpy())
    note = None
    try:
        pictures = run.pictures(data)
        if pictures is not None:
            shown = [
                replace(example, picture=_picture(pictures, place))
                for example, place in zip(examples, places.tolist(), strict=True)
            ]
            return Doubts(tuple(shown), True, pictures.media_type == "image/png", None, below_half)
    except UnflipError as error:
        if data is not None:  # somebody named it
            raise
        note = f"The pictures are missing: {error}."
    features = run.features
    if features is None or len(features) != len(table) or not examples:
        return Doubts(tuple(examples), False, False, note, below_half)
    points = torch.from_numpy(features)
    found = nearest(points, points[places].float(), _NEIGHBOURS, leave_out=places)
    current = np.append(table["current"].to_numpy(), -1)  # -1 where there are too few
    shown = [
        replace(example, neighbours=tuple(Counter(names[c] for c in around if c >= 0).most_common()))
        for example, around in zip(examples, current[found.indices.numpy()].tolist(), strict=True)
    ]
    return Doubts(tuple(shown), False, False, note, below_half)


def _picture(pictures: Pictures, place: int) -> str | None:
    """Return a picture as part of the page; None where its file broke or went since the run."""
    try:
        return embedded(pictures.thumbnail(place, _SIDE), pictures.media_type)
    except InputError:
        return None
