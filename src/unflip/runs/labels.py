"""The table of labels of a run: one row per example; its columns, and the one rule for which labels look wrong."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from torch import Tensor

from unflip.data.files.arrays import Array
from unflip.errors import RunFolderError
from unflip.labels.store import LabelStore

COLUMNS = (
    "index", "id", "split", "given", "current", "changed", "confidence_current", "confidence_given", "network_given",
    "vote_given", "suggested", "confidence_suggested", "network_suggested", "vote_suggested", "last_change", "changes",
    "quality", "judged", "fold", "reviewed",
)  # fmt: skip
"""Every table of labels has these."""
OUT_OF_SAMPLE, IN_SAMPLE = "out-of-sample", "in-sample"
"""How a label was judged: by views that had not learnt it, or by some that had."""
_NAMED = ("given", "current", "suggested")
_GIVEN, _CURRENT, _SUGGESTED = range(3)


class Assessment(NamedTuple):
    """What is believed of every example's labels: the given, the current and the suggested one (n, 3)."""

    probs: Tensor
    """The method's probabilities of the three; its own if it keeps any, otherwise the model's."""
    network: Tensor
    """The networks' probabilities of them."""
    votes: Tensor | None
    """The class Gaussians' probabilities of them, if they were asked."""
    quality: Tensor
    """How likely the given label is right; NaN where that cannot be said."""
    suggested: Tensor
    """The label to propose to a person."""
    out_of_sample: Tensor
    """Whether quality comes from views alone that had not learnt the example's label."""
    fold: Tensor
    """Which examples were learnt together; -1 where there are no folds."""


def label_table(
    labels: LabelStore,
    assessment: Assessment,
    *,
    splits: Sequence[str],
    ids: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> pa.Table:
    """Return one row per example: what its label was, what it is now, and how sure that is.

    Columns: ``quality`` is how likely the given label is right, null where that cannot be said, ``judged`` whether the
    views that say so had learnt that label, ``suggested`` the label to propose in its place (or the same),
    ``last_change`` an epoch, 0 for never. ``confidence_...`` is what the method believes of a label, ``network_...``
    and ``vote_...`` what the networks and the class Gaussians say of it, ``fold`` which examples were learnt together.
    ``given`` is what came, also where people decided otherwise; what they decided has a quality of 1 and is suggested.

    Args:
        labels: of n examples in k classes.
        assessment: what is believed of each example.
        splits: ``train`` or ``val`` for every example.
        ids: what examples are called; by default their number.
        class_names: by class number; adds the columns ``given_name``, ``current_name`` and ``suggested_name``.
    """
    count, history = len(labels), labels.history()
    last_change = torch.zeros(count, dtype=torch.int32)
    last_change.scatter_reduce_(0, history["index"], history["epoch"], "amax")
    given, current, trusted = labels.given.cpu(), labels.current.cpu(), labels.trusted.cpu()
    suggested = current.where(trusted, assessment.suggested.cpu())
    quality = assessment.quality.cpu().masked_fill(trusted, 1.0).numpy()

    def said(view: Tensor | None, of: int) -> Any:
        if view is None:
            return pa.nulls(count, pa.float32())
        column = view[:, of].cpu()
        return (column.where(~trusted, view[:, _CURRENT].cpu()) if of == _SUGGESTED else column).numpy()

    columns: dict[str, Any] = {
        "index": np.arange(count),
        "id": pa.array(np.arange(count)).cast(pa.string()) if ids is None else list(ids),
        "split": list(splits),
        "given": given.numpy(),
        "current": current.numpy(),
        "changed": (given != current).numpy(),
        "confidence_current": said(assessment.probs, _CURRENT),
        "confidence_given": said(assessment.probs, _GIVEN),
        "network_given": said(assessment.network, _GIVEN),
        "vote_given": said(assessment.votes, _GIVEN),
        "suggested": suggested.numpy(),
        "confidence_suggested": said(assessment.probs, _SUGGESTED),
        "network_suggested": said(assessment.network, _SUGGESTED),
        "vote_suggested": said(assessment.votes, _SUGGESTED),
        "last_change": last_change.numpy(),
        "changes": torch.bincount(history["index"], minlength=count).to(torch.int32).numpy(),
        "quality": pa.array(quality, from_pandas=True),
        "judged": pa.array([IN_SAMPLE, OUT_OF_SAMPLE]).take(assessment.out_of_sample.cpu().to(torch.int8).numpy()),
        "fold": assessment.fold.cpu().to(torch.int16).numpy(),
        "reviewed": trusted.numpy(),
    }
    if class_names is not None:
        names = pa.array(class_names, pa.string())
        columns |= {f"{kind}_name": names.take(columns[kind]) for kind in _NAMED}
    return pa.table(columns)


def looks_wrong(table: pa.Table) -> Array:
    """Return which given labels (n,) look wrong: another one is suggested, and nobody has decided about the example."""
    differs = table["given"].to_numpy() != table["suggested"].to_numpy()
    wrong: Array = differs & ~table["reviewed"].to_numpy(zero_copy_only=False)
    return wrong


def most_doubtful_first(table: pa.Table) -> Array:
    """Return the rows (n,) in order of quality, those without one last; of equal ones the first comes first."""
    order: Array = table["quality"].to_numpy().argsort(kind="stable")
    return order


def names_of(table: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a column of labels by class name, or by number where classes have no names."""
    return table[f"{column}_name" if f"{column}_name" in table.column_names else column]


def read_labels(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table of labels, all columns or some; refuse one that lacks any."""
    table = read_table(path, columns)
    missing = next((name for name in columns or COLUMNS if name not in table.column_names), None)
    if missing is not None:
        raise RunFolderError(f"{path}: no column '{missing}'; train again with this version of unflip")
    return table


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file of a run, all columns or some."""
    try:
        return pyarrow.parquet.read_table(path, columns=columns)
    except FileNotFoundError as error:
        raise RunFolderError(f"{path.parent}: no {path.name}; is this the folder of a finished run?") from error
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: not a readable Parquet file ({error})") from error
