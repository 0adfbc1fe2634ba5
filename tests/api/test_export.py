"""Labels for other tools: what they read is what the run says."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from helpers import Outcome, blobs, forget_quality, quick_train, write_npz
from reviewing import issue, write_issues
from unflip.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("export")
    content = blobs()
    labels = content["train_labels"].copy()
    labels[:20] = (labels[:20] + 1) % 3
    ids = np.array([f"scans/é {i}.png" if i else "no picture" for i in range(150)])
    names = np.array(["cat", "dog, small", "bee"])
    data = write_npz(
        folder / "data.npz", **(content | {"train_labels": labels, "train_ids": ids, "class_names": names})
    )
    return quick_train(data, folder / "run", epochs=5)


def exported(cli: Callable[..., Outcome], run: Run, form: str, out: Path, *more: object) -> Path:
    answer = cli(
        "export", run.folder, "--format", form, "--out", out, *(["--all"] if form == "label-studio" else []), *more
    )
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"150 labels: {out}\n"
    return out


def test_tables_hold_what_the_run_holds(cli: Callable[..., Outcome], run: Run, tmp_path: Path) -> None:
    rows = run.labels().to_pylist()
    assert pyarrow.parquet.read_table(exported(cli, run, "parquet", tmp_path / "l.parquet")).to_pylist() == rows
    lines = exported(cli, run, "jsonl", tmp_path / "l.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert exported(cli, run, "csv", tmp_path / "l.csv").read_bytes() == (run.folder / "labels.csv").read_bytes()


def test_quality_that_is_not_known_is_empty_rather_than_zero(
    cli: Callable[..., Outcome], run: Run, tmp_path: Path
) -> None:
    copy = Run(Path(shutil.copytree(run.folder, tmp_path / "run")))
    forget_quality(copy.folder, [3, 140])
    with exported(cli, copy, "csv", tmp_path / "l.csv").open(encoding="utf-8", newline="") as file:
        assert [i for i, row in enumerate(csv.DictReader(file)) if row["label_quality"] == ""] == [3, 140]
    lines = exported(cli, copy, "jsonl", tmp_path / "l.jsonl").read_text("utf-8").splitlines()
    assert [i for i, line in enumerate(lines) if json.loads(line)["label_quality"] is None] == [3, 140]
    assert json.loads(lines[0])["gaussian_prob_given"] is None
    tasks = json.loads(exported(cli, copy, "label-studio", tmp_path / "tasks.json").read_text("utf-8"))
    assert [i for i, task in enumerate(tasks) if task["data"]["label_quality"] is None] == [3, 140]


def test_label_studio_gets_a_task_an_example_with_a_prediction(
    cli: Callable[..., Outcome], run: Run, tmp_path: Path
) -> None:
    out = exported(cli, run, "label-studio", tmp_path / "tasks.json", "--prefix", "/data/local-files/?d=")
    tasks = json.loads(out.read_text("utf-8"))
    labels = run.labels().to_pylist()
    assert len(tasks) == 150
    for task, label in zip(tasks[1:], labels[1:], strict=True):
        assert task["data"]["image"] == f"/data/local-files/?d={label['id']}"
        assert task["data"]["given_label"] == label["given_label_name"]
        (prediction,) = task["predictions"]
        assert prediction["score"] == pytest.approx(label["prob_suggested"])
        assert prediction["model_version"] == "unflip unflip"
        assert prediction["result"] == [
            {
                "type": "choices",
                "from_name": "label",
                "to_name": "image",
                "value": {"choices": [label["suggested_label_name"]]},
            }
        ]
    assert tasks[0]["data"]["text"] == "no picture"


def test_the_suffix_tells_the_format_and_people_get_label_issues(
    cli: Callable[..., Outcome], run: Run, tmp_path: Path
) -> None:
    for name in ("l.csv", "l.parquet", "l.jsonl", "tasks.json"):
        assert cli("export", run.folder, "--out", tmp_path / name).code == 0
    assert pyarrow.parquet.read_table(tmp_path / "l.parquet").num_rows == 150
    assert len((tmp_path / "l.jsonl").read_text().splitlines()) == 150
    listed = [row for row in run.labels().to_pylist() if row["is_label_issue"]]
    assert 0 < len(listed) < 100
    tasks = json.loads((tmp_path / "tasks.json").read_text("utf-8"))
    assert [task["data"]["index"] for task in tasks] == [row["index"] for row in listed]
    assert cli("export", run.folder, "--format", "argilla", "--out", tmp_path / "records.json").code == 0
    records = json.loads((tmp_path / "records.json").read_text("utf-8"))
    for record, row in zip(records, listed, strict=True):
        assert record["id"] == row["id"]
        assert record["fields"] == {"image" if row["index"] else "text": row["id"]}
        assert record["suggestions"]["label"]["value"] == row["suggested_label_name"]
        assert record["metadata"]["given_label"] == row["given_label_name"]


def test_fiftyone_gets_suggested_labels_by_path(cli: Callable[..., Outcome], run: Run, tmp_path: Path) -> None:
    answer = cli("export", run.folder, "--format", "fiftyone", "--out", tmp_path / "f.json")
    assert answer.code == 2
    assert "FiftyOne is for images; example 0 is 'no picture'" in answer.err
    copy = Run(Path(shutil.copytree(run.folder, tmp_path / "run")))
    table = copy.labels()
    pyarrow.parquet.write_table(
        table.set_column(1, "id", [[f"a.b/{i}.png" for i in range(150)]]), copy.folder / "labels.parquet"
    )
    content = json.loads(exported(cli, copy, "fiftyone", tmp_path / "f.json").read_text("utf-8"))
    assert content["classes"] == ["cat", "dog, small", "bee"]
    assert list(content["labels"]) == [f"a.b/{i}" for i in range(150)]
    for row, label in zip(table.to_pylist(), content["labels"].values(), strict=True):
        assert (label["label"], label["attributes"]["given_label"]) == (
            row["suggested_label_name"],
            row["given_label_name"],
        )
        assert label["attributes"]["is_label_issue"] == row["is_label_issue"]


def test_classes_without_names_are_numbers(cli: Callable[..., Outcome], features: Path, tmp_path: Path) -> None:
    run = quick_train(features, tmp_path / "run", epochs=1)
    answer = cli("export", run.folder, "--out", tmp_path / "issues.parquet")
    assert answer.code == 0
    assert pyarrow.parquet.read_table(tmp_path / "issues.parquet")["given_label"].to_pylist() == (
        blobs()["train_labels"].tolist()
    )


def test_a_prefix_that_nothing_uses_is_refused(cli: Callable[..., Outcome], run: Run, tmp_path: Path) -> None:
    answer = cli("export", run.folder, "--out", tmp_path / "l.csv", "--prefix", "photos/")
    assert answer.code == 2
    assert "--all, --prefix and --data are for the formats label-studio and argilla, not csv" in answer.err
    assert not (tmp_path / "l.csv").exists()


@pytest.mark.parametrize(
    ("form", "name", "said"),
    [
        ("cvs", "l.csv", "unknown format 'cvs', did you mean 'csv'"),
        ("csv", "l.txt", "cannot write '.txt'; use .csv"),
        ("label-studio", "l.csv", "cannot write '.csv'; use .json"),
        ("csv", "nowhere/l.csv", "nowhere does not exist"),
    ],
)
def test_a_wrong_format_or_file_is_told_in_one_line(
    cli: Callable[..., Outcome], run: Run, tmp_path: Path, form: str, name: str, said: str
) -> None:
    answer = cli("export", run.folder, "--format", form, "--out", tmp_path / name)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_refused(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    answer = cli("export", tmp_path, "--out", tmp_path / "l.csv")
    assert answer.code == 2
    assert "no run.json; is this the folder of a finished run?" in answer.err


def test_issues_and_removals_are_known_to_every_format(cli: Callable[..., Outcome], run: Run, tmp_path: Path) -> None:
    copy = Run(Path(shutil.copytree(run.folder, tmp_path / "run")))
    table = copy.labels()
    splits = ["removed" if i == 5 else split for i, split in enumerate(table["split"].to_pylist())]
    table = table.set_column(table.column_names.index("split"), "split", [splits])
    pyarrow.parquet.write_table(table, copy.folder / "labels.parquet")
    write_issues(
        copy.folder,
        outlier=issue([7, 3, 9], ["far", "far", "nearly far"], flagged=2),
        near_duplicate=issue([7, 8], ["a copy", "a copy"], groups=[0, 0]),
        image_quality=issue([2], ["dark"]),
        class_quality=issue([-1], ["few examples"]),
    )
    expected = {7: "outlier;near_duplicate", 3: "outlier", 8: "near_duplicate", 2: "image_quality"}
    with exported(cli, copy, "csv", tmp_path / "l.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {i: row["issues"] for i, row in enumerate(rows) if row["issues"]} == expected
    assert [i for i, row in enumerate(rows) if row["split"] == "removed"] == [5]
    exact = pyarrow.parquet.read_table(exported(cli, copy, "parquet", tmp_path / "l.parquet"))
    assert exact["issues"].to_pylist() == [expected.get(i, "") for i in range(150)]
    out = tmp_path / "tasks.json"
    assert cli("export", copy.folder, "--all", "--out", out).out.startswith("149 labels")
    tasks = {task["data"]["index"]: task["data"]["issues"] for task in json.loads(out.read_text("utf-8"))}
    assert 5 not in tasks
    assert (tasks[7], tasks[3], tasks[0]) == (["outlier", "near_duplicate"], ["outlier"], [])
