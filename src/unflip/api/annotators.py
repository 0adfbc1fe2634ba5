"""annotators: consensus labels and reliability from the labels of several annotators alone; nothing is trained."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from unflip.api.result import Result
from unflip.api.save import save
from unflip.data.annotations import LongLabels, annotate, annotate_columns, long_form, read_annotations, with_consensus
from unflip.data.columns import read_table
from unflip.data.dataset import Dataset, Split
from unflip.data.labels import NAMING
from unflip.data.memory import InMemory, annotation_table, is_long
from unflip.data.options import DataOptions
from unflip.errors import InputError, unknown
from unflip.report.run_report import write_report
from unflip.runs.annotators import annotator_tables
from unflip.runs.config import check_section
from unflip.runs.folder import Claim


def annotators(
    data: Any,
    out: str | Path | None = None,
    *,
    annotator_columns: Sequence[str] | str = (),
    classes: Sequence[str] = (),
    force: bool = False,
) -> Result:
    """Estimate true classes, and how reliable each annotator is, from their labels alone (Dawid and Skene 1979).

    If you have images, texts or features, use ``clean(..., annotations=...)`` instead, which also learns from them.

    Args:
        data: a file with one row per label (columns ``index``, ``path`` or ``id``; ``annotator``; ``label``), an export
            from Label Studio or Argilla (.json), a table with ``annotator_columns``, a data frame or an array.
        out: the run folder; by default a new temporary folder, which is not deleted.
        annotator_columns: for a table with one row per example, the label column of each annotator; a cell is empty if
            the annotator gave no label.
        classes: class names in order; by default the classes that occur in the labels.
        force: replace the run in ``out``.
    """
    columns = check_section(DataOptions, {"path": "", "annotator_columns": annotator_columns}).annotator_columns
    what = str(data) if isinstance(data, str | Path) else "annotations"
    raw, fit = with_consensus(_read(data, columns, tuple(classes), what), what)
    long, names, count = long_form(raw), raw.class_names or (), len(raw.train.inputs)
    ids = raw.ids or ()
    given, q = np.asarray(raw.train.labels), fit.log_probs.double().exp()
    number = {name: code for code, name in enumerate(names)}
    quality = q[torch.arange(count), torch.tensor([number[name] for name in given.tolist()])]
    by = [long.names[person] for person in long.annotator.tolist()]
    said: list[list[str]] = [[] for _ in range(count)]
    for row, person, label in zip(long.example.tolist(), by, long.label.tolist(), strict=True):
        said[row].append(f"{person}: {names[label]}")
    examples = pa.table({"id": ids, "labels": [", ".join(labels) for labels in said], "label": given})
    learned = {
        "index": np.arange(count),
        "given_label": given,
        "suggested_label": np.array(names, np.str_)[q.argmax(1).numpy()],
        "label_quality": quality.numpy(),
    }
    result = save(pa.table(learned), InMemory(examples), out, force=force, classes=names)
    with Claim(result, force=True) as claim:
        claim.hold()
        result.write_annotators(annotator_tables(fit, long, torch.arange(count), ids, names))
        write_report(result)
    return result


def _read(data: Any, columns: Sequence[str], classes: Sequence[str], what: str) -> Dataset:
    """Return examples that have nothing but names and annotations, at least one each."""
    source = Path(data) if isinstance(data, str | Path) else annotation_table(data)
    if columns or (isinstance(source, pa.Table) and not is_long(source)):
        table = source if isinstance(source, pa.Table) else read_table(source, what, [*columns])
        header = table.column_names
        if wrong := next((name for name in columns if name not in header), None):
            raise InputError(f"{what}: --annotator-columns: {unknown('column', wrong, header)}")
        own = next((name for name in header if name.lower() in NAMING and name not in columns), None)
        ids = [str(cell) for cell in table[own].to_pylist()] if own else [str(row) for row in range(len(table))]
        chosen = columns or [name for name in header if name != own]
        raw = annotate_columns(_named(ids), {name: table[name].to_pylist() for name in chosen}, classes, what)
    else:
        found = read_annotations(source, what)
        names = _names(found)
        raw = annotate(_named([*dict.fromkeys(names)]), found._replace(naming={"id": names}), classes, what)
    return replace(raw, train=raw.train[np.flatnonzero((np.asarray(raw.train.annotations) >= 0).any(1))])


def _named(ids: Sequence[str]) -> Dataset:
    return Dataset(Split(np.zeros((len(ids), 1), np.float32), None, ids=np.array(ids, np.str_)))


def _names(found: LongLabels) -> list[str]:
    """Return the name of the example of each label: its path or id, else its index."""
    name = next(name for name in (*NAMING[1:], NAMING[0]) if name in found.naming)
    return [str(cell) for cell in found.naming[name]]
