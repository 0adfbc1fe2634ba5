"""Tables about several annotators: how reliable each is, which of their labels are doubtful, and what to ask next."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import torch
from scipy.stats import beta
from torch import Tensor

from unflip.data.arrays import Array
from unflip.files import reading
from unflip.stats.annotators import Annotations, AnnotatorFit, copies

_CONFUSIONS = 3  # that are listed for each annotator
_MIN_CONFUSED = 0.1  # fraction of a class
_LEVEL = 0.95  # of intervals
_ASKED = 1000  # examples
_TEXT = ("id", "annotator", "label", "confuses", "copies", "top1", "top2")


def read_annotators(path: Path) -> pa.Table:
    """Read a table about annotators; names are text, even where they look like numbers."""
    types, parse = dict.fromkeys(_TEXT, pa.string()), pa.csv.ParseOptions(newlines_in_values=True)
    convert = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    with reading(path, "list of annotators or their labels"):
        return pa.csv.read_csv(path, parse_options=parse, convert_options=convert)


class Unlabeled(NamedTuple):
    """Examples that nobody labeled: rows (u,) of the label table, their two most likely classes, and how likely."""

    rows: Tensor
    top2: Tensor  # (u, 2)
    top2_probs: Tensor  # (u, 2)


class AnnotatorTables(NamedTuple):
    """Three tables of a run."""

    annotators: pa.Table
    annotations: pa.Table
    ask_next: pa.Table


def annotator_tables(
    fit: AnnotatorFit,
    annotations: Annotations,
    rows: Tensor,
    ids: Sequence[str],
    names: Sequence[str],
    unlabeled: Unlabeled | None = None,
) -> AnnotatorTables:
    """Return the tables that a run writes.

    - ``annotators``: ``annotator``, number of ``labels``, ``agreement`` with the others' labels of the same examples,
      estimated ``accuracy`` with a 95 % interval ``low`` to ``high``, ``chance`` (the accuracy of guessing the classes
      that they choose), ``confuses`` (true class > label, with the fraction of that class) and ``copies``.
    - ``annotations``: ``index``, ``id``, ``annotator``, ``label``, ``label_quality``, ``is_label_issue``.
    - ``ask_next``: the examples for which one more label helps most, with the annotator to ask.

    Args:
        fit: of the annotated examples.
        annotations: their labels.
        rows: the row of each example in the label table (n,).
        ids: of all examples.
        names: of the classes.
        unlabeled: further examples, which may be asked about.
    """
    q, annotations, rows = fit.log_probs.double().exp().cpu(), annotations.to("cpu"), rows.cpu()
    example, annotator, label, people = annotations
    right, best = q[example, label].numpy(), q.argmax(1)[example]
    index = rows[example].numpy()
    table = {
        "index": index,
        "id": pa.array(ids, pa.string()).take(pa.array(index)),
        "annotator": pa.array(people, pa.string()).take(pa.array(annotator.numpy())),
        "label": pa.array(names, pa.string()).take(pa.array(label.numpy())),
        "label_quality": right.astype(np.float32),
        "is_label_issue": (best != label).numpy(),
    }
    accuracy = float(right.mean()) if len(right) else 1.0
    return AnnotatorTables(
        _annotators(fit, annotations, right, q, names),
        pa.table(table).sort_by([("label_quality", "ascending")]),
        _ask_next(fit, annotations, rows, ids, names, q, accuracy, unlabeled),
    )


def _annotators(fit: AnnotatorFit, annotations: Annotations, right: Array, q: Tensor, names: Sequence[str]) -> pa.Table:
    by, label, people = annotations.annotator.numpy(), annotations.label.numpy(), annotations.names
    size, classes = len(people), len(names)
    labels = np.bincount(by, minlength=size)
    accuracy = np.bincount(by, right, size) / np.maximum(1, labels)
    # a label counts as much as is known about it: less where its posterior is uncertain
    spread = np.bincount(by, right * (1 - right), size) / np.maximum(1, labels)
    known = labels / (1 + spread / np.maximum(accuracy * (1 - accuracy), 1e-3))
    tail = (1 - _LEVEL) / 2
    low, high = (beta.ppf(p, accuracy * known + 0.5, (1 - accuracy) * known + 0.5) for p in (tail, 1 - tail))
    chosen = np.bincount(by * classes + label, minlength=size * classes).reshape(size, classes)
    chance = (chosen / np.maximum(1, labels)[:, None]) @ q.mean(0).numpy()
    doubles: dict[int, list[str]] = {}
    for first, second, common, agreed in copies(fit, annotations.to(fit.habits.device)):
        for one, other in ((first, second), (second, first)):
            doubles.setdefault(one, []).append(f"{people[other]} ({agreed} of {common})")
    columns: dict[str, Any] = {
        "annotator": [*people],
        "labels": labels,
        "agreement": _agreement(annotations),
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "chance": chance,
        "no_better_than_chance": low <= chance,
        "confuses": [_confusions(fit, number, q.mean(0), names) for number in range(size)],
        "copies": ["; ".join(doubles.get(number, [])) for number in range(size)],
    }
    return pa.table(columns).sort_by([("accuracy", "ascending")])


def _agreement(annotations: Annotations) -> Array:
    """Return how often each annotator (a,) agrees with another label of the same example; NaN if there are none."""
    example, by, label = (part.numpy() for part in (annotations.example, annotations.annotator, annotations.label))
    _, place, counts = np.unique(np.stack([example, label]), axis=1, return_inverse=True, return_counts=True)
    others = np.bincount(example)[example] - 1
    same = counts[place.ravel()] - 1
    size = len(annotations.names)
    with np.errstate(invalid="ignore"):
        result: Array = np.bincount(by, same, size) / np.bincount(by, others, size)
    return result


def _confusions(fit: AnnotatorFit, annotator: int, prior: Tensor, names: Sequence[str]) -> str:
    """Describe the most frequent confusions of an annotator, weighted by the frequency of the class."""
    matrix = fit.matrix(annotator).cpu().double().fill_diagonal_(0)
    order = (matrix * prior[:, None]).flatten().argsort(descending=True)[:_CONFUSIONS].tolist()
    pairs = [(code // len(names), code % len(names)) for code in order]
    shown = [(c, y) for c, y in pairs if float(matrix[c, y]) >= _MIN_CONFUSED]
    return "; ".join(f"{names[c]} > {names[y]} ({float(matrix[c, y]):.0%})" for c, y in shown)


def label_gain(first: Array, second: Array, accuracy: float, num_classes: int) -> Array:
    """Return how much one more label is expected to raise the probability of the most likely class (n,).

    Of the two most likely classes, with probabilities p and q, an annotator names the true one with probability r and
    the other with ``e = (1 - r) / (k - 1)``. The better guess after the label is right with probability
    ``max(p r, q e) + max(p e, q r)``, before it ``p (r + e)``; the difference is ``max(0, q r - p e)``.

    >>> label_gain(np.array([0.5, 0.99]), np.array([0.5, 0.01]), 0.9, 2).round(3)
    array([0.4, 0. ])
    """
    error = (1 - accuracy) / max(1, num_classes - 1)
    return np.maximum(0.0, second * accuracy - first * error)


def _ask_next(
    fit: AnnotatorFit,
    annotations: Annotations,
    rows: Tensor,
    ids: Sequence[str],
    names: Sequence[str],
    q: Tensor,
    accuracy: float,
    unlabeled: Unlabeled | None,
) -> pa.Table:
    """List the examples for which one more label helps most, with the best annotator who has not labeled them."""
    top2, order = q.topk(2)
    if unlabeled is not None:
        more_rows, classes, probs = (part.cpu() for part in unlabeled)
        rows, order, top2 = (torch.cat(pair) for pair in ((rows, more_rows), (order, classes), (top2, probs.double())))
    gain = label_gain(top2[:, 0].numpy(), top2[:, 1].numpy(), accuracy, len(names))
    chosen = np.argsort(-gain, kind="stable")[:_ASKED]
    chosen = chosen[gain[chosen] > 0]
    people, pair, device = annotations.names, order[chosen].to(fit.habits.device), fit.habits.device
    prior = top2[chosen].float().to(device)  # (r, 2)
    worth = torch.empty(len(people), len(chosen), device=device)
    for number in range(len(people)):  # how often the better guess of the two classes is right after their label
        by = torch.full((len(chosen),), number, device=device)
        after = torch.stack([fit.columns(by, pair[:, place]).gather(1, pair) * prior for place in range(2)])
        worth[number] = after.amax(2).sum(0) - after[:, :, 0].sum(0)
    place = torch.full((len(rows),), -1, device=device)
    place[torch.from_numpy(chosen).to(place)] = torch.arange(len(chosen), device=device)
    given = annotations.to(device)
    asked = place[given.example] >= 0
    worth[given.annotator[asked], place[given.example[asked]]] = -1.0
    best = worth.max(0)
    index = rows.numpy()[chosen]
    labels = annotations.counts(len(rows)).numpy()[chosen]
    whom = pa.array(people, pa.string()).take(pa.array(best.indices.cpu().numpy()))
    columns = {
        "index": index,
        "id": pa.array(ids, pa.string()).take(pa.array(index)),
        "gain": gain[chosen],
        "labels": labels,
        "top1": pa.array(names, pa.string()).take(pa.array(order[chosen, 0].numpy())),
        "top2": pa.array(names, pa.string()).take(pa.array(order[chosen, -1].numpy())),
        "annotator": pa.compute.if_else(best.values.cpu().numpy() >= 0, whom, None),
    }
    return pa.table(columns)
