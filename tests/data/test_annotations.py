"""Labels by several annotators: columns, long tables, exports of Label Studio and Argilla, arrays; what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import blobs, open_dataset, write_npz
from pictures import write_picture
from unflip.data.annotations import long_form, read_annotations
from unflip.data.dataset import Dataset
from unflip.data.labeling import choose_labels
from unflip.data.loaders import load_raw
from unflip.data.memory import own_annotations
from unflip.data.options import DataOptions
from unflip.errors import InputError

COLUMNS = {
    "ann": ["cat", "dog", "", "cat", "dog"],
    "bob": ["cat", "cat", "dog", "", "dog"],
    "eve": ["cat", "dog"] + [""] * 3,
}
TABLE = [[0, 0, 0], [1, 0, 1], [-1, 1, -1], [0, -1, -1], [1, 1, -1]]
"""The same as class numbers, by example and annotator."""
LONG = [(row, by, cell) for by, cells in COLUMNS.items() for row, cell in enumerate(cells) if cell]
DECLARED = {"classes": ("dog", "cat")}


def chosen(path: Path, **options: Any) -> Dataset:
    """Return data with class numbers, before inputs are encoded."""
    own = DataOptions(path=str(path), **options)
    return choose_labels(load_raw(own), own)[0]


def annotations(data: Dataset) -> list[list[int]]:
    assert data.train.annotations is not None
    return data.train.annotations.tolist()  # type: ignore[no-any-return]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Five rows without labels, called r0 to r4."""
    path = tmp_path / "plain.csv"
    path.write_text("id,x\n" + "".join(f"r{row},{row}.5\n" for row in range(5)))
    return path


def write_columns(folder: Path, **more: list[str]) -> Path:
    columns = {"x": [f"{row}.5" for row in range(5)]} | COLUMNS | more
    path = folder / "t.csv"
    path.write_text("\n".join(map(",".join, [[*columns], *zip(*columns.values(), strict=True)])) + "\n")
    return path


def test_a_column_per_annotator(tmp_path: Path) -> None:
    data = chosen(write_columns(tmp_path), annotator_columns="ann, bob,eve")
    assert (data.class_names, data.annotators) == (("cat", "dog"), ("ann", "bob", "eve"))
    assert annotations(data) == TABLE
    assert data.given.tolist() == [0, 1, 1, 0, 1]  # of the majority
    assert data.train.truth is None
    own = DataOptions(path=str(tmp_path / "t.csv"), annotator_columns=("ann", "bob", "eve"))
    assert load_raw(own).train.inputs.shape == (5, 1)


def test_the_long_form_of_a_table(tmp_path: Path) -> None:
    long = long_form(chosen(write_columns(tmp_path), annotator_columns=("ann", "bob", "eve")))
    found = {
        (example, long.names[by], ("cat", "dog")[label])
        for example, by, label in zip(*(part.tolist() for part in long[:3]), strict=True)
    }
    assert found == {*LONG}


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("naming", ["id", "index"])
def test_a_row_per_label(tmp_path: Path, plain: Path, kind: str, naming: str) -> None:
    rows: list[dict[str, Any]] = [
        {naming: row if naming == "index" else f"r{row}", "Annotator": by, "label": label, "seconds": 3}
        for row, by, label in LONG
    ]
    rows.append(rows[0] | {"label": None})  # was shown to ann again
    path = tmp_path / f"long.{kind}"
    match kind:
        case "csv":
            cells = [[*rows[0]], *([*map(str, row.values())] for row in rows)]
            path.write_text("\n".join(map(",".join, cells)).replace("None", "") + "\n")
        case "parquet":
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = chosen(plain, annotations=str(path))
    assert (data.class_names, data.annotators) == (("cat", "dog"), ("ann", "bob", "eve"))
    assert annotations(data) == TABLE


def label_studio(*tasks: tuple[dict[str, Any], list[tuple[Any, str]]]) -> list[dict[str, Any]]:
    """An export in the format JSON: data, and (completed_by, choice) pairs."""
    return [
        {
            "id": number + 1,
            "annotations": [
                {
                    "id": 1001 + place,
                    "completed_by": by,
                    "result": [
                        {"from_name": "note", "to_name": "text", "type": "textarea", "value": {"text": ["hm"]}},
                        {
                            "from_name": "kind",
                            "id": "Dx_aB91ISN",
                            "to_name": "text",
                            "type": "choices",
                            "value": {"choices": [choice]},
                            "origin": "manual",
                        },
                    ],
                    "was_cancelled": False,
                    "ground_truth": False,
                    "created_at": "2021-03-09T22:16:08.728353Z",
                    "lead_time": 4.288,
                    "task": number + 1,
                }
                for place, (by, choice) in enumerate(labels)
            ],
            "drafts": [],
            "predictions": [{"model_version": "m", "result": [{"type": "choices", "value": {"choices": ["eel"]}}]}],
            "data": content,
            "meta": {},
            "created_at": "2021-03-09T21:52:49.513742Z",
            "project": 83,
        }
        for number, (content, labels) in enumerate(tasks)
    ]  # fmt: skip


def by_row() -> list[list[tuple[str, str]]]:
    return [[(by, cell) for example, by, cell in LONG if example == row] for row in range(5)]


def test_an_export_of_label_studio(tmp_path: Path, plain: Path) -> None:
    people = {"ann": {"id": 1, "email": "ann@x.org", "first_name": "", "last_name": ""}, "bob": 2, "eve": 3}
    tasks = label_studio(
        *(
            ({"text": "hello", "id": f"r{row}"}, [(people[by], cell) for by, cell in labels])
            for row, labels in enumerate(by_row())
        )
    )
    skipped = tasks[2]["annotations"][0] | {"was_cancelled": True, "completed_by": 3, "result": []}
    tasks[2]["annotations"].append(skipped)
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    data = chosen(plain, annotations=str(tmp_path / "export.json"))
    assert (data.class_names, data.annotators) == (("cat", "dog"), ("2", "3", "ann@x.org"))
    assert annotations(data) == [[row[1], row[2], row[0]] for row in TABLE]


def test_tasks_of_label_studio_that_know_no_id_have_their_own(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,x\n" + "".join(f"{row + 1},{row}.5\n" for row in range(5)))
    tasks = label_studio(*(({"text": "hello"}, labels) for labels in by_row()))
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    assert annotations(chosen(path, annotations=str(tmp_path / "export.json"))) == TABLE


def argilla(rows: list[list[tuple[str, str]]], **more: Any) -> list[dict[str, Any]]:
    """What ``dataset.records.to_json`` of Argilla writes."""
    return [
        {
            "id": f"r{row}",
            "fields": {"text": "hello"},
            "metadata": {},
            "suggestions": {"kind": {"value": "eel", "score": None, "agent": None}},
            "responses": {"kind": [{"value": cell, "user_id": by} for by, cell in labels]} | more if labels else {},
            "vectors": {},
            "_server_id": "e8f5d0a2-0000-4000-8000-000000000000",
        }
        for row, labels in enumerate(rows)
    ]


def test_an_export_of_argilla(tmp_path: Path, plain: Path) -> None:
    records = argilla([*by_row()[:4], []])
    discarded = {"value": "cat", "user_id": "eve", "status": "discarded"}
    records[2]["responses"]["kind"].append(discarded)
    (tmp_path / "records.json").write_text(json.dumps(records))
    data = chosen(plain, annotations=str(tmp_path / "records.json"))
    assert (data.class_names, data.annotators) == (("cat", "dog"), ("ann", "bob", "eve"))
    assert annotations(data) == [*TABLE[:4], [-1, -1, -1]]
    assert data.given.tolist() == [0, 1, 1, 0, -1]  # nobody has labeled the last one


def test_all_records_answer_the_same_question(tmp_path: Path, plain: Path) -> None:
    records = argilla(by_row())
    other = [{"value": "rude", "user_id": "ann"}]
    records[0]["responses"] |= {"tone": other}
    records[1]["responses"] = {"tone": other} | records[1]["responses"]
    records[3]["responses"] = {"tone": other}
    (tmp_path / "records.json").write_text(json.dumps(records))
    data = chosen(plain, annotations=str(tmp_path / "records.json"))
    assert data.class_names == ("cat", "dog")
    assert annotations(data) == [*TABLE[:3], [-1, -1, -1], TABLE[4]]


def test_a_question_of_free_text_is_passed_over(tmp_path: Path, plain: Path) -> None:
    records = argilla(by_row())
    for row, record in enumerate(records):
        record["responses"] = {"comment": [{"value": f"note {row}", "user_id": "ann"}]} | record["responses"]
    (tmp_path / "records.json").write_text(json.dumps(records))
    data = chosen(plain, annotations=str(tmp_path / "records.json"))
    assert data.class_names == ("cat", "dog")
    assert annotations(data) == TABLE


def test_arrays_hold_class_numbers_by_annotator(tmp_path: Path) -> None:
    content, random = blobs(), np.random.default_rng(0)
    labels = np.where(random.random((150, 3)) < 0.3, -1, content["train_labels"][:, None])
    own = {"train_annotations": labels, "annotators": np.array(["ann", "bob", "eve"])}
    data = chosen(write_npz(tmp_path / "a.npz", **(content | own)))
    assert (data.class_names, data.annotators) == (("0", "1", "2"), ("ann", "bob", "eve"))
    assert annotations(data) == labels.tolist()
    assert data.train.truth is not None
    assert data.train.truth.tolist() == content["train_labels"].tolist()
    gaps = np.where(labels < 0, np.nan, labels)
    data = chosen(write_npz(tmp_path / "b.npz", **(content | {"train_annotations": gaps})))
    assert data.annotators == ("0", "1", "2")
    assert annotations(data) == labels.tolist()


BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "one annotator": ({"train_annotations": np.zeros((150, 1), int)}, r"shape \(150, 1\), .* must be class numbers"),
    "too few rows": ({"train_annotations": np.zeros((9, 2), int)}, r"'?train_annotations'?: shape \(9, 2\)"),
    "names": ({"train_annotations": np.full((150, 2), "a")}, "'train_annotations': .* must be class numbers"),
    "a class number": ({"train_annotations": np.array([[-2, 1]] * 150)}, "row 0: a class number must be from 0 to"),
    "half a class": ({"train_annotations": np.full((150, 2), 0.5)}, "row 0: a class number must be from 0 to"),
    "too few names": (
        {"train_annotations": np.arange(300).reshape(150, 2) % 3, "annotators": np.array(["ann"])},
        "'annotators': 1 names for 2 columns of annotations",
    ),
    "no label": ({"train_annotations": np.full((150, 2), -1)}, "no example has a label|no label"),
}


@pytest.mark.parametrize(("own", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_arrays_that_are_no_annotations_are_refused(tmp_path: Path, own: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        chosen(write_npz(tmp_path / "a.npz", **(blobs() | own)))
    assert "\n" not in str(error.value)


GOOD = "id,annotator,label\nr0,ann,a\nr0,bob,b\nr1,ann,b\nr2,bob,a\n"
BAD: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "twice in two ways": (
        "l.csv",
        GOOD + "r1,bob,a\nr1,ann,a\n",
        {},
        r"l\.csv, row 5: ann labels example 1 'a' and 'b'; keep one of them|"
        r"l\.csv, row 2: ann labels example 1 'b' and 'a'; keep one of them",
    ),
    "an unknown id": ("l.csv", GOOD + "r9,ann,a\n", {}, "row 4: no example, or several, called 'r9'"),
    "one annotator": ("l.csv", "id,annotator,label\nr0,ann,a\nr1,ann,b\n", {}, "one annotator, 'ann', gave all labels"),
    "no annotator": ("l.csv", GOOD + "r2,,a\n", {}, "row 4: no annotator"),
    "no column annotator": ("l.csv", "id,label\nr0,a\n", {}, "no column 'annotator' among id, label; one row per"),
    "no column label": ("l.csv", "id,annotator\nr0,a\n", {}, "no column 'label' among id, annotator; one row per"),
    "no column id": ("l.csv", "annotator,label\nann,a\n", {}, "no column 'index', 'path' or 'id'; one row per label"),
    "no file": ("none.csv", "", {}, "none.csv: no such file|none.csv: .*[Nn]o such file|not a readable"),
    "an empty file": ("l.csv", "", {}, r"l\.csv: not a readable table"),
    "no rows": ("l.csv", "id,annotator,label\n", {}, r"l\.csv: no label"),
    "no label": ("l.csv", "id,annotator,label\nr0,ann,\nr1,bob,\n", {}, r"l\.csv: no label"),
    "another class": ("l.csv", GOOD, {"classes": ("a", "c")}, "row 1: 'b' by bob is not one of the classes a, c"),
    "an index": ("l.csv", "index,annotator,label\n5,ann,a\n0,bob,b\n", {}, "row 0: index '5' is not an integer"),
    "other JSON": ("l.json", '{"a": 1}', {}, "not an export of Label Studio or Argilla"),
    "a list of numbers": ("l.json", "[1, 2]", {}, "not an export of Label Studio or Argilla"),
    "an empty list": ("l.json", "[]", {}, "no label"),
    "no JSON": ("l.json", "{", {}, r"l\.json: not a readable JSON file"),
    "several labels at once": (
        "l.json",
        json.dumps(argilla([[("ann", "a"), ("bob", "b")]])).replace('"a"', '["a", "b"]'),
        {},
        "several labels at once",
    ),
    "several choices": (
        "l.json",
        json.dumps(label_studio(({"id": "r0"}, [(1, "a"), (2, "b")]))).replace('["a"]', '["a", "b"]'),
        {},
        "several labels at once",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options", "message"), BAD.values(), ids=BAD)
def test_bad_annotations_are_named_in_one_line(
    tmp_path: Path, plain: Path, name: str, content: str, options: dict[str, Any], message: str
) -> None:
    if name != "none.csv":
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message) as error:
        chosen(plain, annotations=str(tmp_path / name), **options)
    assert "\n" not in str(error.value)


def test_an_annotator_may_say_the_same_twice(tmp_path: Path, plain: Path) -> None:
    (tmp_path / "l.csv").write_text(GOOD + "r1,ann,b\n")
    assert annotations(chosen(plain, annotations=str(tmp_path / "l.csv")))[1] == [1, -1]


BAD_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown column": ({"annotator_columns": "ann,bbo"}, r"--annotator-columns: unknown column 'bbo'"),
    "one annotator": ({"annotator_columns": "ann"}, "one annotator, 'ann', gave all labels; at least two"),
    "another class": ({"annotator_columns": "ann,bob", "classes": ("cat", "eel")}, "row 1: 'dog' by ann is not one of"),
    "the label column": ({"annotator_columns": "ann,bob", "label_column": "ann"}, "--annotator-columns: .*ann"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_bad_columns_are_named_in_one_line(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        chosen(write_columns(tmp_path), **options)
    assert "\n" not in str(error.value)


def test_numbers_are_classes_in_the_order_of_their_values(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,a,b\n0.5,10,9\n1.5,9,9\n2.5,10,\n")
    data = chosen(path, annotator_columns=("a", "b"))
    assert data.class_names == ("9", "10")
    assert annotations(data) == [[1, 0], [0, 0], [1, -1]]
    pyarrow.parquet.write_table(
        pa.table({"x": [0.5, 1.5, 2.5], "a": [10, 9, 10], "b": [9.0, 9.0, None]}), tmp_path / "t.parquet"
    )
    assert annotations(chosen(tmp_path / "t.parquet", annotator_columns=("a", "b"))) == annotations(data)


@pytest.mark.parametrize("labels", [["cat", "cat", "dog", "eel", ""], ["dog"] * 5])
def test_own_labels_are_the_truth_and_used_for_evaluation_only(tmp_path: Path, labels: list[str]) -> None:
    data = chosen(write_columns(tmp_path, label=labels), annotator_columns=("ann", "bob", "eve"))
    names = sorted({"cat", "dog", *labels} - {""})
    assert data.class_names == tuple(names)
    assert data.given.tolist() == [0, 1, 1, 0, 1]
    if "" in labels:
        assert data.train.truth is None  # those of some examples are none
    else:
        assert data.train.truth is not None
        assert data.train.truth.tolist() == [names.index(name) for name in labels]


def test_ties_go_to_whom_the_others_agree_with(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{row}.5,{'uv'[row % 2]},{'uv'[row % 2]},{'uv'[row // 2 % 2]}" for row in range(24)]
    path.write_text("\n".join(["x,a,b,c", *rows, "25.5,u,,v", "26.5,v,,u"]) + "\n")
    assert chosen(path, annotator_columns=("a", "b", "c")).given.tolist()[-2:] == [0, 1]


def test_a_limit_keeps_the_first_examples(tmp_path: Path, plain: Path) -> None:
    data = chosen(write_columns(tmp_path), annotator_columns=("ann", "bob", "eve"), limit=3)
    assert annotations(data) == TABLE[:3]
    rows = "".join(f"r{row},{by},{cell}\n" for row, by, cell in LONG)
    (tmp_path / "l.csv").write_text("id,annotator,label\n" + rows)
    data = chosen(plain, annotations=str(tmp_path / "l.csv"), limit=3)
    assert annotations(data) == TABLE[:3]


def test_other_splits_have_labels_of_their_own(tmp_path: Path, plain: Path) -> None:
    splits = ["train", "train", "train", "val", "test"]
    labels = ["", "", "", "cat", "dog"]
    path = write_columns(tmp_path, label=labels, split=splits)
    data = chosen(path, annotator_columns=("ann", "bob", "eve"))
    assert annotations(data) == TABLE[:3]
    assert data.val is not None
    assert (data.val.class_numbers.tolist(), data.tests["test"].class_numbers.tolist()) == ([0], [1])


def test_a_manifest_of_images_may_have_no_labels_but_those_of_annotators(tmp_path: Path) -> None:
    for row in range(5):
        write_picture(tmp_path / "pictures" / f"{row}.png", row % 3, (20, 20))
    rows = zip(*([*cells] for cells in COLUMNS.values()), strict=True)
    lines = [f"pictures/{row}.png,{','.join(cells)}" for row, cells in enumerate(rows)]
    (tmp_path / "m.csv").write_text("\n".join(["path,Ann,bob,eve", *lines]) + "\n")
    data = chosen(tmp_path / "m.csv", annotator_columns=("Ann", "bob", "eve"))
    assert annotations(data) == TABLE
    assert data.annotators == ("Ann", "bob", "eve")
    (tmp_path / "m.csv").write_text("\n".join(["path", *(line.split(",")[0] for line in lines)]) + "\n")
    long = "".join(f"pictures/{row}.png,{by},{cell}\n" for row, by, cell in LONG)
    (tmp_path / "l.csv").write_text("path,annotator,label\n" + long)
    assert annotations(chosen(tmp_path / "m.csv", annotations=str(tmp_path / "l.csv"))) == TABLE


WIDE = [["cat", "cat", "cat"], ["dog", "cat", "dog"], [None, "dog", None], ["cat", None, None], ["dog", "dog", None]]


def in_memory(kind: str) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: no frames")
    numbers = [[np.nan if number < 0 else number for number in row] for row in TABLE]
    match kind:
        case "array":
            return np.array(WIDE, object)
        case "list":
            return WIDE
        case "numbers":
            return np.array(numbers)
        case "frame":
            return pandas.DataFrame(WIDE, columns=["ann", "bob", "eve"])
        case "frame of numbers":
            return pandas.DataFrame(numbers, columns=["ann", "bob", "eve"])
        case "nullable":
            return pandas.DataFrame(numbers, columns=["ann", "bob", "eve"]).astype("Int64")
        case "arrow":
            return pa.table(dict(zip(COLUMNS, map(list, zip(*WIDE, strict=True)), strict=True)))
        case "long":
            return pandas.DataFrame(LONG, columns=["index", "annotator", "label"])
        case _:
            return (
                pandas.DataFrame(LONG, columns=["id", "Annotator", "Label"])
                .astype({"id": str})
                .replace({"id": r"^"}, "r", regex=True)
            )


@pytest.mark.parametrize(
    "kind", ["array", "list", "numbers", "frame", "frame of numbers", "nullable", "arrow", "long", "long by id"]
)
def test_annotations_in_memory(tmp_path: Path, plain: Path, kind: str) -> None:
    path = own_annotations(in_memory(kind), tmp_path)
    data = chosen(plain, annotations=path)
    named = "array" not in kind and kind not in ("numbers", "list")
    assert data.annotators == (("ann", "bob", "eve") if named else ("0", "1", "2"))
    assert data.class_names == (("0", "1") if "number" in kind or kind == "nullable" else ("cat", "dog"))
    assert annotations(data) == TABLE


@pytest.mark.parametrize("annotations", [np.zeros(5), np.zeros((5, 2, 2)), [1, 2]])
def test_annotations_of_another_shape_are_refused(tmp_path: Path, annotations: Any) -> None:
    with pytest.raises(InputError, match=r"annotations: shape .* must be \(examples, annotators\), or in long form"):
        own_annotations(annotations, tmp_path)


def test_a_path_stays_a_path(tmp_path: Path) -> None:
    assert own_annotations(tmp_path / "x.csv", tmp_path) == str(tmp_path / "x.csv")


def test_a_table_is_read_like_a_file() -> None:
    found = read_annotations(pa.table({"index": [0, 1], "annotator": [7, 8], "label": [2.0, None]}), "frame")
    assert (found.naming, found.annotators, found.labels) == ({"index": [0, 1]}, ["7", "8"], ["2", ""])


def test_rows_are_those_of_the_file_even_after_empty_labels(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", train=blobs()["train"])
    rows = ["0,ann,", "0,ben,a", "1,ann,b", "1,ann,c"]
    (tmp_path / "long.csv").write_text("\n".join(["index,annotator,label", *rows]))
    options = DataOptions(path=str(path), annotations=str(tmp_path / "long.csv"))
    with pytest.raises(InputError, match=r"long\.csv, row 2: ann labels example 1 'b' and 'c'"):
        open_dataset(options)


def test_annotated_data_is_ready_to_train(tmp_path: Path) -> None:
    content = blobs()
    table = np.stack([content["train_labels"]] * 2, 1)
    path = write_npz(tmp_path / "a.npz", train=content["train"], train_annotations=table)
    data = open_dataset(DataOptions(path=str(path), val_fraction=0))
    assert data.given.tolist() == content["train_labels"].tolist()
    assert data.clean is None
