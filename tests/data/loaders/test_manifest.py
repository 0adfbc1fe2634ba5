"""Manifests: tables of images."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from helpers import open_dataset
from pictures import write_picture
from unflip.data.columns import Table
from unflip.data.dataset import Dataset
from unflip.data.files import ImageFiles
from unflip.data.loaders import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i in range(6):
        write_picture(tmp_path / "pictures" / f"{i}.png", i, (16, 16))
    return tmp_path


def write(root: Path, *rows: str, header: str = "path,label,split") -> Path:
    path = root / "m.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def opened(path: Path, **options: Any) -> Dataset:
    return open_dataset(DataOptions(path=str(path), val_fraction=0.0, **options), seed=0)


def test_splits_labels_and_paths_are_those_of_the_table(root: Path) -> None:
    outside = write_picture(root.parent / f"{root.name}-outside.png", 0, (16, 16))
    path = write(
        root,
        "pictures/0.png,cat,train",
        "pictures/1.png,dog,test",
        f"../{outside.name},dog,train",
        f"{root}/pictures/2.png,cat,val",
        "pictures/3.png,cat,test2",
    )
    dataset = opened(path)
    assert dataset.name == "m.csv"
    assert dataset.ids == ("pictures/0.png", f"../{outside.name}", f"{root}/pictures/2.png")
    assert dataset.class_names == ("cat", "dog")
    assert dataset.given.tolist() == [0, 1, 0]
    assert dataset.is_val.tolist() == [False, False, True]
    assert {name: test.class_numbers.tolist() for name, test in dataset.tests.items()} == {"test": [1], "test2": [0]}


def test_without_splits_all_train_and_numbers_are_classes(root: Path) -> None:
    dataset = opened(write(root, "2,pictures/0.png,x", "0,pictures/1.png,y", header="label, Path ,note"))
    assert (dataset.given.tolist(), dataset.class_names) == ([1, 0], ("0", "2"))


@pytest.mark.parametrize("labels", [[1, 0, 1], ["b", "a", "b"]])
def test_a_parquet_table_is_read_alike(root: Path, labels: list[Any]) -> None:
    table = {"path": [f"pictures/{i}.png" for i in range(3)], "label": labels, "other": [0.5] * 3}
    pyarrow.parquet.write_table(pa.table(table), root / "m.parquet")
    dataset = opened(root / "m.parquet")
    assert dataset.given.tolist() == [1, 0, 1]
    assert dataset.source.fetch(torch.arange(3)).shape == (3, 3, 16, 16)


GOOD = ("pictures/0.png,cat,train", "pictures/1.png,dog,train")
BAD = {
    "nothing": ((), "", "m.csv: not a readable table"),
    "no label": (("pictures/0.png",), "path", "no column 'label' among path; .*, or give a file with --labels"),
    "no rows": ((), "path,label", "no row to train on"),
    "no train": (("pictures/0.png,cat,test",), "path,label,split", "no row to train on"),
    "split": ((*GOOD, "pictures/2.png,cat,valid"), "path,label,split", "m.csv, row 2: split 'valid'; must be train,"),
    "empty path": ((*GOOD, ",cat,train"), "path,label,split", "m.csv, row 2: column 'path' is empty"),
    "empty test label": ((*GOOD, "pictures/2.png,,test"), "path,label,split", "row 0: the label is empty"),
    "no labels": (("pictures/0.png,", "pictures/1.png, "), "path,label", "column 'label' is empty; give a file"),
    "two paths": (("pictures/0.png,a,b",), "path,label,Path", "two columns 'path'; rename one"),
    "semicolons": (("pictures/0.png;a",), "path;label", "m.csv: columns are separated by ';'; separate them by"),
    "short row": ((*GOOD, "pictures/2.png"), "path,label,split", "m.csv: not a readable table .*Expected 3 columns"),
    "one class": (("pictures/0.png,cat", "pictures/1.png,cat"), "path,label", "1 class among 2 labels"),
    "missing": (
        ("pictures/0.png,cat,test", *GOOD, "pictures/gone.png,cat,train"),
        "path,label,split",
        r"m\.csv, row 3: .*/pictures/gone\.png: No such file or directory; to leave such images out: --skip-broken",
    ),
    "absolute": ((*GOOD, "/no/such.png,cat,train"), "path,label,split", r"m\.csv, row 2: /no/such\.png: No such file"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "header", "message"), BAD.values(), ids=BAD)
def test_a_bad_manifest_says_what_is_wrong_in_one_line(
    root: Path, rows: tuple[str, ...], header: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        opened(write(root, *rows, header=header))
    assert "\n" not in str(error.value)


def test_a_row_without_a_file_can_be_skipped(root: Path) -> None:
    rows = ("gone.png,cow,train", *GOOD, "gone2.png,cat,val", "pictures/2.png,cat,val")
    dataset = opened(write(root, *rows), skip_broken=True, max_broken=0.6)
    assert dataset.class_names == ("cat", "cow", "dog")
    assert [(image.part, image.id) for image in dataset.skipped] == [("train", "gone.png"), ("val", "gone2.png")]
    assert dataset.given.tolist() == [0, 2, 0]


@pytest.mark.parametrize("name", ["m.csv", "m.parquet"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00rubbish")
    with pytest.raises(InputError, match=rf"{name}: not a"):
        opened(tmp_path / name)


def test_an_empty_cell_of_a_parquet_table_is_no_label(root: Path) -> None:
    table = {"path": [f"pictures/{i}.png" for i in range(3)], "label": ["a", None, "b"]}
    pyarrow.parquet.write_table(pa.table(table), root / "m.parquet")
    assert opened(root / "m.parquet").given.tolist() == [0, -1, 1]


def test_text_that_a_parquet_table_stores_as_bytes_is_text(root: Path) -> None:
    table = {"path": [f"pictures/{i}.png".encode() for i in range(2)], "label": ["été".encode(), b" a"]}
    pyarrow.parquet.write_table(pa.table(table), root / "m.parquet")
    dataset = opened(root / "m.parquet")
    assert (dataset.class_names, dataset.ids) == (("a", "été"), ("pictures/0.png", "pictures/1.png"))
    pyarrow.parquet.write_table(pa.table(table | {"label": [b"\xff", b"a"]}), root / "m.parquet")
    with pytest.raises(InputError, match="column 'label': not text in UTF-8"):
        opened(root / "m.parquet")


@pytest.mark.parametrize("header", ["path,Label,label", "path,label,label"])
def test_one_of_two_columns_of_labels_is_never_taken_silently(root: Path, header: str) -> None:
    with pytest.raises(InputError, match="two columns 'label'; rename one of them"):
        opened(write(root, "pictures/0.png,a,b", "pictures/1.png,b,a", header=header), label_column="label")


def test_groups_may_be_a_column(root: Path) -> None:
    rows = [f"pictures/{i}.png,{'ab'[i % 2]},s{i // 2}" for i in range(6)]
    path = write(root, *rows, header="path,label,Scene")
    dataset = open_dataset(DataOptions(path=str(path), val_fraction=0.34, groups="scene"), seed=0)
    sides = dataset.is_val.view(3, 2)
    assert torch.equal(sides.any(1), sides.all(1))
    assert int(dataset.is_val.sum()) == 2


@pytest.mark.parametrize("header", ["path,label", "x,label"])
def test_a_header_alone_lacks_rows_and_not_labels(root: Path, header: str) -> None:
    raw = load_raw(DataOptions(path=str(write(root, header=header))))
    assert raw.train.labels is not None
    assert raw.untrainable == "no row to train on"


LOG = ["/index.html,12,a", "/img/logo.png,7,b", f"/{'very' * 200}/long,3,a", "/,5,b"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_paths_that_are_no_files_are_a_column_of_a_table(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, *LOG, header="path,bytes,label")
    if suffix == "parquet":
        pa.parquet.write_table(pa.csv.read_csv(path), path := tmp_path / "m.parquet")
    inputs = load_raw(DataOptions(path=str(path))).train.inputs
    assert isinstance(inputs, Table)
    assert inputs.table.column_names == ["path", "bytes"]


def test_one_file_or_only_names_of_images_make_a_manifest(root: Path) -> None:
    (root / "picture").write_bytes((root / "pictures/0.png").read_bytes())
    for names in (["picture", "missing"], ["missing.png", "gone.jpg"], []):
        path = write(root, *(f"{name},a" for name in names), header="path,label")
        assert isinstance(load_raw(DataOptions(path=str(path))).train.inputs, ImageFiles)


@pytest.mark.parametrize("option", ["ignore", "categorical", "text_column", "numeric"])
def test_a_path_that_is_used_in_a_table_makes_no_manifest(root: Path, option: str) -> None:
    path = write(root, "pictures/0.png,1,a", "pictures/1.png,2,b", header="path,size,label")
    options = DataOptions(path=str(path), **{option: ("path",)})
    check_used(options, [option])
    inputs = load_raw(options).train.inputs
    assert isinstance(inputs, Table)
    assert ("path" in inputs.table.column_names) == (option != "ignore")
