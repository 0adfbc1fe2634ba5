"""export: a run's labels in the formats of other tools."""

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from unflip.data.images.files import is_image
from unflip.errors import ConfigError, unknown
from unflip.files import write_atomically, write_text
from unflip.runs.folder import Run
from unflip.runs.labels import looks_wrong, names_of
from unflip.runs.targets import check_output

_SUFFIXES = {
    "csv": (".csv",),
    "parquet": (".parquet",),
    "jsonl": (".jsonl",),
    "label-studio": (".json",),
    "cleanlab": (".csv", ".parquet"),
}
FORMATS = tuple(_SUFFIXES)


def export(run: str | Path | Run, out: str | Path, form: str = "csv", *, prefix: str = "", force: bool = False) -> int:
    """Write the labels of a finished run to ``out`` and return how many there are.

    ``csv``, ``parquet`` and ``jsonl`` hold all columns of ``labels.parquet``. ``label-studio`` is a list of tasks with
    the suggested label as a prediction; ``prefix`` stands before each image's path there. ``cleanlab`` has the columns
    of ``CleanLearning.get_label_issues``.
    """
    run, out = run if isinstance(run, Run) else Run(Path(run)), Path(out)
    if form not in FORMATS:
        raise ConfigError(unknown("format", form, FORMATS))
    if out.suffix.lower() not in _SUFFIXES[form]:
        allowed = " or ".join(_SUFFIXES[form])
        raise ConfigError(f"--out {out}: the format {form} is written to {allowed}, not to '{out.suffix}'")
    check_output(out, force=force)
    if prefix and form != "label-studio":
        raise ConfigError(f"--prefix is for the format label-studio, not for {form}; leave it out")
    table = run.labels()
    if form == "label-studio":
        write_text(out, json.dumps(_tasks(table, run.result["method"], prefix), ensure_ascii=False, indent=1) + "\n")
    else:
        content = _as_cleanlab(table) if form == "cleanlab" else table
        write_atomically(out, lambda path: _WRITERS[out.suffix.lower()](content, path))
    return len(table)


def _write_jsonl(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for batch in table.to_batches(10_000):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


_WRITERS: dict[str, Callable[[pa.Table, Path], Any]] = {
    ".csv": pyarrow.csv.write_csv,
    ".parquet": pyarrow.parquet.write_table,
    ".jsonl": _write_jsonl,
}


def _as_cleanlab(table: pa.Table) -> pa.Table:
    return pa.table(
        {
            "is_label_issue": looks_wrong(table),
            "label_quality": table["quality"],
            "given_label": names_of(table, "given"),
            "predicted_label": names_of(table, "suggested"),
        }
    )


def _tasks(table: pa.Table, method: str, prefix: str) -> list[dict[str, Any]]:
    """Return a task an example; docs/exchange.md has the labelling interface that goes with them."""
    columns = {name: table[name].to_pylist() for name in ("index", "id", "quality", "reviewed", "confidence_suggested")}
    labels = {name: [str(label) for label in names_of(table, name).to_pylist()] for name in ("given", "suggested")}
    tasks = []
    for i, name in enumerate(columns["id"]):
        kind = "image" if is_image(PurePath(name).name) else "text"
        choice = {"type": "choices", "from_name": "label", "to_name": kind}
        prediction = {
            "model_version": f"unflip {method}",
            "score": columns["confidence_suggested"][i],
            "result": [choice | {"value": {"choices": [labels["suggested"][i]]}}],
        }
        data = {
            kind: prefix + name if kind == "image" else name,
            "index": columns["index"][i],
            "given": labels["given"][i],
            "quality": columns["quality"][i],
            "reviewed": columns["reviewed"][i],
        }
        tasks.append({"data": data, "predictions": [prediction]})
    return tasks
