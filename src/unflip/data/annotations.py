"""Labels by several annotators: columns of a table, files in long form, exports of Label Studio and Argilla."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from unflip.data.columns import Columns, read_columns
from unflip.data.dataset import Dataset, Split
from unflip.data.files import read_text
from unflip.data.labels import LABEL, NAMING, as_names, find_examples, is_missing, whole_number
from unflip.data.matching import Keys
from unflip.errors import InputError, one_line
from unflip.stats.annotators import Annotations, AnnotatorFit, fit_annotators

ANNOTATOR, _QUESTION = "annotator", "question"
_LONG = "one row per label, with the columns index, path or id, annotator and label"


class LongLabels(NamedTuple):
    """Labels in long form, one per row: columns that name the example, and by whom which label, "" for none."""

    naming: Columns
    annotators: list[str]
    labels: list[str]


def read_annotations(path: Path | pa.Table, what: str = "") -> LongLabels:
    """Read labels in long form, or an export of Label Studio or Argilla.

    If annotators were asked several questions, the labels are the answers to the first that is not free text: most
    answers to it repeat others.

    Args:
        path: a .csv, .parquet or .jsonl file with a row per label, a .json file of Label Studio or Argilla, or a table.
        what: the name of the labels in errors.
    """
    what = what or f"annotations {path}"
    if isinstance(path, Path) and path.suffix.lower() == ".json":
        rows = [row for task in _tasks(path, what) for row in _labels_of(task)]
        answers: dict[str, list[str]] = {}
        for each in rows:
            answers.setdefault(each[_QUESTION], []).append(_text(each["label"]))
        repeated = [name for name, texts in answers.items() if 2 * len({*texts}) <= len(texts)]
        chosen = next(iter([*repeated, *answers]), "")
        rows = [row for row in rows if row[_QUESTION] == chosen]
        names = [name for name in NAMING if any(name in row for row in rows)] or ["id"]
        columns: Columns = {name: [row.get(name) for row in rows] for name in (*names, ANNOTATOR, "label")}
    else:
        columns, header = read_columns(path, (*NAMING, ANNOTATOR, "label"), what)
        if missing := [name for name in (ANNOTATOR, "label") if name not in columns]:
            raise InputError(f"{what}: no column '{missing[0]}' among {', '.join(header)}; {_LONG}")
    naming = {name: columns[name] for name in NAMING if name in columns}
    if not naming:
        raise InputError(f"{what}: no column 'index', 'path' or 'id'; {_LONG}")
    kept = [row for row, cell in enumerate(columns["label"]) if not is_missing(cell)]
    if (row := next((row for row in kept if isinstance(columns["label"][row], list)), None)) is not None:
        raise InputError(f"{what}, label {row}: several labels at once, {columns['label'][row]}; must be one")
    if (row := next((row for row in kept if is_missing(columns[ANNOTATOR][row])), None)) is not None:
        raise InputError(f"{what}, row {row}: no annotator")
    annotators, labels = ([_text(cell) for cell in columns[name]] for name in (ANNOTATOR, "label"))
    return LongLabels(naming, annotators, labels)


def _tasks(path: Path, what: str) -> list[Mapping[str, Any]]:
    try:
        tasks = json.loads(read_text(path, what))
    except ValueError as error:
        raise InputError(f"{what}: not a readable JSON file ({one_line(str(error))})") from error
    if not (isinstance(tasks, list) and all(isinstance(task, Mapping) for task in tasks)):
        raise InputError(f"{what}: not an export of Label Studio or Argilla, which is a JSON list of tasks or records")
    return tasks


def _labels_of(task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the choices of a task of Label Studio or the responses of a record of Argilla, each with its question.

    Formats: https://labelstud.io/guide/task_format.html; ``Record.to_dict`` of Argilla's Python SDK.
    """
    about = task.get("data") or task.get("metadata") or {}
    example = {name: about[name] for name in NAMING if name in about} or {"id": task.get("id")}
    for annotation in task.get("annotations") or ():
        by = annotation.get("completed_by")
        by = by.get("email", by.get("id")) if isinstance(by, Mapping) else by
        for part in () if annotation.get("was_cancelled") else annotation.get("result") or ():
            if choices := part.get("value", {}).get("choices"):
                label = choices[0] if len(choices) == 1 else choices
                yield {**example, ANNOTATOR: by, "label": label, _QUESTION: part.get("from_name")}
    for question, responses in (task.get("responses") or {}).items():
        for response in responses:
            if response.get("status", "submitted") == "submitted":
                by, label = response.get("user_id"), response.get("value")
                yield {**example, ANNOTATOR: by, "label": label, _QUESTION: question}


def _text(cell: Any) -> str:
    """Return a label or an annotator as text, "" for none: 2 and 2.0 are the same."""
    if is_missing(cell):
        return ""
    number = None if isinstance(cell, str) else whole_number(cell)
    return str(cell).strip() if number is None else str(number)


def annotate(raw: Dataset, found: LongLabels, classes: Sequence[str], what: str) -> Dataset:
    """Return data whose training examples have annotations; ``classes`` are those that are declared."""
    keys = Keys(raw.ids, None, np.zeros(len(raw.train.inputs)), [""])
    rows = find_examples(found.naming | {LABEL: found.labels}, keys, what)
    given = [_Given(*each) for each in zip(range(len(rows)), rows, found.annotators, found.labels, strict=True)]
    return _tabulate(raw, given, classes, what)


def annotate_columns(raw: Dataset, columns: Mapping[str, Sequence[Any]], classes: Sequence[str], what: str) -> Dataset:
    """Return data with annotations from one column per annotator."""
    given = [_Given(row, row, name, _text(cell)) for name, cells in columns.items() for row, cell in enumerate(cells)]
    return _tabulate(raw, given, classes, what)


class _Given(NamedTuple):
    """A label: its row in the file, the row of its example, by whom, and which."""

    line: int
    row: int
    by: str
    label: str


def _tabulate(raw: Dataset, given: Sequence[_Given], classes: Sequence[str], what: str) -> Dataset:
    """Return data with a table of class numbers (n, annotators); "" is no label."""
    given = [each for each in given if each.label]
    people, by = np.unique(np.array([each.by for each in given], np.str_), return_inverse=True)
    if not (classes or raw.class_names):  # else numbers are those of classes
        raw = raw.with_parts({key: replace(part, labels=as_names(part.labels)) for key, part in raw.parts().items()})
    own = {name for part in raw.parts().values() for name in _names(part)}
    names = [*(classes or raw.class_names or in_order({each.label for each in given} | own))]
    number = {name: code for code, name in enumerate(names)}
    if (wrong := next((each for each in given if each.label not in number), None)) is not None:
        message = f"'{wrong.label}' by {wrong.by} is not one of the classes {', '.join(names[:5])}"
        raise InputError(f"{what}, row {wrong.line}: {message}")
    codes, rows = np.array([number[each.label] for each in given], np.int32), [each.row for each in given]
    table = np.full((len(raw.train.inputs), len(people)), -1, np.int32)
    table[rows, by] = codes
    if (differs := table[rows, by] != codes).any():
        place = int(differs.argmax())
        each, other = given[place], names[table[rows[place], by[place]]]
        both = f"{each.by} labels example {each.row} '{each.label}' and '{other}'"
        raise InputError(f"{what}, row {each.line}: {both}; keep one of them")
    annotated = replace(raw.train, annotations=table)
    return replace(raw, train=annotated, class_names=(*names,), annotators=(*people.tolist(),))


def _names(part: Split) -> set[str]:
    """Return the labels that a split has besides annotations."""
    names = as_names(part.labels)
    return set() if names is None else {*names.tolist()} - {"", "nan"}


def in_order(names: set[str]) -> list[str]:
    """Return class names in alphabetical order, numbers by value.

    >>> in_order({"10", "9"}), in_order({"b", "10", "9"})
    (['9', '10'], ['10', '9', 'b'])
    """
    numbers = all(whole_number(name) is not None for name in names)
    return sorted(names, key=lambda name: (float(name) if numbers else 0.0, name))


def with_consensus(raw: Dataset, what: str) -> tuple[Dataset, AnnotatorFit]:
    """Return annotated data whose given labels are the majority's, and Dawid and Skene's model of the annotators.

    The data's own labels become the true ones.

    Ties go to the class that Dawid and Skene's model prefers; see :func:`unflip.stats.annotators.fit_annotators`.
    """
    train, names = raw.train, np.array(raw.class_names, np.str_)
    assert train.annotations is not None
    by = np.flatnonzero((train.annotations >= 0).any(0))
    if len(by) < 2:
        one = f"one annotator, '{raw.annotators[by[0]]}', gave all labels" if len(by) else "no label"
        raise InputError(f"{what}: {one}; at least two annotators are needed")
    long, count = long_form(raw), len(train.inputs)
    counts = long.label_counts(count, len(names))
    prior = torch.zeros(1, len(names)).log_softmax(1).expand(count, -1)
    fit = fit_annotators(long, prior, of_prior=True)
    winner = (counts + fit.log_probs.exp() / 2).argmax(1).numpy()
    labels = np.where(counts.sum(1).numpy() > 0, names[winner], "")
    return replace(raw, train=replace(train, labels=labels, truth=train.labels)), fit


def long_form(raw: Dataset) -> Annotations:
    """Return the annotations of the training examples in long form."""
    assert raw.train.annotations is not None
    rows, by = np.nonzero(raw.train.annotations >= 0)
    labels = raw.train.annotations[rows, by].astype(np.int64)
    example, annotator, label = map(torch.from_numpy, (rows, by, labels))
    return Annotations(example, annotator, label, raw.annotators)
