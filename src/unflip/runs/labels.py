"""labels.parquet (one row per example), label issues and doubtful labels, and issues.csv (other issues)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from pyarrow import compute
from torch import Tensor

from unflip.data.arrays import Array
from unflip.data.files import is_image
from unflip.data.labels import declare_classes
from unflip.errors import count_of
from unflip.files import reading, write_atomically
from unflip.methods.base import LabelStore

LABEL_ISSUE = "label_issue"
"""The name of a label issue among other issues."""
REMOVED, UNLABELED = "removed", "unlabeled"
"""The ``split`` of removed examples, and of those without a label."""
DOUBTFUL = 0.9
"""Labels of lower quality are doubtful: at least one in ten of them is wrong. Quality is the mean over all noise rates
that the data allows, so the less the data can tell, the more labels are doubtful."""
LABEL_COLUMNS = (
    "index", "id", "digest", "split", "given_label", "current_label", "suggested_label", "changed", "prob_suggested",
    "label_quality", "is_label_issue", "log_odds", "out_of_sample", "reviewed", "review_weight",
)  # fmt: skip
"""Columns that every label table has; see :func:`label_table` for all."""
_NAMED = ("given_label", "current_label", "suggested_label", "top1", "top2")
_LISTED = ("given_label", "suggested_label", "label_quality", "is_label_issue")  # in lists of labels
_GIVEN, _CURRENT, _SUGGESTED = range(3)


class Assessment(NamedTuple):
    """Scores of all examples; (n, 3) tensors have columns for the given, the current and the suggested label."""

    probs: Tensor
    """Probabilities (n, 3) by the method, or by the model if the method has none."""
    network: Tensor
    """Probabilities (n, 3) by the networks."""
    gaussian_probs: Tensor | None
    """Probabilities (n, 3) by the class Gaussians, if there are any."""
    top2: Tensor
    """The two most likely classes (n, 2)."""
    top2_probs: Tensor
    """Their probabilities (n, 2)."""
    log_odds: Tensor
    """Calibrated log-odds (n,) that the given label is correct, in double precision; NaN if unknown."""
    suggested: Tensor
    """The suggested labels (n,)."""
    out_of_sample: Tensor
    """Whether the scores (n,) come only from models that were not trained on the label."""
    fold: Tensor
    """The fold of each example (n,); -1 without cross-fitting."""
    expected_error: Tensor | None = None
    """Expected distance of the given label from the true class (n,), if classes are ordered."""


def label_table(
    labels: LabelStore,
    assessment: Assessment,
    *,
    splits: Sequence[str],
    ids: Sequence[str] | None = None,
    digests: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> pa.Table:
    """Return one row per example: its labels, scores and history.

    Labels: ``given_label`` is the original, ``current_label`` the one after correction, ``suggested_label`` the one to
    suggest to a reviewer; both are the reviewed label once there is one. ``changed``, ``n_changes`` and
    ``last_changed_epoch`` (0 for never) are the history. Without a label, the first two are -1 and their names null.
    ``top1`` and ``top2`` are the two most likely classes.

    Scores: ``label_quality`` is the probability that the given label is correct, null if unknown, 1 if reviewed;
    ``log_odds`` is ``log(quality / (1 - quality))``, not rounded. ``expected_error`` is the expected distance of the
    given label from the true class if classes are ordered, else null. ``out_of_sample`` tells whether they come only
    from models that were not trained on the label. ``is_label_issue`` defines a label issue: another label is
    suggested, and the example is not reviewed. ``prob_...`` are probabilities by the method, ``network_prob_...`` by
    the networks, ``gaussian_prob_...`` by the class Gaussians.

    ``digest`` identifies the content of the example, in whatever data it is.

    ``fold`` is the fold in cross-fitting; ``reviewed`` marks reviewed examples, including removed ones, and
    ``review_weight`` is how many labels one of a random sample stands for, null for all others.

    Args:
        labels: the labels of n examples in k classes.
        assessment: the scores of each example.
        splits: ``train``, ``val``, ``removed`` or ``unlabeled`` for each example.
        ids: names of the examples; by default their index.
        digests: of the examples' contents, null by default.
        class_names: by class index; adds a column ``..._name`` for each of labels, and says in the schema, as Hugging
            Face's library does, which classes the numbers mean.

    Returns:
        A table with n rows.
    """
    count, history = len(labels), labels.history()
    last_changed = torch.zeros(count, dtype=torch.int32)
    last_changed.scatter_reduce_(0, history["index"], history["epoch"], "amax")
    given, current, trusted = labels.given.cpu(), labels.current.cpu(), labels.trusted.cpu()
    weights = labels.review_weights.cpu().double()
    removed = torch.tensor([split == REMOVED for split in splits])
    reviewed = trusted | removed
    suggested = current.where(reviewed, assessment.suggested.cpu())
    log_odds = assessment.log_odds.cpu().masked_fill(removed, torch.nan)
    quality = log_odds.sigmoid().float().masked_fill(trusted & ~removed, 1.0).numpy()

    def prob(probs: Tensor | None, of: int) -> Any:
        if probs is None:
            return pa.nulls(count, pa.float32())
        column = probs[:, of].cpu()
        column = column.where(~reviewed, probs[:, _CURRENT].cpu()) if of == _SUGGESTED else column
        column = column.masked_fill((given, current)[of] < 0, torch.nan) if of != _SUGGESTED else column
        return pa.array(column.numpy(), from_pandas=True)  # null where unknown

    columns: dict[str, Any] = {
        "index": np.arange(count),
        "id": pa.array(np.arange(count)).cast(pa.string()) if ids is None else list(ids),
        "digest": pa.nulls(count, pa.string()) if digests is None else pa.array(digests, pa.string()),
        "split": list(splits),
        "given_label": given.numpy(),
        "current_label": current.numpy(),
        "changed": (given != current).numpy(),
        "prob_current": prob(assessment.probs, _CURRENT),
        "prob_given": prob(assessment.probs, _GIVEN),
        "network_prob_given": prob(assessment.network, _GIVEN),
        "gaussian_prob_given": prob(assessment.gaussian_probs, _GIVEN),
        "suggested_label": suggested.numpy(),
        "prob_suggested": prob(assessment.probs, _SUGGESTED),
        "network_prob_suggested": prob(assessment.network, _SUGGESTED),
        "gaussian_prob_suggested": prob(assessment.gaussian_probs, _SUGGESTED),
        "top1": assessment.top2[:, 0].cpu().numpy(),
        "prob_top1": assessment.top2_probs[:, 0].cpu().numpy(),
        "top2": assessment.top2[:, 1].cpu().numpy(),
        "prob_top2": assessment.top2_probs[:, 1].cpu().numpy(),
        "last_changed_epoch": last_changed.numpy(),
        "n_changes": torch.bincount(history["index"], minlength=count).to(torch.int32).numpy(),
        "label_quality": pa.array(quality, from_pandas=True),
        "is_label_issue": ((given != suggested) & ~reviewed & (given >= 0)).numpy(),
        "log_odds": pa.array(log_odds.masked_fill(trusted, torch.nan).numpy(), from_pandas=True),
        "expected_error": prob(None, 0) if (error := assessment.expected_error) is None else error.cpu().numpy(),
        "out_of_sample": assessment.out_of_sample.cpu().numpy(),
        "fold": assessment.fold.cpu().to(torch.int16).numpy(),
        "reviewed": reviewed.numpy(),
        "review_weight": pa.array(weights.where(weights > 0, torch.nan).numpy(), from_pandas=True),
    }
    if class_names is None:
        return pa.table(columns)
    names = pa.array(class_names, pa.string())
    columns |= {f"{kind}_name": names.take(pa.array(columns[kind], mask=columns[kind] < 0)) for kind in _NAMED}
    return declare_classes(pa.table(columns), _NAMED, class_names)


def peoples_labels(table: pa.Table) -> Array:
    """Return the reviewed labels (n,), or the given ones where there is no review."""
    return np.where(*map(np.asarray, (table["reviewed"], table["current_label"], table["given_label"])))


def label_issue_mask(table: pa.Table) -> Array:
    """Return a mask (n,) of label issues."""
    return np.asarray(table["is_label_issue"])


def doubtful_mask(table: pa.Table) -> Array:
    """Return a mask (n,) of doubtful labels: worth a look, but neither label issues nor reviewed."""
    below = table["label_quality"].to_numpy() < DOUBTFUL
    return np.asarray(below & ~label_issue_mask(table) & ~np.asarray(table["reviewed"]))


def list_label_issues(table: pa.Table, id_name: str, texts: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the content of label_issues.csv: label issues, then doubtful labels, each lowest quality first.

    ``is_label_issue`` tells one from the other. The examples' ``texts`` are further columns.
    """
    columns = {"index": table["index"], id_name: table["id"]} | {name: names_of(table, name) for name in _LISTED}
    order = lowest_quality_first(table)
    rows = np.concatenate([order[mask(table)[order]] for mask in (label_issue_mask, doubtful_mask)])
    return _with_texts(columns, texts).take(rows)


def list_unlabeled(table: pa.Table, id_name: str, texts: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the content of unlabeled.csv: examples without a label and their most likely class, most likely first."""
    columns = {"index": table["index"], id_name: table["id"], "suggested_label": names_of(table, "suggested_label")}
    columns["probability"] = table["prob_suggested"]
    unlabeled = _with_texts(columns, texts).filter(compute.equal(table["split"], UNLABELED))
    return unlabeled.sort_by([("probability", "descending")])


def _with_texts(columns: dict[str, Any], texts: Mapping[str, Sequence[str]]) -> pa.Table:
    return pa.table(columns | {f"{name}_" if name in columns else name: pa.array(texts[name]) for name in texts})


def list_issues(table: pa.Table, others: pa.Table | None) -> pa.Table:
    """Return all issues, one row each: label issues, lowest quality first, then the ``others`` that checks flagged."""
    order = lowest_quality_first(table)
    rows = order[label_issue_mask(table)[order]]
    flagged = SCHEMA.empty_table() if others is None else others.filter(others["flag"])
    named = any(is_image(name) for name in table["id"].slice(0, 1).to_pylist())

    def joined(first: pa.Array, name: str) -> pa.Array:
        return pa.concat_arrays([first, flagged[name].combine_chunks().cast(first.type)])

    index = joined(pa.array(rows, pa.int64()), "index")
    quality = table["label_quality"].combine_chunks()
    columns = {
        "index": index,
        "path" if named else "id": table["id"].combine_chunks().take(index),
        "issue": joined(pa.array([LABEL_ISSUE] * len(rows), pa.string()), "issue"),
        "given_label": names_of(table, "given_label").combine_chunks().take(index),
        "suggested_label": names_of(table, "suggested_label").combine_chunks().take(index),
        "label_quality": quality.take(index),
        "score": joined(pa.array(1 - quality.to_numpy(zero_copy_only=False)[rows], pa.float64()), "score"),
        "reason": joined(pa.nulls(len(rows), pa.string()), "reason"),
    }
    return pa.table(columns)


def rank_labels(table: pa.Table) -> pa.Table:
    """Return all labels, lowest quality first, with the expected number of wrong ones up to each row."""
    table = table.filter(compute.not_equal(table["split"], UNLABELED))
    ranked = pa.table({name: names_of(table, name) for name in ("index", *_LISTED)}).take(lowest_quality_first(table))
    so_far = wrong_so_far(np.nan_to_num(ranked["label_quality"].to_numpy(), nan=1.0))
    return ranked.append_column("wrong_so_far", pa.array(so_far))


def lowest_quality_first(table: pa.Table) -> Array:
    """Return the rows (n,) sorted by quality, unknown ones last; ties alternate between classes.

    If classes are ordered, those with the largest expected error come first.
    """
    score = table["log_odds"].to_numpy()
    if "expected_error" in table.column_names and table["expected_error"].null_count < len(table):
        score = np.where(np.isnan(score), np.nan, -table["expected_error"].to_numpy())
    return in_turns(score, table["given_label"].to_numpy())


def in_turns(log_odds: Array, given: Array) -> Array:
    """Return positions (n,) sorted by log-odds, NaN last; ties alternate between classes, round-robin."""
    if not len(given):
        return np.arange(0)
    classes = np.unique(given, return_inverse=True)[1]
    order = np.lexsort((classes, log_odds))  # stable: ties within a class stay in order
    values, labels = log_odds[order], classes[order]
    tied = np.append(False, (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1])))
    begins = np.flatnonzero(~(tied & np.append(True, labels[1:] == labels[:-1])))
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return order[np.lexsort((labels, turn, np.cumsum(~tied)))]


class LabelSummary(NamedTuple):
    """What is known about the labels of a run that have a quality and were not reviewed; ``labels`` in result.json."""

    scored: int
    """Number of these labels."""
    wrong: float
    """Expected number of wrong labels: the sum of ``1 - quality``."""
    low: float
    """Wrong labels at the lowest likely noise rate, rounded down."""
    high: float
    """Wrong labels at the highest likely noise rate, rounded up."""
    issues: int
    """Number of label issues."""
    doubtful: int
    """Number of doubtful labels; see :func:`doubtful_mask`."""
    reviewed: int
    """Number of reviewed labels, which count in none of the above."""

    @property
    def noise_rate(self) -> float | None:
        """The estimated fraction of wrong labels; None if no label has a quality."""
        return self.wrong / self.scored if self.scored else None

    def __str__(self) -> str:
        """Return the summary in one line, as the terminal, the report and the review page show it."""
        kind = "unreviewed labels" if self.reviewed else "labels"
        wrong = f"about {self.wrong:,.0f} ({self.low:,.0f} to {self.high:,.0f}) of {self.scored:,} {kind} are wrong; "
        issues = f"{count_of(self.issues, 'label issue')}; "
        doubtful = f"{self.doubtful:,} more {'is' if self.doubtful == 1 else 'are'} worth a look"
        return (wrong if self.scored else "") + issues + doubtful


def summarize_labels(table: pa.Table, errors: Tensor) -> LabelSummary:
    """Summarize a label table, given the equally likely numbers of wrong labels (q,) in increasing order."""
    reviewed, removed = np.asarray(table["reviewed"]), np.array(table["split"].to_pylist()) == REMOVED
    scored = ~reviewed & ~np.isnan(table["label_quality"].to_numpy())
    low, wrong, high = float(errors[0].floor()), float(errors.mean()), float(errors[-1].ceil())
    counts = (int(mask.sum()) for mask in (label_issue_mask(table), doubtful_mask(table), reviewed & ~removed))
    return LabelSummary(int(scored.sum()), wrong, low, high, *counts)


def label_results(table: pa.Table, errors: Tensor, num_classes: int) -> dict[str, Any]:
    """Return what result.json says about labels, given the equally likely numbers of wrong ones (q,)."""
    summary = summarize_labels(table, errors)
    return {
        "noise_rate_estimate": summary.noise_rate,
        "label_summary": summary._asdict(),
        "errors_by_class": errors_by_class(table, summary, num_classes),
        "error_pairs": error_pairs(table),
        "reviewed": summary.reviewed,
    }


def errors_by_class(table: pa.Table, summary: LabelSummary, num_classes: int) -> list[dict[str, float] | None]:
    """Return the expected number of wrong labels of each given class, with an interval; None for unknown classes.

    The interval has two parts: the uncertain noise rate, which moves all classes equally, and chance, two standard
    deviations ``sqrt(sum q (1 - q))`` of the number of wrong labels of this class.
    """
    scored = ~np.asarray(table["reviewed"]) & ~np.isnan(table["label_quality"].to_numpy())
    given, quality = table["given_label"].to_numpy()[scored], table["label_quality"].to_numpy()[scored].astype(float)
    counts = np.bincount(given, minlength=num_classes)
    wrong = np.bincount(given, 1 - quality, num_classes)
    chance = 2 * np.sqrt(np.bincount(given, quality * (1 - quality), num_classes))
    scale = [rate / summary.wrong if summary.wrong else 1.0 for rate in (summary.low, summary.high)]
    low, high = np.maximum(wrong * scale[0] - chance, 0), np.minimum(wrong * scale[1] + chance, counts)
    columns = zip(counts.tolist(), wrong.tolist(), low.tolist(), high.tolist(), strict=True)
    return [dict(zip(("scored", "wrong", "low", "high"), row, strict=True)) if row[0] else None for row in columns]


def error_pairs(table: pa.Table, most: int = 20) -> list[tuple[int, int, float]]:
    """Return the most frequent errors: given class, more likely class, and expected number of such labels.

    A label is wrong with probability 1 - q, and then of class c with probability ``p_c / (1 - p_y)``, where c is the
    most likely other class.
    """
    columns = ("given_label", "top1", "top2", "prob_top1", "prob_top2", "prob_given", "label_quality")
    given, top1, top2, prob1, prob2, own, quality = (table[name].to_numpy() for name in columns)
    scored = ~np.asarray(table["reviewed"]) & ~np.isnan(quality)
    other, prob = np.where(top1 == given, top2, top1), np.where(top1 == given, prob2, prob1)
    expected = ((1 - quality) * np.minimum(1, prob / np.maximum(1 - own, 1e-9)))[scored]
    pairs, place = np.unique(np.stack([given, other], 1)[scored], axis=0, return_inverse=True)
    totals = np.bincount(place.ravel(), expected, len(pairs))
    order = np.argsort(-totals, kind="stable")[:most]
    return [(int(pairs[i, 0]), int(pairs[i, 1]), float(totals[i])) for i in order if totals[i] >= 0.5]


def expect_errors(quality: Array) -> list[tuple[int, float]]:
    """Return how many of the first 100, 1,000, ... labels, lowest quality first, are expected to be wrong.

    Qualities (m,) are NaN if unknown.
    """
    so_far = wrong_so_far(np.sort(quality[~np.isnan(quality)]))
    sizes = [10**power for power in range(2, len(str(len(so_far))))]
    return [(size, float(so_far[size - 1])) for size in sizes if size < len(so_far)]


def wrong_so_far(quality: Array) -> Array:
    """Return the expected number of errors among each label and those before it: the running sum of ``1 - q``."""
    return np.cumsum(1 - quality.astype(np.float64), dtype=np.float64)


def names_of(table: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a column, one of labels by class name, or by class index if classes have no names."""
    return table[f"{column}_name" if f"{column}_name" in table.column_names else column]


def read_table(path: Path, columns: Sequence[str] | None = None, required: Sequence[str] = ()) -> pa.Table:
    """Read all or some columns of a run's Parquet file; those that are ``required`` must exist."""
    with reading(path, "Parquet file"):
        table = pa.parquet.read_table(path, columns=columns)
        if missing := [name for name in columns or required if name not in table.column_names]:
            raise ValueError(f"no column '{missing[0]}'")
        return table


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table atomically, as .csv, .parquet or .jsonl."""
    writers = {".csv": pa.csv.write_csv, ".parquet": pa.parquet.write_table, ".jsonl": _write_jsonl}
    write_atomically(path, lambda temporary: writers[path.suffix.lower()](table, temporary))


def _write_jsonl(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for batch in table.to_batches(10_000):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


SCHEMA = pa.schema(
    {
        "index": pa.int64(), "id": pa.string(), "issue": pa.string(), "score": pa.float64(), "flag": pa.bool_(),
        "reason": pa.string(), "group": pa.int64(),
    }
)  # fmt: skip
"""``index`` and ``id`` (``path`` for image files) are null for issues of a class."""


class Issue(NamedTuple):
    """Issues of one kind (m,), worst first."""

    rows: Array
    """Rows of the label table; -1 for issues of a class."""
    scores: Array
    flags: Array
    reasons: Sequence[str]
    groups: Array | None = None


def issues_table(labels: pa.Table, found: Mapping[str, Issue]) -> pa.Table:
    """Return all issues as one table, except those of removed examples; ``labels`` is the run's label table."""
    table = pa.concat_tables([SCHEMA.empty_table(), *(_part(labels, name, issue) for name, issue in found.items())])
    removed = np.append(np.array(labels["split"].to_pylist()) == REMOVED, False)  # -1 is a class
    table = table.filter(~removed[table["index"].fill_null(-1).to_numpy()])
    named = any(is_image(name) for name in labels["id"].slice(0, 1).to_pylist())
    return table.rename_columns(["index", "path" if named else "id", *SCHEMA.names[2:]])


def _part(labels: pa.Table, name: str, issue: Issue) -> pa.Table:
    count, rows = len(issue.rows), pa.array(issue.rows, pa.int64(), mask=issue.rows < 0)
    columns = {
        "index": rows,
        "id": labels["id"].combine_chunks().cast(pa.string()).take(rows),
        "issue": [name] * count,
        "score": np.round(issue.scores.astype(np.float64), 6),
        "flag": issue.flags.astype(bool),
        "reason": issue.reasons,
        "group": pa.nulls(count) if issue.groups is None else issue.groups,
    }
    return pa.table(columns, SCHEMA)


def read_issues(path: Path) -> pa.Table:
    """Read a run's issues; the column ``path`` is renamed to ``id``, as in the label table."""
    types = {field.name: field.type for field in SCHEMA} | {"path": pa.string()}
    nulls = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
    convert, parse = pa.csv.ConvertOptions(column_types=types, **nulls), pa.csv.ParseOptions(newlines_in_values=True)
    with reading(path, "list of issues"):
        table = pa.csv.read_csv(path, parse_options=parse, convert_options=convert)
        named = table.rename_columns(["id" if name == "path" else name for name in table.column_names])
        return named.select(SCHEMA.names)
