"""Issues of a run: what is written is read again, and what people removed is no issue any more."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from unflip.runs.labels import Issue, issues_table, read_issues


@pytest.fixture
def labels() -> pa.Table:
    splits = ["train", "removed", "val", "train", "removed", "train"]
    return pa.table({"id": [f'p/{i}, "x".png' for i in range(6)], "split": splits})


def found(rows: list[int], groups: list[int] | None = None) -> Issue:
    reasons = [f'reason {i},\n"{i}"' for i in rows]
    flags = np.ones(len(rows), bool)
    return Issue(np.array(rows), flags / 2, flags, reasons, None if groups is None else np.array(groups))


def test_what_is_written_is_read_again(labels: pa.Table, tmp_path: Path) -> None:
    table = issues_table(labels, {"outlier": found([3, 0]), "class_quality": found([-1]), "copy": found([2], [7])})
    assert table.column_names[1] == "path"
    pa.csv.write_csv(table, tmp_path / "issues.csv")
    again = read_issues(tmp_path / "issues.csv")
    assert again.column_names == ["index", "id", "issue", "score", "flag", "reason", "group"]
    assert again.rename_columns(table.column_names).to_pylist() == table.to_pylist()
    assert again["index"].to_pylist() == [3, 0, None, 2]
    assert again["group"].to_pylist() == [None, None, None, 7]


def test_removed_examples_are_no_issues(labels: pa.Table) -> None:
    given = {
        "outlier": found([3, 1]),
        "copy": found([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 1, 2]),
        "class_quality": found([-1]),
    }
    kept = issues_table(labels, given)
    rows = list(zip(kept["issue"].to_pylist(), kept["index"].to_pylist(), strict=True))
    assert rows == [("outlier", 3), ("copy", 0), ("copy", 2), ("copy", 3), ("copy", 5), ("class_quality", None)]
    assert issues_table(labels, {}).num_rows == 0
