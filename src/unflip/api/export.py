"""export: a run's labels in the formats of other tools."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unflip.data.columns import Rows
from unflip.data.files import is_image
from unflip.errors import ConfigError, unknown
from unflip.files import write_text
from unflip.runs.folder import Run
from unflip.runs.labels import REMOVED, label_issue_mask, names_of, write_table
from unflip.runs.layout import check_output

_SUFFIXES = {
    "csv": (".csv",),
    "parquet": (".parquet",),
    "jsonl": (".jsonl",),
    "label-studio": (".json",),
    "cleanlab": (".csv", ".parquet"),
}
FORMATS = tuple(_SUFFIXES)
_DATALAB = ("outlier", "near_duplicate")  # issues that cleanlab's Datalab has, too


def export(
    run: str | Path | Run,
    out: str | Path,
    form: str = "csv",
    *,
    prefix: str = "",
    data: str | None = None,
    force: bool = False,
) -> int:
    """Write the labels of a finished run in the format of another tool.

    Other issues are in the column ``issues``, in the tasks' data or, for cleanlab, in ``is_outlier_issue`` and
    ``is_near_duplicate_issue``.

    Args:
        run: a finished run, or its folder.
        out: the file to write.
        form: ``csv``, ``parquet`` and ``jsonl`` hold all columns of ``labels.parquet``; ``label-studio`` is a list of
            tasks with the suggested label as a prediction, without removed examples; ``cleanlab`` has the columns of
            ``CleanLearning.get_label_issues``.
        prefix: Label Studio only: a URL or folder to put before each image path.
        data: Label Studio only: where texts and tables are now, if they have moved.
        force: replace an existing file.

    Returns:
        The number of labels written.
    """
    run, out = run if isinstance(run, Run) else Run(Path(run)), Path(out)
    if form not in FORMATS:
        raise ConfigError(unknown("format", form, FORMATS))
    check_output(out, _SUFFIXES[form], force=force)
    if (prefix or data is not None) and form != "label-studio":
        raise ConfigError(f"--prefix and --data are for the format label-studio, not {form}")
    table, issues = run.labels(), run.issues()
    flagged = None if issues is None else issues.filter(pc.and_(issues["flag"], issues["index"].is_valid()))
    if form == "label-studio":
        rows = run.rows(data) if _holds_cells(run) else None
        tasks = _tasks(run, table, flagged, prefix, rows)
        write_text(out, json.dumps(tasks, ensure_ascii=False, indent=1) + "\n")
        return len(tasks)
    if form == "cleanlab":
        table = _as_cleanlab(table, flagged)
    elif flagged is not None:
        table = table.append_column("issues", pa.array([";".join(names) for names in _names(table, flagged)]))
    write_table(out, table)
    return len(table)


def _names(table: pa.Table, flagged: pa.Table) -> list[list[str]]:
    """Return the names of each example's issues, without repetition."""
    names: list[dict[str, None]] = [{} for _ in range(len(table))]
    for index, name in zip(flagged["index"].to_pylist(), flagged["issue"].to_pylist(), strict=True):
        names[index][name] = None
    return list(map(list, names))


def _as_cleanlab(table: pa.Table, flagged: pa.Table | None) -> pa.Table:
    columns = {
        "is_label_issue": label_issue_mask(table),
        "label_quality": table["label_quality"],
        "given_label": names_of(table, "given_label"),
        "predicted_label": names_of(table, "suggested_label"),
    }
    if flagged is not None:
        for name in _DATALAB:
            rows = flagged.filter(pc.equal(flagged["issue"], name))["index"].to_numpy()
            columns[f"is_{name}_issue"] = np.isin(np.arange(len(table)), rows)
    return pa.table(columns)


def _holds_cells(run: Run) -> bool:
    """Whether the run was trained on texts or a table; unknown, so no, if its model was not stored."""
    encoding = None if run.text_columns is None else run.model.encoding
    return encoding is not None and encoding.encoder != "images"


def _tasks(run: Run, table: pa.Table, flagged: pa.Table | None, prefix: str, rows: Rows | None) -> list[dict[str, Any]]:
    """Return one Label Studio task per example; docs/exchange.md has the labeling interface for them."""
    version = f"unflip {run.result['method']}"
    names = None if flagged is None else _names(table, flagged)
    columns = ("index", "id", "split", "label_quality", "reviewed", "prob_suggested")
    labels = {name: names_of(table, name).cast(pa.string()) for name in ("given_label", "suggested_label")}
    examples = pa.table({name: table[name] for name in columns} | labels).to_pylist()
    tasks = []
    for i, example in enumerate(examples):
        if example["split"] == REMOVED:
            continue
        name = example["id"]
        kind = "image" if rows is None and is_image(name) else "text"
        choices = {"choices": [example["suggested_label"]]}
        prediction = {
            "model_version": version,
            "score": example["prob_suggested"],
            "result": [{"type": "choices", "from_name": "label", "to_name": kind, "value": choices}],
        }
        data = {kind: prefix + name if kind == "image" else name if rows is None else rows.words(i)}
        data |= {key: example[key] for key in ("index", "given_label", "label_quality", "reviewed")}
        data |= {} if names is None else {"issues": names[i]}
        tasks.append({"data": data, "predictions": [prediction]})
    return tasks
