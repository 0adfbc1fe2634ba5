"""The result of a review: a CSV of the decided labels, for ``unflip train --reviewed``."""

import csv
import io
from pathlib import PurePath

from unflip.data.images.files import is_image
from unflip.review.decisions import DecisionStore
from unflip.review.examples import Examples


def as_csv(examples: Examples, decisions: DecisionStore) -> str:
    """Return ``index,path,label`` of the labels that were accepted, kept or changed.

    Examples that are not files have an ``id`` instead of the path, or neither if it would only repeat the index.
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
