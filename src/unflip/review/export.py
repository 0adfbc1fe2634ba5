"""The result of a review: a CSV of the labels that people settled, for ``unflip train --reviewed``."""

import csv
import io
from pathlib import PurePath

from unflip.data.images.files import is_image
from unflip.review.decisions import DecisionStore
from unflip.review.examples import Examples


def as_csv(examples: Examples, decisions: DecisionStore) -> str:
    """Return ``index,path,label`` of what was accepted, kept or changed.

    Examples that are no files have an ``id`` in the place of the path, or neither where that would only be the index.
    """
    named = next((i for i, name in enumerate(examples.ids) if name != str(i)), None)
    column = [] if named is None else ["path" if is_image(PurePath(examples.ids[named]).name) else "id"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", *column, "label"])
    for row in decisions.decided():
        assert row.label is not None
        name = [examples.ids[row.example]] if column else []
        writer.writerow([row.example, *name, examples.class_names[row.label]])
    return text.getvalue()
