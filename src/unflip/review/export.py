"""The result of a review: a CSV of what was decided, for ``unflip train --reviewed``."""

import csv
import io
from pathlib import PurePath

from unflip.data.files.reviewed import LABEL, REMOVE
from unflip.data.images.files import is_image
from unflip.review.decisions import DecisionStore
from unflip.review.examples import Examples


def as_csv(examples: Examples, decisions: DecisionStore) -> str:
    """Return ``index,path,label,decision`` of what was accepted, kept, changed or removed; the last has no label.

    Examples that are not files have an ``id`` instead of the path, or neither if it would only repeat the index.
    """
    named = next((i for i, name in enumerate(examples.ids) if name != str(i)), None)
    column = [] if named is None else ["path" if is_image(PurePath(examples.ids[named]).name) else "id"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", *column, "label", "decision"])
    for row in decisions.decided():
        name = [examples.ids[row.example]] if column else []
        settled = ["", REMOVE] if row.label is None else [examples.class_names[row.label], LABEL]
        writer.writerow([row.example, *name, *settled])
    return text.getvalue()
