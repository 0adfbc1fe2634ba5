"""export: a run's labels in the formats of other tools."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from unflip.data.columns import Rows
from unflip.data.files import is_image
from unflip.errors import ConfigError, InputError, unknown
from unflip.files import write_text
from unflip.runs.folder import Run, as_run
from unflip.runs.labels import REMOVED, names_of, write_table
from unflip.runs.layout import check_output

_SUFFIXES = {name: f".{name}" for name in ("csv", "parquet", "jsonl")}
_SUFFIXES |= dict.fromkeys(("label-studio", "fiftyone", "argilla"), ".json")
FORMATS = tuple(_SUFFIXES)
_TASKS = ("label-studio", "argilla")  # for people to label


def export(
    run: str | Path | Run,
    out: str | Path,
    form: str | None = None,
    *,
    all_examples: bool = False,
    prefix: str = "",
    data: str | None = None,
    force: bool = False,
) -> int:
    """Write the labels of a finished run in the format of another tool.

    Other issues are in the column ``issues``, or in the tasks' data.

    Args:
        run: a finished run, or its folder.
        out: the file to write.
        form: the format; by default inferred from the suffix, where .json is ``label-studio``. ``csv``, ``parquet`` and
            ``jsonl`` hold all columns of ``labels.parquet``; ``label-studio`` and ``argilla`` have a task or record for
            each label issue, with the suggested label; ``fiftyone`` has the suggested labels of all images. Removed
            examples are in tables only.
        all_examples: Label Studio and Argilla: all examples instead of label issues.
        prefix: Label Studio and Argilla: a URL or folder to put before each image path.
        data: Label Studio and Argilla: where texts and tables are now, if they have moved.
        force: replace an existing file.

    Returns:
        The number of labels written.
    """
    run, out = as_run(run), Path(out)
    if form is None:
        form = next((name for name, suffix in _SUFFIXES.items() if suffix == out.suffix.lower()), "csv")
    if form not in FORMATS:
        raise ConfigError(unknown("format", form, FORMATS))
    check_output(out, (_SUFFIXES[form],), force=force)
    if (prefix or data is not None or all_examples) and form not in _TASKS:
        raise ConfigError(f"--all, --prefix and --data are for the formats {' and '.join(_TASKS)}, not {form}")
    table, issues = run.labels(), run.other_issues()
    flagged = None if issues is None else issues.filter(pc.and_(issues["flag"], issues["index"].is_valid()))
    if form in (*_TASKS, "fiftyone"):
        examples = _examples(table, flagged, only_issues=form in _TASKS and not all_examples)
        rows = run.rows(data) if form in _TASKS and run.holds_cells(data) else None
        agent = f"unflip {run.result['method']}"
        if form == "fiftyone":
            content: Any = _as_fiftyone(examples, run.class_names)
        else:
            write = _as_record if form == "argilla" else _as_task
            content = [write(example, _shown(example, prefix, rows), agent) for example in examples]
        write_text(out, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
        return len(examples)
    if flagged is not None:
        table = table.append_column("issues", pa.array([";".join(names) for names in _names(table, flagged)]))
    write_table(out, table)
    return len(table)


def _names(table: pa.Table, flagged: pa.Table) -> list[list[str]]:
    """Return the names of each example's issues, without repetition."""
    names: list[dict[str, None]] = [{} for _ in range(len(table))]
    for index, name in zip(flagged["index"].to_pylist(), flagged["issue"].to_pylist(), strict=True):
        names[index][name] = None
    return list(map(list, names))


def _examples(table: pa.Table, flagged: pa.Table | None, *, only_issues: bool) -> list[dict[str, Any]]:
    """Return what other tools are told of each example that is not removed: its labels, quality and issues."""
    columns = ("index", "id", "split", "label_quality", "is_label_issue", "reviewed", "prob_suggested")
    labels = {name: names_of(table, name).cast(pa.string()) for name in ("given_label", "suggested_label")}
    examples = pa.table({name: table[name] for name in columns} | labels).to_pylist()
    if flagged is not None:
        for example, names in zip(examples, _names(table, flagged), strict=True):
            example["issues"] = names
    kept = [example for example in examples if example["split"] != REMOVED]
    return [example for example in kept if example["is_label_issue"]] if only_issues else kept


def _shown(example: Mapping[str, Any], prefix: str, rows: Rows | None) -> dict[str, str]:
    """Return what people see of an example: the path of an ``image``, or a ``text``."""
    name = example["id"]
    if rows is None and is_image(name):
        return {"image": prefix + name}
    return {"text": name if rows is None else rows.words(example["index"])}


def _about(example: Mapping[str, Any]) -> dict[str, Any]:
    names = ("index", "given_label", "label_quality", "reviewed", "issues")
    return {name: example[name] for name in names if name in example}


def _as_task(example: Mapping[str, Any], shown: dict[str, str], agent: str) -> dict[str, Any]:
    """Return a task of Label Studio; docs/exchange.md has the labeling interface for it."""
    (kind,) = shown
    choices = {"choices": [example["suggested_label"]]}
    prediction = {
        "model_version": agent,
        "score": example["prob_suggested"],
        "result": [{"type": "choices", "from_name": "label", "to_name": kind, "value": choices}],
    }
    return {"data": shown | _about(example), "predictions": [prediction]}


def _as_record(example: Mapping[str, Any], shown: dict[str, str], agent: str) -> dict[str, Any]:
    """Return a record as Argilla's ``Dataset.records.from_json`` reads it; its question is called ``label``."""
    metadata = {name: value for name, value in _about(example).items() if name != "reviewed" and value is not None}
    suggestion = {"value": example["suggested_label"], "score": example["prob_suggested"], "agent": agent}
    return {"id": example["id"], "fields": shown, "metadata": metadata, "suggestions": {"label": suggestion}}


def _as_fiftyone(examples: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> dict[str, Any]:
    """Return the labels file of a ``FiftyOneImageClassificationDataset``: by path, without the suffix of the image."""
    if example := next((example for example in examples if not is_image(example["id"])), None):
        raise InputError(f"FiftyOne is for images; example {example['index']} is '{example['id']}'")
    labels = {
        PurePosixPath(example["id"]).with_suffix("").as_posix(): {
            "label": example["suggested_label"],
            "confidence": example["prob_suggested"],
            "attributes": _about(example) | {"is_label_issue": example["is_label_issue"]},
        }
        for example in examples
    }
    return {"classes": [*classes], "labels": labels}
