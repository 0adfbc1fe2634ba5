"""Tables: which columns are what, and what is said of those that cannot be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from helpers import blobs, open_dataset, quick_train
from unflip import predict
from unflip.data.columns import Table
from unflip.data.dataset import Dataset
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.encoders.table import columns_of
from unflip.errors import InputError


def opened(path: Path, **options: Any) -> Dataset:
    return open_dataset(DataOptions(path=str(path), val_fraction=0.0, standardize="off", **options), seed=0)


def used(dataset: Dataset) -> tuple[str, ...]:
    assert dataset.encoding is not None
    return columns_of(dataset.encoding)


def write(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_columns_become_features_in_their_order_and_labels_are_names_or_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "b,species,a\n1,cat,2.5\n3,dog,-4\n5,cat,1e3\n")
    dataset = opened(path, label_column="species")
    assert dataset.name == "t.csv"
    assert used(dataset) == ("b", "a")
    b, a = dataset.source.fetch(torch.arange(3)).T.tolist()
    np.testing.assert_allclose(b, np.array([-2, 0, 2]) / np.std([1, 3, 5]), rtol=1e-6)
    values = np.array([2.5, -4, 1000])
    np.testing.assert_allclose(a, (values - values.mean()) / values.std(), rtol=1e-6)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.given.tolist() == [0, 1, 0]
    numbered = opened(write(tmp_path, "Label,x\n1,2\n0,3\n"))
    assert (numbered.given.tolist(), numbered.class_names, used(numbered)) == ([1, 0], None, ("x",))


def test_split_and_id_are_no_features(tmp_path: Path) -> None:
    path = write(tmp_path, "id,x,label,split\nr1,1,a,train\nr2,2,b,test\nr3,3,b,train\nr4,4,a,val\n")
    dataset = opened(path)
    assert used(dataset) == ("x",)
    assert dataset.ids == ("r1", "r3", "r4")
    assert dataset.is_val.tolist() == [False, False, True]
    assert dataset.tests["test"].class_numbers.tolist() == [1]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_row_names_that_pandas_wrote_are_no_features(tmp_path: Path, kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0, 4.0], "ok": [True, False, True], "label": ["a", "b", "a"]}, [7, 8, 9])
    path = tmp_path / f"t.{kind}"
    frame.to_csv(path) if kind == "csv" else frame.to_parquet(path)
    dataset = opened(path)
    assert used(dataset) == ("x", "ok")
    assert dataset.ids == ("7", "8", "9")
    assert dataset.source.fetch(torch.arange(3))[:, 1].tolist() == [1, 0, 1]


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no such label column": ("x,y,kind\n1,2,a\n", {"label_column": "knd"}, "'knd', did you mean 'kind'.*kind, x, y"),
    "no label column": (
        "x,y\n1,2\n3,5\n",
        {},
        "no column 'label' among x, y; choose one with --label-column",
    ),
    "nothing but an identifier": ("name,label\nr1,a\nr2,b\nr3,a\n", {}, r"no usable column: name .*like an identifier"),
    "a stray word": ("x,label\n1,a\n2,b\noops,a\n", {}, r"no usable column: x"),
    "a stray word among numbers": (
        "x,label\n1,a\n2,b\noops,a\n",
        {"numeric": ("x",)},
        "column 'x', row 2: 'oops' is not a number",
    ),
    "an empty column": ("x,label\n,a\n,b\n", {}, r"no usable column: x \(all cells are empty\)"),
    "a text column that is not there": (
        "x,label\n1,a\n2,b\n",
        {"text_column": ("y",)},
        "--text-column: unknown column",
    ),
    "a label that is a feature too": (
        "x,label\n1,a\n2,b\n",
        {"categorical": ("label",)},
        "column 'label' holds the labels; choose another",
    ),
    "an empty label of another split": (
        "x,kind,split\n1,a,test\n2,,test\n3,a,train\n4,b,train\n",
        {"label_column": "kind"},
        "'test_labels', row 1: the label is empty",
    ),
    "nothing but empty labels": ("x,label\n1,\n2, \n", {}, "column 'label' is empty; give a file with --labels"),
    "labels to ignore": (
        "x,label\n1,a\n2,b\n",
        {"ignore": ("label",)},
        "column 'label' holds the labels; choose ano",
    ),
    "semicolons": ("x;y;label\n1,5;2;a\n", {}, "t.csv: columns are separated by ';'; separate them by commas"),
    "commas in a header of semicolons": (
        "width, cm;height, cm;label\n1,5;2;a\n2,5;3;b\n",
        {},
        "t.csv: columns are separated by ';'; separate them by commas",
    ),
    "commas in a header and in all rows of semicolons": (
        "width;height, cm;label\n1;2,5;a\n2;3,5;b\n",
        {},
        "t.csv: columns are separated by ';'; separate them by commas",
    ),
    "tabs": ("x\ty\tlabel\n1\t2\ta\n", {}, r"t.csv: columns are separated by '\\t'; separate them by commas"),
    "no row to train on": ("x,label,split\n1,a,test\n", {}, "no row to train on"),
    "the same name twice": ("x,x,label\n1,2,a\n", {}, "two columns 'x'"),
    "nothing but labels": ("label\na\nb\n", {}, "no column besides the label"),
    "a column to ignore that is not there": ("x,label\n1,a\n", {"ignore": ("y",)}, "--ignore: unknown column 'y'"),
    "a short row": ("x,y,label\n1,2,a\n3\n", {}, "not a readable table"),
    "no rows": ("x,label\n", {}, "no row to train on"),
    "one class": ("x,label\n1,a\n2,a\n", {}, "1 class among 2 labels"),
    "an unknown split": ("x,label,split\n1,a,tarin\n", {}, "row 0: split 'tarin'"),
    "infinity": ("x,label\n1,a\ninf,b\n", {}, "column 'x', row 1: 'inf' is not finite"),
}


@pytest.mark.parametrize(("text", "options", "message"), BAD.values(), ids=BAD)
def test_a_table_that_cannot_be_used_says_why_in_one_line(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        opened(write(tmp_path, text), **options)
    assert "\n" not in str(error.value)
    assert "t.csv" in str(error.value)


def test_what_cannot_be_used_can_be_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, "x,town,label\n1,Rome,a\n2,Oslo,b\n")
    assert used(opened(path, ignore=("town",))) == ("x",)


def test_a_model_finds_its_columns_by_their_names(tmp_path: Path) -> None:
    content = blobs()
    names = [f"c{i}" for i in range(6)]
    columns = dict(zip(names, content["train"].T, strict=True))
    pyarrow.parquet.write_table(pa.table(columns | {"label": content["train_labels"]}), tmp_path / "train.parquet")
    run = quick_train(tmp_path / "train.parquet", tmp_path / "run", epochs=3)
    shuffled = {name: content["test"].T[int(name[1])] for name in reversed(names)}
    told = {"note": ["x"] * 60} | shuffled | {"kind": np.arange(60)}
    pyarrow.parquet.write_table(pa.table(told), tmp_path / "new.parquet")
    right = predict(run, tmp_path / "new.parquet").labels.numpy() == content["test_labels"]
    assert right.mean() > 0.95
    pyarrow.parquet.write_table(pa.table({"c0": [1.0], "c1": [2.0]}), tmp_path / "few.parquet")
    with pytest.raises(InputError, match=r"few\.parquet: unknown column 'c2'.*: c0, c1"):
        predict(run, tmp_path / "few.parquet")


def test_ids_and_labels_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(",id,a,label\n0,0007,1.5,01\n1,12345678901234567890,2.5,1\n2,0x1f,3.5,01\n")
    raw = load_raw(DataOptions(path=str(path)))
    assert raw.train.ids is not None
    assert raw.train.labels is not None
    assert raw.train.ids.tolist() == ["0007", "12345678901234567890", "0x1f"]
    assert raw.train.labels.tolist() == ["01", "1", "01"]
    assert isinstance(raw.train.inputs, Table)
    assert raw.train.inputs.table.column_names == ["a"]  # neither the id nor the index that pandas wrote


def test_without_ids_the_examples_of_a_split_are_called_by_their_rows_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,label,split\n1,x,test\n2,x,train\n3,y,train\n")
    raw = load_raw(DataOptions(path=str(path)))
    assert raw.train.ids is not None
    assert raw.train.ids.tolist() == ["1", "2"]


def test_two_columns_of_labels_or_another_encoding_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Label,a,label\n0,1,1\n")
    with pytest.raises(InputError, match="columns Label and label; choose one with --label-column"):
        load_raw(DataOptions(path=str(path)))
    path.write_bytes("a,label\n1,caf\u00e9\n2,b\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"UTF-?8"):
        load_raw(DataOptions(path=str(path)))
    path.write_text("a,label\n1,b\n", encoding="utf-16")
    with pytest.raises(InputError, match=r"t\.csv: not a readable table"):
        load_raw(DataOptions(path=str(path)))


def test_an_index_is_no_feature(tmp_path: Path) -> None:
    path = write(tmp_path, "index,x,label\n7,1,a\n8,2,b\n9,1,a\n")
    dataset = opened(path)
    assert (used(dataset), dataset.ids) == (("x",), ("7", "8", "9"))
    assert used(opened(path, ignore=("index",))) == ("x",)
    assert used(opened(path, numeric=("index",))) == ("index", "x")
    refractive = write(tmp_path, "index,x,label\n1.5,1,a\n1.4,2,b\n1.5,1,a\n")
    assert used(opened(refractive)) == ("index", "x")


def test_an_index_that_has_a_name_in_pandas_is_no_feature(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0], "label": ["a", "b"]}, pandas.Index([7, 7], name="customer"))
    frame.to_parquet(tmp_path / "t.parquet")
    assert used(opened(tmp_path / "t.parquet")) == ("x",)


def test_text_that_is_stored_as_bytes_is_text(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = {"x": [1.0, 2.0], "id": [b"r1", b"r2"], "label": ["été".encode(), b"z "], "blob": [b"\xff", b"\xfe"]}
    pyarrow.parquet.write_table(pa.table(table), path)
    with pytest.raises(InputError, match="column 'blob': not text in UTF-8"):
        opened(path)
    dataset = opened(path, ignore=("blob",))
    assert (dataset.class_names, dataset.ids) == (("z", "été"), ("r1", "r2"))


def test_marks_in_names_and_cells_of_commas_separate_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, f"x;y;z,a|b|c,label\n1,2;3,u\n2,3,v\n3,{'4|5;' * 50_000},u\n")
    assert load_raw(DataOptions(path=str(path))).train.inputs.shape == (3, 2)


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, '\n\nx,label\n1,a\n\n2,b\r\n\r\n\n"two\n\nparagraphs",a\n\n\n')
    assert len(load_raw(DataOptions(path=str(path))).train.inputs) == 3


def test_a_blank_line_in_a_single_column_is_an_empty_cell(tmp_path: Path) -> None:
    path = write(tmp_path, "text\none\n\nthree\n\n")
    inputs = load_raw(DataOptions(path=str(path))).train.inputs
    assert isinstance(inputs, Table)
    assert [inputs.cells(row)[0] for row in range(len(inputs))] == ["one", "", "three"]


@pytest.mark.parametrize("kind", ["string_view", "binary_view"])
def test_views_of_texts_are_texts(kind: str, tmp_path: Path) -> None:
    view = getattr(pa, kind)()
    texts = {"topic": ["u", "v"] * 6, "label": ["a", "b", "c"] * 4, "split": ["train"] * 11 + ["test"]}
    columns = {name: pa.array(cells).cast(pa.binary()).cast(view) for name, cells in texts.items()}
    ids = pa.array([f"r{i}" for i in range(12)]).cast(pa.binary()).cast(view)
    pa.parquet.write_table(pa.table(columns | {"id": ids, "x": np.arange(12) / 7}), tmp_path / "t.parquet")
    dataset = opened(tmp_path / "t.parquet")
    assert used(dataset) == ("topic", "x")
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.ids == tuple(f"r{i}" for i in range(11))
