"""labels.parquet, a row per example, and the one rule for which labels look wrong; issues.csv, a row per issue."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from unflip.data.arrays import Array
from unflip.data.files import is_image
from unflip.errors import RunFolderError
from unflip.methods.base import LabelStore

REMOVED = "removed"
"""The ``split`` of examples that people removed."""
HELD = 0.9
"""The share of wrong labels that people are told where to find."""
_NAMED = ("given_label", "current_label", "suggested_label")
_GIVEN, _CURRENT, _SUGGESTED = range(3)


class Assessment(NamedTuple):
    """What is believed of every example's labels: the given, the current and the suggested one (n, 3)."""

    probs: Tensor
    """The method's probabilities of the three; its own if it keeps any, otherwise the model's."""
    network: Tensor
    """The networks' probabilities of them."""
    gaussian_probs: Tensor | None
    """The class Gaussians' probabilities of them, if they were asked."""
    top2: Tensor
    """The two likeliest classes (n, 2), by the views that quality comes from."""
    top2_probs: Tensor
    """Their probabilities (n, 2)."""
    log_odds: Tensor
    """Calibrated log-odds that the given label is right, in double precision; NaN where that cannot be said."""
    suggested: Tensor
    """The label to propose to a person."""
    out_of_sample: Tensor
    """Whether quality comes from views alone that had not learned the example's label."""
    fold: Tensor
    """Which examples were learned together; -1 where there are no folds."""


def label_table(
    labels: LabelStore,
    assessment: Assessment,
    *,
    splits: Sequence[str],
    ids: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> pa.Table:
    """Return one row per example: what its label was, what it is now, and how sure that is.

    Labels: ``given_label`` is the original, ``current_label`` the one after correction, ``suggested_label`` the one to
    propose; where somebody decided, both are the decision. ``changed``, ``n_changes`` and ``last_changed_epoch`` (0 for
    never) are the history. ``top1`` and ``top2`` are the two most likely classes, whatever the label.

    Scores: ``label_quality`` is the probability that the given label is right, null where it is unknown, 1 where
    somebody decided; ``log_odds`` are ``log(quality / (1 - quality))``, not rounded. ``out_of_sample`` is whether they
    come only from views that were not trained on the label. ``is_label_issue`` is the one rule for a label issue:
    another label is suggested, and nobody has decided. ``prob_...`` are probabilities by the method,
    ``network_prob_...`` by the networks, ``gaussian_prob_...`` by the class Gaussians.

    ``fold`` says which examples trained together; ``reviewed`` marks decisions, removed examples among them.

    Args:
        labels: of n examples in k classes.
        assessment: what is believed of each example.
        splits: ``train``, ``val`` or ``removed`` for every example.
        ids: what examples are called; by default their number.
        class_names: by class number; adds ``given_label_name``, ``current_label_name``, ``suggested_label_name``.
    """
    count, history = len(labels), labels.history()
    last_changed = torch.zeros(count, dtype=torch.int32)
    last_changed.scatter_reduce_(0, history["index"], history["epoch"], "amax")
    given, current, trusted = labels.given.cpu(), labels.current.cpu(), labels.trusted.cpu()
    removed = torch.tensor([split == REMOVED for split in splits])
    decided = trusted | removed
    suggested = current.where(decided, assessment.suggested.cpu())
    log_odds = assessment.log_odds.cpu().masked_fill(removed, torch.nan)
    quality = log_odds.sigmoid().float().masked_fill(trusted & ~removed, 1.0).numpy()

    def said(view: Tensor | None, of: int) -> Any:
        if view is None:
            return pa.nulls(count, pa.float32())
        column = view[:, of].cpu()
        return (column.where(~decided, view[:, _CURRENT].cpu()) if of == _SUGGESTED else column).numpy()

    columns: dict[str, Any] = {
        "index": np.arange(count),
        "id": pa.array(np.arange(count)).cast(pa.string()) if ids is None else list(ids),
        "split": list(splits),
        "given_label": given.numpy(),
        "current_label": current.numpy(),
        "changed": (given != current).numpy(),
        "prob_current": said(assessment.probs, _CURRENT),
        "prob_given": said(assessment.probs, _GIVEN),
        "network_prob_given": said(assessment.network, _GIVEN),
        "gaussian_prob_given": said(assessment.gaussian_probs, _GIVEN),
        "suggested_label": suggested.numpy(),
        "prob_suggested": said(assessment.probs, _SUGGESTED),
        "network_prob_suggested": said(assessment.network, _SUGGESTED),
        "gaussian_prob_suggested": said(assessment.gaussian_probs, _SUGGESTED),
        "top1": assessment.top2[:, 0].cpu().numpy(),
        "prob_top1": assessment.top2_probs[:, 0].cpu().numpy(),
        "top2": assessment.top2[:, 1].cpu().numpy(),
        "prob_top2": assessment.top2_probs[:, 1].cpu().numpy(),
        "last_changed_epoch": last_changed.numpy(),
        "n_changes": torch.bincount(history["index"], minlength=count).to(torch.int32).numpy(),
        "label_quality": pa.array(quality, from_pandas=True),
        "is_label_issue": ((given != suggested) & ~decided).numpy(),
        "log_odds": pa.array(log_odds.masked_fill(trusted, torch.nan).numpy(), from_pandas=True),
        "out_of_sample": assessment.out_of_sample.cpu().numpy(),
        "fold": assessment.fold.cpu().to(torch.int16).numpy(),
        "reviewed": decided.numpy(),
    }
    if class_names is not None:
        names = pa.array(class_names, pa.string())
        columns |= {f"{kind}_name": names.take(columns[kind]) for kind in _NAMED}
    return pa.table(columns)


def peoples_labels(table: pa.Table) -> Array:
    """Return the label (n,) that people decided on, or else gave."""
    decided = table["reviewed"].to_numpy(zero_copy_only=False)
    labels: Array = np.where(decided, table["current_label"].to_numpy(), table["given_label"].to_numpy())
    return labels


def label_issue_mask(table: pa.Table) -> Array:
    """Return which given labels (n,) are label issues."""
    mask: Array = table["is_label_issue"].to_numpy(zero_copy_only=False)
    return mask


def lowest_quality_first(table: pa.Table) -> Array:
    """Return the rows (n,) in order of quality, those without one last; among equals, classes take turns."""
    return in_turns(table["log_odds"].to_numpy(), table["given_label"].to_numpy())


def in_turns(log_odds: Array, given: Array) -> Array:
    """Return positions (n,) in order of log-odds, NaN last; among equals first one of each class, then a second one."""
    if not len(given):
        return np.arange(0)
    classes = np.unique(given, return_inverse=True)[1]
    order = np.lexsort((classes, log_odds))  # stable: of equals of one class the first comes first
    values, labels = log_odds[order], classes[order]
    same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    tied = np.append(False, same)
    begins = np.flatnonzero(~(tied & np.append(True, labels[1:] == labels[:-1])))
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    result: Array = order[np.lexsort((labels, turn, np.cumsum(~tied)))]
    return result


class ExpectedErrors(NamedTuple):
    """How many wrong labels to expect, by their quality, among those that nobody has decided about."""

    total: float
    first: tuple[tuple[int, float], ...]
    """Of the first 100, 1,000, ... of the list, the most doubtful first."""
    most: int
    """How many of the list hold :data:`HELD` of them."""


def expect_errors(quality: Array) -> ExpectedErrors:
    """Return how many wrong labels to expect of qualities (m,), NaN where they are not known."""
    so_far = wrong_so_far(np.sort(quality[~np.isnan(quality)]))
    total = float(so_far[-1]) if len(so_far) else 0.0
    sizes = [10**power for power in range(2, len(str(len(so_far))))]
    first = tuple((size, float(so_far[size - 1])) for size in sizes if size < len(so_far))
    return ExpectedErrors(total, first, int(np.searchsorted(so_far, HELD * total)) + 1 if total else 0)


def wrong_share(table: pa.Table) -> float | None:
    """Return the share of labels to expect wrong among those that were judged; None where none was."""
    quality = table["label_quality"].to_numpy()
    judged = ~table["reviewed"].to_numpy(zero_copy_only=False) & ~np.isnan(quality)
    return expect_errors(quality[judged]).total / int(judged.sum()) if judged.any() else None


def wrong_so_far(quality: Array) -> Array:
    """Return how many labels to expect wrong among each and those before it: the running sum of ``1 - q``."""
    sums: Array = np.cumsum(1 - quality.astype(np.float64))
    return sums


def names_of(table: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a column of labels by class name, or by number where classes have no names."""
    return table[f"{column}_name" if f"{column}_name" in table.column_names else column]


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file of a run, all columns or some."""
    try:
        return pyarrow.parquet.read_table(path, columns=columns)
    except FileNotFoundError as error:
        raise RunFolderError(f"{path.parent}: no {path.name}; is this the folder of a finished run?") from error
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: not a readable Parquet file ({error})") from error


SCHEMA = pa.schema(
    {
        "index": pa.int64(), "id": pa.string(), "issue": pa.string(), "score": pa.float64(), "flag": pa.bool_(),
        "reason": pa.string(), "group": pa.int64(),
    }
)  # fmt: skip
"""``index`` and ``id`` (``path`` where examples are image files) are null for what is said of a class."""


class Issue(NamedTuple):
    """What is listed under one name, the worst first (m,)."""

    rows: Array
    """Of the table of labels; -1 for what is said of a class."""
    scores: Array
    flags: Array
    reasons: Sequence[str]
    groups: Array | None = None


def issues_table(labels: pa.Table, found: Mapping[str, Issue]) -> pa.Table:
    """Return all issues as one table; ``labels`` is that of the run."""
    parts = [_part(labels, name, issue) for name, issue in found.items()]
    table = pa.concat_tables([SCHEMA.empty_table(), *parts])
    named = any(is_image(PurePath(name).name) for name in labels["id"].slice(0, 1).to_pylist())
    return table.rename_columns(["index", "path" if named else "id", *SCHEMA.names[2:]])


def _part(labels: pa.Table, name: str, issue: Issue) -> pa.Table:
    known = issue.rows >= 0
    count = len(issue.rows)
    rows = pa.array(issue.rows, pa.int64(), mask=~known)
    groups = pa.nulls(count, pa.int64()) if issue.groups is None else pa.array(issue.groups, pa.int64())
    return pa.table(
        {
            "index": rows,
            "id": labels["id"].combine_chunks().cast(pa.string()).take(rows),
            "issue": pa.array([name] * count, pa.string()),
            "score": np.round(issue.scores.astype(np.float64), 6),
            "flag": issue.flags.astype(bool),
            "reason": pa.array(list(issue.reasons), pa.string()),
            "group": groups,
        }
    )


def without_removed(issues: pa.Table, labels: pa.Table) -> pa.Table:
    """Return the issues about what people have not removed."""
    removed = np.append(np.array(labels["split"].to_pylist()) == REMOVED, False)  # -1 stands for a class
    return issues.filter(~removed[issues["index"].fill_null(-1).to_numpy()])


def read_issues(path: Path) -> pa.Table:
    """Read the issues of a run; the column ``path`` becomes ``id``, as in the table of labels."""
    kinds = {field.name: field.type for field in SCHEMA} | {"path": pa.string()}
    try:
        table = pa.csv.read_csv(
            path,
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=kinds, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: not a readable list of issues ({error})") from error
    return table.rename_columns(["id" if name == "path" else name for name in table.column_names])
