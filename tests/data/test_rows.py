"""Rows of examples: the values that the data holds, by the run's order."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import blobs, quick_train, write_npz
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.runs.folder import open_rows


def test_they_are_those_of_the_arrays_validation_last(tmp_path: Path) -> None:
    content = blobs(train=30)
    val = content["train"][:7] + 1
    path = write_npz(tmp_path / "a.npz", **content, val=val, val_labels=content["train_labels"][:7])
    rows = open_rows(DataOptions(path=str(path)), 37)
    assert rows is not None
    near: list[tuple[str, Any]] = [(f"column {i}", pytest.approx(value)) for i, value in enumerate(content["train"][3])]
    assert rows.values(3) == near
    assert [value for _, value in rows.values(36)] == pytest.approx(val[6].tolist())
    taken = open_rows(DataOptions(path=str(path), limit=10), 17)
    assert taken is not None
    assert [value for _, value in taken.values(10)] == pytest.approx(val[0].tolist())
    with pytest.raises(InputError, match="37 examples, the run had 30"):
        open_rows(DataOptions(path=str(path)), 30)


def test_a_tables_columns_have_their_names(tmp_path: Path) -> None:
    text = "height,label,width\n" + "".join(f"{i},{'ab'[i % 2]},{-i / 2}\n" for i in range(12))
    (tmp_path / "t.csv").write_text(text)
    rows = open_rows(DataOptions(path=str(tmp_path / "t.csv"), label_column="label"), 12)
    assert rows is not None
    assert rows.values(5) == [("height", 5.0), ("width", -2.5)]
    assert rows.more_columns == 0


def test_cells_are_numbers_or_what_people_write(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        f"day,n,big,x,name,label\n2024-02-29,7,{2**53 + 1},nan,,a\n2024-03-01,8,1,inf,{'long ' * 9},b\n"
    )
    options = DataOptions(path=str(tmp_path / "t.csv"), label_column="label")
    rows = open_rows(options, 2)
    assert rows is not None
    assert [value for _, value in rows.values(0)] == ["2024-02-29", 7.0, str(2**53 + 1), "", ""]
    assert dict(rows.values(1))["x"] == "inf"
    assert [name for name, _ in rows.cells(1)] == ["day", "n", "big", "x"]
    assert rows.text(0) is None
    assert rows.named_text(1) == ("name", "long " * 9)
    known = open_rows(options, 2, ("name",), last=("day", "big"))
    assert known is not None
    assert [name for name, _ in known.cells(1)] == ["n", "x", "day", "big"]
    assert (known.text(0), known.text(1)) == ("", "long " * 9)
    none = open_rows(options, 2, ())
    assert none is not None
    assert none.text(1) is None


def test_of_many_columns_without_names_the_first_are_shown(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", train=np.ones((4, 100), np.float32), train_labels=np.arange(4) % 2)
    rows = open_rows(DataOptions(path=str(path)), 4)
    assert rows is not None
    assert len(rows.values(0)) + rows.more_columns == 100
    assert len(rows.values(0)) < 30


def test_images_have_none(tmp_path: Path, features: Path) -> None:
    assert open_rows(DataOptions(path="digits"), 1347) is None
    run = quick_train(features, tmp_path / "run", epochs=1)
    assert run.rows() is not None
