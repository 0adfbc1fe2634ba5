"""Examples without a label: which cells are none, what is left, and what they are refused for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import blobs, open_dataset, write_npz
from unflip.data.dataset import Dataset
from unflip.data.labels import missing_labels
from unflip.data.options import DataOptions, NoiseOptions
from unflip.errors import InputError, UnflipWarning


def opened(path: Path, seed: int = 0, noise: NoiseOptions | None = None, **options: Any) -> Dataset:
    return open_dataset(DataOptions(path=str(path), **options), seed, noise)


def table(folder: Path, labels: list[str], *more: str, header: str = "x,label") -> Path:
    """Write a table of a number and these labels."""
    rows = [f"{row}.5,{label}" for row, label in enumerate(labels)]
    rows = [",".join(pair) for pair in zip(rows, more, strict=True)] if more else rows
    path = folder / "t.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("cells", "options", "given", "names"),
    [
        (["a", "", "b", "a"], {}, [0, -1, 1, 0], ("a", "b")),
        (["0", "", "1", " "], {}, [0, -1, 1, -1], None),
        (["7", "", "9", "10"], {}, [0, -1, 1, 2], ("7", "9", "10")),
        (["a", "-1", "b", ""], {"unlabeled": "-1"}, [0, -1, 1, -1], ("a", "b")),
        (["0", "-1", "1", ""], {"unlabeled": "-1"}, [0, -1, 1, -1], None),
        (["0", "-1.0", "1", "2"], {"unlabeled": "-1"}, [0, -1, 1, 2], None),
        (["a", "unknown", "b", "a"], {"unlabeled": "unknown"}, [0, -1, 1, 0], ("a", "b")),
        (["0", "?", "1", "0"], {"unlabeled": "?"}, [0, -1, 1, 0], ("0", "1")),
        (["a", "", "b", "a"], {"classes": ("b", "a", "c")}, [1, -1, 0, 1], ("b", "a", "c")),
        (["a", "", "b", "a", "b", ""], {"limit": 4}, [0, -1, 1, 0], ("a", "b")),
        (["a", "", "b", "a", "b", ""], {"per_class": 1}, [0, -1, 1], ("a", "b")),
    ],
)
def test_a_cell_that_is_empty_or_marked_is_no_label(
    tmp_path: Path, cells: list[str], options: dict[str, Any], given: list[int], names: tuple[str, ...] | None
) -> None:
    data = opened(table(tmp_path, cells), **options)
    assert data.given.tolist() == given
    assert data.class_names == names
    assert data.is_unlabeled.tolist() == [number < 0 for number in given]
    assert data.splits() == ["unlabeled" if number < 0 else "train" for number in given]


@pytest.mark.parametrize("cells", [["a", None, "b"], [0, None, 1], [3.0, None, 5.0], [3.0, float("nan"), 5.0]])
def test_null_and_nan_are_no_labels(tmp_path: Path, cells: list[Any]) -> None:
    content = pa.table({"x": [1.0, 2.5, 3.0], "label": cells})
    pyarrow.parquet.write_table(content, tmp_path / "t.parquet")
    assert opened(tmp_path / "t.parquet").given.tolist() == [0, -1, 1]
    if cells[1] is None:  # JSON has no NaN
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content.to_pylist()))
        assert opened(tmp_path / "t.jsonl").given.tolist() == [0, -1, 1]


@pytest.mark.parametrize(
    ("labels", "marker", "expected"),
    [
        (np.array(["a", "", "-1"]), None, [False, True, False]),
        (np.array(["a", "", "-1"]), "-1", [False, True, True]),
        (np.array([0.0, np.nan, -1.0]), None, [False, True, False]),
        (np.array([0.0, np.nan, -1.0]), "-1", [False, True, True]),
        (np.array([0, 2, -1]), "-1.0", [False, False, True]),
        (np.array([0, 2, -1]), "none", [False, False, False]),
    ],
)
def test_only_what_is_asked_for_is_missing(labels: Any, marker: str | None, expected: list[bool]) -> None:
    assert missing_labels(labels, marker).tolist() == expected


@pytest.mark.parametrize("gap", [np.nan, -1])
def test_arrays_may_have_gaps(tmp_path: Path, gap: float) -> None:
    content = blobs()
    labels = content["train_labels"].astype(float)
    labels[::4] = gap
    path = write_npz(tmp_path / "a.npz", **(content | {"train_labels": labels}))
    data = opened(path, unlabeled=None if gap != gap else "-1", val_fraction=0)
    assert data.given.tolist() == [-1 if row % 4 == 0 else label for row, label in enumerate(content["train_labels"])]
    assert data.num_classes == 3
    assert int(data.trains.sum()) == 112


def test_minus_one_is_a_class_unless_it_is_marked(tmp_path: Path) -> None:
    path = table(tmp_path, ["-1", "1", "-1", "1"])
    assert opened(path).class_names == ("-1", "1")


def test_validation_examples_have_labels(tmp_path: Path) -> None:
    content = blobs()
    labels = content["train_labels"].astype(float)
    labels[:75] = np.nan
    path = write_npz(tmp_path / "a.npz", **(content | {"train_labels": labels}))
    data = opened(path, val_fraction=0.2)
    assert int(data.is_val.sum()) == 15
    assert not bool((data.is_val & data.is_unlabeled).any())
    assert int(data.is_unlabeled.sum()) == 75


def test_a_split_of_the_file_may_have_unlabeled_training_rows(tmp_path: Path) -> None:
    labels, splits = ["a", "", "b", "a", "b", "a"], ["train", "train", "train", "val", "test", "train"]
    data = opened(table(tmp_path, labels, *splits, header="x,label,split"))
    assert data.given.tolist() == [0, -1, 1, 0, 0]  # validation examples come last
    assert data.splits() == ["train", "unlabeled", "train", "train", "val"]


BAD: dict[str, tuple[list[str], list[str], dict[str, Any], str]] = {
    "no label": (["", " ", ""], [], {}, "column 'label' is empty; give a file with --labels"),
    "nothing but markers": (["?", "?", ""], [], {"unlabeled": "?"}, "column 'label': no example has a label"),
    "one class": (["a", "", "a"], [], {}, "1 class among 3 labels; at least two are needed"),
    "a validation row": (["a", "b", ""], ["train", "train", "val"], {}, "'val_labels', row 0: the label is empty"),
    "a test row": (["a", "b", ""], ["train", "train", "test"], {}, "'test_labels', row 0: the label is empty"),
    "noise": (
        ["a", "", "b"],
        [],
        {"noise": NoiseOptions(recipe="sym:0.1")},
        "row 1: no label; noise needs a label in every row",
    ),
}


@pytest.mark.parametrize(("labels", "splits", "options", "message"), BAD.values(), ids=BAD)
def test_what_needs_labels_is_refused_in_one_line(
    tmp_path: Path, labels: list[str], splits: list[str], options: dict[str, Any], message: str
) -> None:
    path = table(tmp_path, labels, *splits, header="x,label,split" if splits else "x,label")
    with pytest.raises(InputError, match=message) as error:
        opened(path, **options)
    assert "\n" not in str(error.value)


def test_a_marker_that_does_not_occur_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UnflipWarning, match="column 'label': no label is '-1', as --unlabeled says"):
        opened(table(tmp_path, ["a", "", "b"]), unlabeled="-1")


def test_reviewed_labels_fill_gaps(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("index,label,decision\n1,b,label\n4,,remove\n")
    data = opened(table(tmp_path, ["a", "", "b", "a", "", ""]), reviewed=str(tmp_path / "r.csv"))
    assert data.given.tolist() == [0, -1, 1, 0, -1, -1]
    assert data.reviewed is not None
    assert data.reviewed.tolist() == [-1, 1, -1, -1, -1, -1]
    assert data.splits() == ["train", "train", "train", "train", "removed", "unlabeled"]


def test_other_labels_may_have_gaps(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("index,label\n0,b\n1,\n2,a\n3,b\n")
    data = opened(table(tmp_path, ["a", "a", "b", "b"]), labels=str(tmp_path / "other.csv"))
    assert data.given.tolist() == [1, -1, 0, 1]
    assert data.clean is not None
    assert data.clean.tolist() == [0, 0, 1, 1]
