"""export: a run's labels in the formats of other tools."""

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from unflip.data.files import is_image
from unflip.data.preview import Rows
from unflip.errors import ConfigError, unknown
from unflip.files import write_atomically, write_text
from unflip.runs.folder import Run
from unflip.runs.labels import REMOVED, label_issue_mask, names_of
from unflip.runs.layout import check_output

_SUFFIXES = {
    "csv": (".csv",),
    "parquet": (".parquet",),
    "jsonl": (".jsonl",),
    "label-studio": (".json",),
    "cleanlab": (".csv", ".parquet"),
}
FORMATS = tuple(_SUFFIXES)
_DATALAB = {"outlier": "outlier", "near_duplicate": "near_duplicate"}
"""What cleanlab's Datalab calls issues that it has, too."""


def export(
    run: str | Path | Run,
    out: str | Path,
    form: str = "csv",
    *,
    prefix: str = "",
    data: str | None = None,
    force: bool = False,
) -> int:
    """Write the labels of a finished run to ``out`` and return how many there are.

    ``csv``, ``parquet`` and ``jsonl`` hold all columns of ``labels.parquet``. ``label-studio`` is a list of tasks with
    the suggested label as a prediction: ``prefix`` stands before each image's path there, and texts and rows of tables
    are read from ``data``, by default where they were when the run finished. ``cleanlab`` has the columns of
    ``CleanLearning.get_label_issues``. What else was found in the data is in the column ``issues``, in the tasks'
    data and, by cleanlab's names, in columns such as ``is_outlier_issue``. Removed examples have ``split`` removed, no
    task, and no issue of their label.
    """
    run, out = run if isinstance(run, Run) else Run(Path(run)), Path(out)
    if form not in FORMATS:
        raise ConfigError(unknown("format", form, FORMATS))
    check_output(out, _SUFFIXES[form], force=force)
    if (prefix or data is not None) and form != "label-studio":
        raise ConfigError(f"--prefix and --data are for the format label-studio, not for {form}; leave them out")
    table, found = run.labels(), run.issues()
    flagged = None if found is None else found.filter(pc.and_(found["flag"], found["index"].is_valid()))
    if form == "label-studio":
        rows = _rows(run, data)
        tasks = _tasks(table, flagged, run.result["method"], prefix, rows)
        write_text(out, json.dumps(tasks, ensure_ascii=False, indent=1) + "\n")
        return len(tasks)
    if form == "cleanlab":
        table = _as_cleanlab(table, flagged)
    elif flagged is not None:
        table = table.append_column("issues", pa.array([";".join(names) for names in _names(table, flagged)]))
    write_atomically(out, lambda path: _WRITERS[out.suffix.lower()](table, path))
    return len(table)


def _names(table: pa.Table, flagged: pa.Table) -> list[list[str]]:
    """Return the names of each example's issues."""
    names: list[list[str]] = [[] for _ in range(len(table))]
    for index, name in zip(flagged["index"].to_pylist(), flagged["issue"].to_pylist(), strict=True):
        if name not in names[index]:
            names[index].append(name)
    return names


def _write_jsonl(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for batch in table.to_batches(10_000):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


_WRITERS: dict[str, Callable[[pa.Table, Path], Any]] = {
    ".csv": pyarrow.csv.write_csv,
    ".parquet": pyarrow.parquet.write_table,
    ".jsonl": _write_jsonl,
}


def _as_cleanlab(table: pa.Table, flagged: pa.Table | None) -> pa.Table:
    columns = {
        "is_label_issue": label_issue_mask(table),
        "label_quality": table["label_quality"],
        "given_label": names_of(table, "given_label"),
        "predicted_label": names_of(table, "suggested_label"),
    }
    if flagged is not None:
        for name, issue in _DATALAB.items():
            rows = flagged.filter(pc.equal(flagged["issue"], name))["index"].to_numpy()
            columns[f"is_{issue}_issue"] = np.isin(np.arange(len(table)), rows)
    return pa.table(columns)


def _rows(run: Run, data: str | None) -> Rows | None:
    """Return the texts or cells of a run on texts or a table; None for others, of which there is no more to read."""
    encoding = None if run.text_columns is None else run.model.encoding
    if encoding is None or encoding.encoder == "images":
        return None
    return run.rows(data)


def _is_picture(name: str) -> bool:
    return is_image(PurePath(name).name)


def _tasks(
    table: pa.Table, flagged: pa.Table | None, method: str, prefix: str, rows: Rows | None
) -> list[dict[str, Any]]:
    """Return a task an example, unless it was removed; docs/exchange.md has the labeling interface for them."""
    names = None if flagged is None else _names(table, flagged)
    removed = pc.equal(table["split"], REMOVED).to_pylist()
    columns = {name: table[name].to_pylist() for name in ("index", "id", "label_quality", "reviewed", "prob_suggested")}
    labels = {
        name: [str(label) for label in names_of(table, name).to_pylist()] for name in ("given_label", "suggested_label")
    }
    tasks = []
    for i, name in enumerate(columns["id"]):
        if removed[i]:
            continue
        kind = "image" if rows is None and _is_picture(name) else "text"
        choice = {"type": "choices", "from_name": "label", "to_name": kind}
        prediction = {
            "model_version": f"unflip {method}",
            "score": columns["prob_suggested"][i],
            "result": [choice | {"value": {"choices": [labels["suggested_label"][i]]}}],
        }
        data = {
            kind: prefix + name if kind == "image" else name if rows is None else rows.words(i),
            "index": columns["index"][i],
            "given_label": labels["given_label"][i],
            "label_quality": columns["label_quality"][i],
            "reviewed": columns["reviewed"][i],
        } | ({} if names is None else {"issues": names[i]})
        tasks.append({"data": data, "predictions": [prediction]})
    return tasks
