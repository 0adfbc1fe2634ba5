"""Rows without labels through every command: clean, review, apply, check, predict, export, report."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import tiny_backbone
import unflip
from helpers import QUICK, Outcome, blobs, quick_train, write_npz
from pictures import write_picture
from reviewing import Client, served
from unflip.api.export import FORMATS
from unflip.errors import InputError
from unflip.methods import methods
from unflip.review import Order
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
SCHEMA = Path(__file__).parents[2] / "docs" / "result.schema.json"
NAMES = ("cat", "dog", "eel")
GAPS, WRONG = range(0, 150, 5), (1, 2, 3, 4, 6, 7, 8, 9)


def truth() -> list[str]:
    return [NAMES[label] for label in blobs()["train_labels"]]


def given() -> list[str]:
    """Every fifth is empty, and some are wrong."""
    wrong = {row: NAMES[(NAMES.index(truth()[row]) + 1) % 3] for row in WRONG}
    return ["" if row in GAPS else wrong.get(row, name) for row, name in enumerate(truth())]


def write_rows(path: Path, labels: list[str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(f"c{place}" for place in range(6)), "label"])
        pairs = zip(blobs()["train"], labels, strict=True)
        writer.writerows([f"r{row}", *cells, label] for row, (cells, label) in enumerate(pairs))
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> unflip.Result:
    folder = tmp_path_factory.mktemp("unlabeled")
    path = write_rows(folder / "rows.csv", given())
    return unflip.clean(path, folder / "run", settings=QUICK, device="cpu", epochs=8)


def test_the_list_of_unlabeled_examples_has_their_classes(run: unflip.Result) -> None:
    rows = read(run.folder / "unlabeled.csv")
    assert [*rows[0]] == ["index", "id", "suggested_label", "probability"]
    assert sorted(int(row["index"]) for row in rows) == [*GAPS]
    assert all(row["id"] == f"r{row['index']}" for row in rows)
    assert [row["suggested_label"] for row in rows] == [truth()[int(row["index"])] for row in rows]
    probabilities = [float(row["probability"]) for row in rows]
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0.5 < probabilities[-1] <= probabilities[0] <= 1


def test_they_are_never_wrong(run: unflip.Result) -> None:
    labels = run.labels()
    rows = [row for row in labels.to_pylist() if row["index"] in GAPS]
    for name, value in (("given_label", -1), ("current_label", -1), ("split", "unlabeled"), ("is_label_issue", False)):
        assert {row[name] for row in rows} == {value}, name
    for name in ("given_label_name", "current_label_name", "label_quality", "log_odds", "prob_given"):
        assert {row[name] for row in rows} == {None}, name
    assert {int(row["index"]) for row in read(run.folder / "label_issues.csv")} >= {*WRONG}
    assert not {int(row["index"]) for row in read(run.folder / "label_issues.csv")} & {*GAPS}
    summary = run.result["label_summary"]
    assert (summary["scored"], summary["issues"]) == (120, len(WRONG))
    assert len(run.ranked) == 120
    assert {*run.issues.query("issue == 'label_issue'")["index"]} == {*WRONG}


def test_the_result_follows_its_schema(run: unflip.Result) -> None:
    jsonschema.validate(dict(run.result), json.loads(SCHEMA.read_text("utf-8")))


def test_the_report_can_be_written(run: unflip.Result) -> None:
    page = (run.folder / "report.html").read_text("utf-8")
    assert "<html" in page
    assert "-1" not in [part.split("<")[0] for part in page.split(">")]  # no cell shows the number for no label
    assert "nan" not in [part.split("<")[0].strip().lower() for part in page.split(">")]
    run._repr_html_()


def test_gaps_are_filled_where_the_suggestion_is_likely_enough(run: unflip.Result, tmp_path: Path) -> None:
    probability = {int(row["index"]): float(row["probability"]) for row in read(run.folder / "unlabeled.csv")}
    limit = float(np.median([*probability.values()]))
    done = run.apply(tmp_path / "fixed.csv", fill_above=limit)
    likely = {row for row, value in probability.items() if value >= limit}
    assert {row for row in GAPS if read(tmp_path / "fixed.csv")[row]["label"]} == likely
    expected = ["" if row in GAPS and row not in likely else name for row, name in enumerate(truth())]
    assert [row["label"] for row in read(tmp_path / "fixed.csv")] == expected
    reasons = {int(row["index"]): (row["reason"], row["given_label"]) for row in done.changes.to_pylist()}
    assert reasons.keys() == likely | {*WRONG}
    assert {reasons[row] for row in likely} == {("suggested label", None)}
    assert done.relabeled == len(reasons)


@pytest.mark.parametrize("options", [{}, {"only": "reviewed", "fill_above": 0.1}, {"fill_above": 1.0}])
def test_without_that_gaps_stay(run: unflip.Result, tmp_path: Path, options: dict[str, Any]) -> None:
    run.apply(tmp_path / "fixed.csv", **options)
    labels = [row["label"] for row in read(tmp_path / "fixed.csv")]
    if options.get("fill_above") != 1.0:
        assert [labels[row] for row in GAPS] == [""] * len(GAPS)
    assert [labels[row] for row in WRONG] == [(given() if "only" in options else truth())[row] for row in WRONG]


def test_dropping_label_issues_keeps_unlabeled_rows(run: unflip.Result, tmp_path: Path) -> None:
    done = run.apply(tmp_path / "fixed.csv", drop="label-issues")
    assert done.dropped == len(WRONG)
    assert sum(not row["label"] for row in read(tmp_path / "fixed.csv")) == len(GAPS)


def test_corrected_labels_of_a_frame(run: unflip.Result) -> None:
    frame = pytest.importorskip("pandas", reason="pandas is not installed: no frames").read_csv(
        run.folder.parent / "rows.csv"
    )
    labels = run.labels_for(frame, fill_above=0.0)
    assert labels.tolist() == truth()
    rest = run.labels_for(frame)
    assert [rest[row] for row in range(150) if row not in GAPS] == [
        truth()[row] for row in range(150) if row not in GAPS
    ]
    assert all(not rest[row] or rest[row] != rest[row] for row in GAPS)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_can_be_exported(cli: Cli, run: unflip.Result, tmp_path: Path, form: str) -> None:
    suffix = {"parquet": "parquet", "jsonl": "jsonl", "csv": "csv", "cleanlab": "csv"}.get(form, "json")
    more = ["--all"] if form in ("label-studio", "argilla") else []
    done = cli("export", run.folder, "--format", form, "--out", tmp_path / f"e.{suffix}", *more)
    if form == "fiftyone":  # which is about images
        assert done.code == 2
        return
    assert (done.code, done.err) == (0, "")
    text = (tmp_path / f"e.{suffix}").read_bytes()
    if suffix == "json":
        tasks = json.loads(text)
        assert len(tasks) == 150
        for task in tasks:
            about = task["data" if form == "label-studio" else "metadata"]
            assert about.get("given_label") == (given()[int(about["index"])] or None), about
    assert len(text) > 1000


def test_new_data_is_predicted_and_checked(cli: Cli, run: unflip.Result, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "new.csv", given())
    done = cli("predict", run.folder, "--data", path, "--out", tmp_path / "p.csv")
    assert (done.code, done.err) == (0, "")
    assert np.mean([row["label"] == name for row, name in zip(read(tmp_path / "p.csv"), truth(), strict=True)]) > 0.97
    done = cli("check", run.folder, "--data", path, "--out", tmp_path / "checked")
    assert done.code == 0, done.err
    rows = Run(tmp_path / "checked").labels().to_pylist()
    assert [row["index"] for row in rows if row["split"] == "unlabeled"] == [*GAPS]
    assert [row["index"] for row in rows if row["label_quality"] is None] == [*GAPS]
    assert len({row["index"] for row in rows if row["is_label_issue"]} & {*WRONG}) > 1
    assert not any(rows[row]["is_label_issue"] for row in GAPS)
    done = cli("check", run.folder, "--data", write_rows(tmp_path / "x.csv", ["?"] * 150), "--out", tmp_path / "wrong")
    assert done.code == 2
    assert "row 0: label '?' is no class of the run" in done.err


def test_the_review_page_shows_and_decides_them(run: unflip.Result, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="fastapi is not installed: pip install 'unflip[review]'")
    import shutil

    folder = Path(shutil.copytree(run.folder, tmp_path / "run"))
    for order in Order:
        with served(folder, order=order) as (address, _):
            client = Client(address)
            assert client.get("/api/examples").status == 200, order
            assert client.get("/api/about").status == 200
            assert client.get("/api/examples/0").status == 200
    with served(folder) as (address, _):
        client = Client(address)
        assert client.decide("choose", (0, 0), label=2).status == 200
        assert client.decide("accept", (5, 0)).status == 200
        rows = [*csv.DictReader(client.get("/api/export.csv").body.decode().splitlines())]
    decided = {int(row["index"]): (row["given_label"], row["label"]) for row in rows}
    assert decided == {0: ("", "eel"), 5: ("", truth()[5])}
    assert unflip.apply(folder, tmp_path / "fixed.csv", only="reviewed").relabeled == 2
    labels = [row["label"] for row in read(tmp_path / "fixed.csv")]
    assert (labels[0], labels[5], labels[10]) == ("eel", truth()[5], "")


def test_a_reviewed_label_fills_a_gap(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv", given())
    (tmp_path / "r.csv").write_text("id,label,decision\nr0,dog,label\nr5,,remove\n")
    run = unflip.clean(path, tmp_path / "run", settings=QUICK, device="cpu", epochs=4, reviewed=str(tmp_path / "r.csv"))
    rows = run.labels().to_pylist()
    assert (rows[0]["split"], rows[0]["current_label_name"], rows[0]["label_quality"]) == ("train", "dog", 1.0)
    assert rows[0]["given_label"] == -1
    assert rows[5]["split"] == "removed"
    unlabeled = [int(row["index"]) for row in read(tmp_path / "run" / "unlabeled.csv")]
    assert sorted(unlabeled) == [row for row in GAPS if row not in (0, 5)]
    run.apply(tmp_path / "fixed.csv")
    labels = {row["id"]: row["label"] for row in read(tmp_path / "fixed.csv")}
    assert labels["r0"] == "dog"
    assert "r5" not in labels


@pytest.mark.parametrize("name", methods.names())
def test_every_method_takes_them(tmp_path: Path, name: str) -> None:
    content = blobs()
    labels = content["train_labels"].astype(float)
    labels[::3] = np.nan
    path = write_npz(tmp_path / "a.npz", **(content | {"train_labels": labels}))
    run = quick_train(path, tmp_path / "run", method=name, epochs=3)
    table = run.labels()
    suggested = table["suggested_label"].to_numpy()[::3]
    assert (table["given_label"].to_numpy()[::3] == -1).all()
    assert (table["label_quality"].to_numpy()[::3] != table["label_quality"].to_numpy()[::3]).all()
    assert float((suggested == content["train_labels"][::3]).mean()) > 0.6
    assert table["prob_suggested"].to_numpy()[::3].min() >= 0


def test_photos_without_a_label(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_backbone.register(monkeypatch)
    lines = ["path,label"]
    for row in range(60):
        write_picture(tmp_path / "photos" / f"{row}.png", row % 3, (20, 20))
        lines.append(f"photos/{row}.png,{'?' if row % 6 == 0 else NAMES[row % 3]}")
    (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    done = cli("clean", tmp_path / "m.csv", "--out", out, "--backbone", "tiny", "--unlabeled", "?", "--device", "cpu")
    assert done.code == 0, done.err
    assert f"10 examples without a label, with suggestions: {out / 'unlabeled.csv'}" in done.out
    rows = read(out / "unlabeled.csv")
    assert {row["path"]: row["suggested_label"] for row in rows} == {
        f"photos/{row}.png": NAMES[row % 3] for row in range(0, 60, 6)
    }


def test_noise_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv", given())
    done = cli("train", "--data", path, "--out", tmp_path / "run", "--noise", "sym:0.2", "--device", "cpu")
    assert done.code == 2
    assert "row 0: no label; noise needs a label in every row" in done.err
    assert "Traceback" not in done.err


def test_labels_in_memory_may_have_gaps(tmp_path: Path) -> None:
    content = blobs()
    labels = [None if row in GAPS else NAMES[label] for row, label in enumerate(content["train_labels"])]
    result = unflip.clean(content["train"], tmp_path / "run", labels=labels, settings=QUICK, device="cpu", epochs=6)
    assert result.apply(fill_above=0.5).data[1].tolist() == truth()
    table = pa.table({f"c{place}": content["train"][:, place] for place in range(6)} | {"label": labels})
    result = unflip.clean(table, tmp_path / "table", settings=QUICK, device="cpu", epochs=6)
    assert result.apply(fill_above=0.5).data["label"].to_pylist() == truth()
    with pytest.raises(InputError, match="labels: example 0 has none"):
        unflip.clean(content["train"], tmp_path / "none", labels=[None] * 150, device="cpu")
