"""The result of a review: a CSV of what was decided, for ``unflip train --reviewed``."""

import csv
import io
from pathlib import PurePath

import numpy as np

from unflip.data.files import is_image
from unflip.data.labels import LABEL, REMOVE
from unflip.review.decisions import DecisionStore, State
from unflip.review.examples import Examples
from unflip.runs.labels import REMOVED


def settled(examples: Examples, decisions: DecisionStore) -> dict[int, int | None]:
    """Return the label of every example that people settled, None where they removed it, in order of the examples.

    What came reviewed into the run holds until somebody decides otherwise, or is not sure.
    """
    current = examples.columns["current"]
    doubted = decisions.states == State.UNSURE
    labels = {
        i: None if examples.splits[i] == REMOVED else int(current[i])
        for i in np.flatnonzero(examples.reviewed & ~doubted).tolist()
    }
    labels |= {row.example: row.label for row in decisions.decided()}
    return dict(sorted(labels.items()))


def as_csv(examples: Examples, decisions: DecisionStore) -> str:
    """Return ``index,path,label,decision`` of what people settled; what is removed has no label.

    Examples that are not files have an ``id`` instead of the path, or neither if it would only repeat the index.
    """
    named = next((i for i, name in enumerate(examples.ids) if name != str(i)), None)
    column = [] if named is None else ["path" if is_image(PurePath(examples.ids[named]).name) else "id"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", *column, "label", "decision"])
    for example, label in settled(examples, decisions).items():
        name = [examples.ids[example]] if column else []
        writer.writerow([example, *name, *(["", REMOVE] if label is None else [examples.class_names[label], LABEL])])
    return text.getvalue()
