"""save: labels that other code has corrected, as a run without a model: for review, apply, report and export."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tomli_w
import torch
from torch import Tensor

from unflip._version import __version__
from unflip.api.apply import keys_of
from unflip.api.result import Result
from unflip.data.columns import Columns, read_columns
from unflip.data.dataset import Dataset
from unflip.data.labeling import choose_labels
from unflip.data.labels import LABEL, NAMING, match_rows, numbers_or_names, to_class_numbers
from unflip.data.loaders import load_raw
from unflip.data.matching import Keys
from unflip.data.memory import as_table, take_memory
from unflip.data.options import DataOptions
from unflip.engine.evaluation import data_path
from unflip.errors import InputError
from unflip.files import write_json
from unflip.methods.base import LabelStore
from unflip.report.run_report import report_finished
from unflip.runs import layout
from unflip.runs.config import check_section
from unflip.runs.folder import Claim, Run, as_run
from unflip.runs.labels import Assessment, label_results, label_table, list_label_issues, write_table

_GIVEN, _SUGGESTED, _QUALITY, _FLAGS = "given_label", "suggested_label", "label_quality", ("reviewed", "out_of_sample")


def save(labels: Any, data: Any, out: str | Path | None = None, *, force: bool = False, **options: Any) -> Result:
    """Write labels that your own code has corrected to a run folder. Nothing is trained, and the run has no model.

    The review page, ``apply``, ``report`` and ``export`` accept this run like any other.

    Args:
        labels: ``LabelCorrection.to_frame()``, ``find_label_errors(...).ranked``, or any data frame or file (.csv,
            .parquet, .jsonl) with the columns ``given_label`` and ``suggested_label`` (or ``label``). Labels are class
            names, or class numbers in the order of the data's classes. The column ``index``, ``path`` or ``id``
            identifies the example of each row, and examples without a row keep their labels. Without such a column,
            there must be one row per example. The columns ``label_quality``, ``reviewed`` and ``out_of_sample`` are
            optional.
        data: the data with its given labels: a path, or data in memory as for ``clean``.
        out: the run folder; by default a new temporary folder, which is not deleted.
        force: replace the run in ``out``, but keep its review decisions.
        options: ``label_column``, ``ignore`` and ``classes``, as for ``clean``.
    """
    memory, run = take_memory(data, options), as_run(out)
    inputs = [Path(path) for path in (labels, data) if isinstance(path, str | Path)]
    with Claim(run, force=force, inputs=inputs) as claim, claim.located(memory or data) as path:
        chosen = check_section(DataOptions, options | {"path": str(path)})
        raw, _ = choose_labels(load_raw(chosen), chosen)
        names = raw.class_names
        classes = names or tuple(map(str, range(raw.num_classes)))
        keys = keys_of(raw, classes)
        table, errors = _tabulate(_read(labels, keys, names), keys, raw, names)
        claim.hold()
        run.clear()
        run.begin()
        tree = chosen.model_dump(mode="json", exclude_defaults=True) | {"path": data_path(chosen.path)}
        run.write_config(tomli_w.dumps({"data": tree}))
        about = {
            "method": "own code", "classes": [*classes], "seed": 0, "epochs": 1, "selection": "last",
            "protocol": "last", "selected_epoch": 1, "checked_with": None, "seconds": 0.0, "seconds_per_epoch": 0.0,
            "skipped": 0, "versions": {"unflip": __version__},
        }  # fmt: skip
        write_scored(run, raw, chosen.path, table, errors, about)
    return Result(run.folder, memory)


class _Learned(NamedTuple):
    """What a table says about n examples."""

    suggested: Tensor
    """The suggested labels (n,); the given ones where the table has no row."""
    quality: Tensor
    """Label quality (n,), NaN if unknown."""
    reviewed: Tensor
    """Which labels are reviewed (n,)."""
    out_of_sample: Tensor
    """Which qualities come from models that were not trained on the label (n,)."""


def _read(labels: Any, keys: Keys, names: Sequence[str] | None) -> _Learned:
    """Read a table of labels; raise InputError if it does not fit the examples."""
    source = Path(labels) if isinstance(labels, str | Path) else as_table(labels, always=True)
    if source is None:
        raise InputError(f"labels: a {type(labels).__name__}; give a data frame or a file with a row per label")
    known = (*NAMING, _GIVEN, _SUGGESTED, LABEL, _QUALITY, *_FLAGS)
    columns, header = read_columns(source if isinstance(source, Path) else source.table, known, "labels")
    target = _SUGGESTED if _SUGGESTED in columns else LABEL
    if missing := [name for name in (_GIVEN, target) if name not in columns]:
        raise InputError(f"labels: no column '{missing[0]}' among {', '.join(header)}")
    rows, classes, given = _find_rows(columns, keys), list(keys.class_names[:-1]), torch.from_numpy(keys.given)
    cells = [cell for name in (_GIVEN, target) for cell in columns[name]]
    both = numbers_or_names([str(int(cell) if isinstance(cell, bool) else cell) for cell in cells], classes)
    own, learned = (
        to_class_numbers(part, len(classes), names, f"labels, '{name}'")
        for name, part in zip((_GIVEN, target), np.split(both, 2), strict=True)
    )
    if bool((differs := own != given[rows]).any()):
        row = int(differs.int().argmax())
        told = f"given_label {columns[_GIVEN][row]}, but example {int(rows[row])} of the data has"
        raise InputError(f"labels, row {row}: {told} '{keys.class_names[int(given[rows[row]])]}'")
    quality = torch.full((len(given),), torch.nan, dtype=torch.float64)
    qualities = [_quality(cell, row) for row, cell in enumerate(columns.get(_QUALITY, [None] * len(rows)))]
    quality[rows] = torch.tensor(qualities, dtype=torch.float64)
    flags = torch.zeros(len(_FLAGS), len(given), dtype=torch.bool)
    for place, name in enumerate(_FLAGS):
        cells = columns.get(name, [False] * len(rows))
        flags[place, rows] = torch.tensor([str(cell).lower() == "true" for cell in cells], dtype=torch.bool)
    return _Learned(given.index_copy(0, rows, learned), quality, *flags)


def _tabulate(learned: _Learned, keys: Keys, raw: Dataset, names: Sequence[str] | None) -> tuple[pa.Table, Tensor]:
    """Return the label table, and three numbers of wrong labels: the expected one and its range.

    The suggested label has the probability that the given one lacks; other classes are unknown.
    """
    given, (suggested, quality, reviewed, out_of_sample) = torch.from_numpy(keys.given), learned
    differs, of_given = suggested != given, quality.float()
    of_suggested = torch.where(differs, 1 - of_given, of_given)
    assessment = Assessment(
        probs=torch.stack([of_given, of_given, of_suggested], 1),
        network=torch.full((len(given), 3), torch.nan),
        gaussian_probs=None,
        top2=torch.stack([suggested, given], 1),
        top2_probs=torch.stack([of_suggested, of_given.where(differs, torch.tensor(0.0))], 1),
        log_odds=quality.logit(eps=1e-9),
        suggested=suggested,
        out_of_sample=out_of_sample,
        fold=torch.full_like(given, -1),
    )
    sizes = [len(part.inputs) for part in (raw.train, raw.val) if part is not None]
    splits = np.repeat(("train", "val")[: len(sizes)], sizes).tolist()
    store = LabelStore(given, len(keys.class_names) - 1, suggested.where(reviewed, torch.tensor(-1)))
    table = label_table(store, assessment, splits=splits, ids=keys.ids, digests=keys.digests, class_names=names)
    right = quality[~quality.isnan() & ~reviewed]
    wrong = (1 - right).sum()
    chance = 2 * (right * (1 - right)).sum().sqrt()  # two standard deviations of the number of wrong labels
    return table, wrong + torch.tensor([-1, 0, 1]) * torch.stack([chance, wrong, len(right) - wrong]).min()


def _find_rows(columns: Columns, keys: Keys) -> Tensor:
    """Return the example of each row (r,), each at most once."""
    naming, count = {name: columns[name] for name in NAMING if name in columns}, len(columns[_GIVEN])
    if not naming and count != len(keys.given):
        text = f"{count} rows for {len(keys.given)} examples; name the example of each row in a column 'index'"
        raise InputError(f"labels: {text}, 'path' or 'id'")
    rows = match_rows(naming | {LABEL: columns[_GIVEN]}, keys, "labels") if naming else list(range(count))
    return torch.tensor(rows, dtype=torch.long)


def _quality(cell: Any, row: int) -> float:
    """Return the label quality in a cell; NaN if it is empty."""
    try:
        value = float("nan") if cell is None or cell == "" else float(cell)
    except (TypeError, ValueError):
        value = -1.0
    if value < 0 or value > 1:
        raise InputError(f"labels, row {row}: label_quality {cell!r} is not a number from 0 to 1")
    return value


def write_scored(
    run: Run,
    raw: Dataset,
    path: str,
    table: pa.Table,
    errors: Tensor,
    about: Mapping[str, Any],
    texts: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write labels that were scored without training, their list of issues, the result and the report.

    Args:
        run: the folder, which has a configuration.
        raw: the data.
        path: where it is.
        table: its label table.
        errors: equally likely numbers of wrong labels (q,).
        about: of the result, what does not follow from the labels.
        texts: the examples' texts by column.
    """
    run.write_metrics([])
    empty = {"epoch": [0], "index": [0], "old": [0], "new": [0], "confidence": [0.0]}
    run.write_labels(table, {name: torch.tensor(values)[:0] for name, values in empty.items()})
    issues = list_label_issues(table, "path" if raw.holds_images else "id", texts or {})
    write_table(run.own(layout.LABEL_ISSUES), issues)
    unknown_here = ("noise", "noise_rate", "transition_error", "val_accuracy", "quality_auroc", "score_auroc")
    unknown = {"given": None, "current": None}
    result = {**about, **dict.fromkeys((*unknown_here, "other_issues", "since_last"))} | {
        "data": raw.name,
        "data_path": data_path(path),
        "pictures_path": raw.images_path or (data_path(path) if raw.holds_images or raw.as_pixels else None),
        **label_results(table, errors, len(about["classes"])),
        "test_accuracy": dict.fromkeys(("selected", "last", "best")),
        "tests": {},
        "label_accuracy": unknown,
        "label_accuracy_all": unknown,
        "out_of_sample": float(np.mean(table["out_of_sample"].to_numpy(zero_copy_only=False))),
        "removed": 0,
    }  # fmt: skip
    write_json(run.own(layout.RESULT), result)
    report_finished(run)
