"""findings.csv: what else was found in the data besides labels that look wrong, a row per finding."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from unflip.data.files.arrays import Array
from unflip.data.images.files import is_image
from unflip.errors import RunFolderError
from unflip.runs.labels import REMOVED

SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("id", pa.string()),
        ("finding", pa.string()),
        ("score", pa.float64()),
        ("flag", pa.bool_()),
        ("reason", pa.string()),
        ("group", pa.int64()),
    ]
)
"""``index`` and ``id`` (``path`` where examples are image files) are null for what is said of a class."""


class Finding(NamedTuple):
    """What is listed under one name, the worst first (m,)."""

    rows: Array
    """Of the table of labels; -1 for what is said of a class."""
    scores: Array
    flags: Array
    reasons: Sequence[str]
    groups: Array | None = None


def findings_table(labels: pa.Table, found: Mapping[str, Finding]) -> pa.Table:
    """Return all findings as one table; ``labels`` is that of the run."""
    parts = [_part(labels, name, finding) for name, finding in found.items()]
    table = pa.concat_tables([SCHEMA.empty_table(), *parts])
    named = any(is_image(PurePath(name).name) for name in labels["id"].slice(0, 1).to_pylist())
    return table.rename_columns(["index", "path" if named else "id", *SCHEMA.names[2:]])


def _part(labels: pa.Table, name: str, finding: Finding) -> pa.Table:
    known = finding.rows >= 0
    count = len(finding.rows)
    rows = pa.array(finding.rows, pa.int64(), mask=~known)
    groups = pa.nulls(count, pa.int64()) if finding.groups is None else pa.array(finding.groups, pa.int64())
    return pa.table(
        {
            "index": rows,
            "id": labels["id"].combine_chunks().cast(pa.string()).take(rows),
            "finding": pa.array([name] * count, pa.string()),
            "score": np.round(finding.scores.astype(np.float64), 6),
            "flag": finding.flags.astype(bool),
            "reason": pa.array(list(finding.reasons), pa.string()),
            "group": groups,
        }
    )


def without_removed(findings: pa.Table, labels: pa.Table) -> pa.Table:
    """Return the findings about what people have not removed."""
    removed = np.append(np.array(labels["split"].to_pylist()) == REMOVED, False)  # -1 stands for a class
    return findings.filter(~removed[findings["index"].fill_null(-1).to_numpy()])


def read_findings(path: Path) -> pa.Table:
    """Read the findings of a run; the column ``path`` becomes ``id``, as in the table of labels."""
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
        raise RunFolderError(f"{path}: not a readable list of findings ({error})") from error
    table = table.rename_columns(["id" if name == "path" else name for name in table.column_names])
    missing = next((name for name in SCHEMA.names if name not in table.column_names), None)
    if missing is not None:
        raise RunFolderError(f"{path}: no column '{missing}'; run clean again with this version of unflip")
    return table
