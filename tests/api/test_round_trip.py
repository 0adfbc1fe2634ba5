"""What a model was trained on can be given to it again, in any form, and it says the same."""

import csv
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import tiny_backbone
from helpers import Outcome, blobs, quick_train
from pictures import write_picture
from unflip import clean, predict, train
from unflip.errors import ConfigError, InputError
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
WORDS = {
    "fruit": "apple pear plum fig quince",
    "metal": "iron lead zinc tin copper",
    "beast": "fox bear wolf hare lynx",
}


def sentences(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return texts of three classes, and their classes."""
    random = np.random.default_rng(seed)
    labels = [list(WORDS)[i % 3] for i in range(count)]
    texts = [" ".join(random.choice(WORDS[label].split(), 4)) + f" seen on day {i}" for i, label in enumerate(labels)]
    return texts, labels


def mixed(count: int = 150) -> pa.Table:
    """Return a table with columns of every kind, gaps in each, and a label that follows from them."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % 3
    columns: dict[str, Any] = {
        "customer": [f"c-{i}" for i in range(count)],
        "income": labels * 1000.0 + random.normal(size=count) * 100 + 1e6,
        "plan": np.array(["free", "basic", "pro"])[(labels + (random.random(count) < 0.1)) % 3],
        "since": [dt.date(2020, 1, 1) + dt.timedelta(days=int(500 * label + i)) for i, label in enumerate(labels)],
        "paid": labels == 2,
        "note": sentences(count)[0],
    }
    gaps = {name: random.random(count) < 0.05 for name in columns if name != "customer"}
    table = pa.table({name: pa.array(cells, mask=gaps.get(name)) for name, cells in columns.items()})
    return table.append_column("label", pa.array([f"class {label}" for label in labels]))


def write(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        rows = [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    return path


def cleaned(data: Path, folder: Path, **options: Any) -> Run:
    return clean(data, folder, quiet=True, device="cpu", **options)


@pytest.fixture(scope="module")
def of_table(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("table")
    return cleaned(write(mixed(), folder / "data.csv"), folder / "run")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_table_in_another_format_and_order_is_predicted_the_same(of_table: Run, tmp_path: Path, suffix: str) -> None:
    table = mixed()
    expected = predict(of_table, write(table, tmp_path / "same.csv")).probs
    order = np.random.default_rng(1).permutation(len(table))
    others = [*reversed(table.column_names)]
    shuffled = table.take(order).select(others).append_column("extra", pa.array(["x"] * len(table)))
    found = predict(of_table, write(shuffled, tmp_path / f"new{suffix}")).probs
    torch.testing.assert_close(found, expected[torch.from_numpy(order)], rtol=1e-5, atol=1e-6)


def test_what_new_rows_hold_that_training_rows_did_not_is_counted(of_table: Run, tmp_path: Path, cli: Cli) -> None:
    table = mixed().drop_columns(["label", "customer"])
    plan = pa.array(["gold"] * 7 + table["plan"].to_pylist()[7:])
    write(table.set_column(table.column_names.index("plan"), "plan", plan), tmp_path / "new.csv")
    done = cli("predict", of_table.folder, "--data", tmp_path / "new.csv")
    assert done.code == 0, done.err
    assert done.err == "plan: 7 unknown values\n"
    assert len(done.out.splitlines()) == 151


def test_a_table_that_lacks_a_column_or_holds_another_kind_is_refused(of_table: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"few\.csv: .*unknown column 'plan'"):
        predict(of_table, write(mixed().drop_columns(["plan"]), tmp_path / "few.csv"))
    wrong = mixed().set_column(1, "income", pa.array(["much"] * 150))
    with pytest.raises(InputError, match=r"wrong\.csv: column 'income', row 0: 'much' is not a number"):
        predict(of_table, write(wrong, tmp_path / "wrong.csv"))
    for i in range(3):
        write_picture(tmp_path / "photos" / f"{i}.png", i, (20, 20))
    with pytest.raises(
        InputError, match="photos: images; the model takes a table with the columns income, plan, since"
    ):
        predict(of_table, tmp_path / "photos")


def test_not_all_of_many_columns_are_named(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 13)).round(3)
    columns = {f"c{i}": rows[:, i] for i in range(13)} | {"label": ["a", "b"] * 30}
    run = quick_train(write(pa.table(columns), tmp_path / "wide.csv"), tmp_path / "run", method="standard", epochs=1)
    write_picture(tmp_path / "photos" / "0.png", 0, (20, 20))
    with pytest.raises(InputError, match=r"with the columns c0, c1, .*, c9, \.\.\.$"):
        predict(run, tmp_path / "photos")


def test_the_list_of_suspects_shows_the_texts(tmp_path: Path) -> None:
    texts, labels = sentences(90)
    wrong = {4: "fruit", 30: "beast"}
    given = [wrong.get(i, label) for i, label in enumerate(labels)]
    write(pa.table({"text": texts, "category": given}), tmp_path / "t.csv")
    run = cleaned(tmp_path / "t.csv", tmp_path / "run", label_column="category")
    rows = list(csv.DictReader((run.folder / "label_issues.csv").read_text().splitlines()))
    assert {int(row["index"]) for row in rows} >= {4, 30}
    assert all(row["text"] == texts[int(row["index"])] for row in rows)


def test_tasks_of_texts_hold_the_texts_wherever_they_are(tmp_path: Path, cli: Cli) -> None:
    texts, labels = sentences(60)
    data = write(pa.table({"text": texts, "label": labels}), tmp_path / "t.csv")
    run = cleaned(data, tmp_path / "run")
    order = ["export", run.folder, "--all", "--out", tmp_path / "tasks.json"]
    assert cli(*order).code == 0
    tasks = json.loads((tmp_path / "tasks.json").read_text("utf-8"))
    assert [task["data"]["text"] for task in tasks] == texts
    assert {task["predictions"][0]["result"][0]["to_name"] for task in tasks} == {"text"}
    data.rename(tmp_path / "moved.csv")
    missing = cli(*order, "--force")
    assert missing.code == 2
    assert "No such file or folder" in missing.err
    assert missing.err.endswith("if the data was moved, name its location with --data\n")
    assert cli(*order, "--force", "--data", tmp_path / "moved.csv").code == 0
    assert json.loads((tmp_path / "tasks.json").read_text("utf-8")) == tasks


def test_tasks_of_pictures_hold_their_paths(photos: Path, tmp_path: Path, cli: Cli) -> None:
    run = cleaned(photos, tmp_path / "run", backbone="tiny")
    done = cli("export", run.folder, "--all", "--out", tmp_path / "tasks.json", "--prefix", "/files/?d=")
    assert done.code == 0, done.err
    tasks = json.loads((tmp_path / "tasks.json").read_text("utf-8"))
    assert [task["data"]["image"] for task in tasks] == [f"/files/?d={name}" for name in run.labels()["id"].to_pylist()]


def test_tasks_of_a_table_hold_its_cells(of_table: Run, tmp_path: Path, cli: Cli) -> None:
    done = cli("export", of_table.folder, "--all", "--out", tmp_path / "tasks.json")
    assert done.code == 0
    row = mixed().slice(3, 1).to_pylist()[0]
    task = json.loads((tmp_path / "tasks.json").read_text("utf-8"))[3]
    cells = dict(line.split(": ", 1) for line in task["data"]["text"].splitlines())
    assert float(cells["income"]) == pytest.approx(row["income"])
    assert (cells["plan"], cells["note"]) == (row["plan"], row["note"])
    assert "label" not in cells


@pytest.mark.parametrize("encoder", ["tfidf", "wordllama"])
def test_texts_are_predicted_from_a_table_or_a_folder(tmp_path: Path, encoder: str) -> None:
    texts, labels = sentences(90)
    data = write(pa.table({"text": texts, "label": labels}), tmp_path / "t.csv")
    run = cleaned(data, tmp_path / "run", text_column=["text"], text_encoder=encoder)
    expected = predict(run, data)
    assert expected.labels.tolist() == [sorted(WORDS).index(label) for label in labels]
    for i, text in enumerate(texts):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / f"{i:03}.txt").write_text(text)
    torch.testing.assert_close(predict(run, tmp_path / "folder").probs, expected.probs)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_backbone.register(monkeypatch)
    for i in range(60):
        write_picture(tmp_path / "photos" / "abc"[i % 3] / f"{i:02}.png", i % 3, (80, 80))
    return tmp_path / "photos"


def test_images_in_another_format_size_and_order_are_predicted_the_same(photos: Path, tmp_path: Path) -> None:
    run = cleaned(photos, tmp_path / "run", backbone="tiny")
    expected = dict(zip(*_labels(run, photos), strict=True))
    for path in sorted(photos.rglob("*.png")):
        image, new = PIL.Image.open(path), tmp_path / "new" / f"z{99 - int(path.stem):02}"
        new.parent.mkdir(exist_ok=True)
        image.save(new.with_suffix(".bmp"))
        (tmp_path / "large").mkdir(exist_ok=True)
        image.resize((160, 160)).save(tmp_path / "large" / f"{path.stem}.png")
    for name, found in zip(*_labels(run, tmp_path / "new"), strict=True):
        old = 99 - int(name[1:3])
        assert found == expected[f"{'abc'[old % 3]}/{old:02}.png"]
    names, large = _labels(run, tmp_path / "large")
    assert [expected[f"{'abc'[int(name[:2]) % 3]}/{name}"] for name in names] == large


def _labels(run: Run, data: Path) -> tuple[list[str], list[int]]:
    found = predict(run, data)
    return found.ids, found.labels.tolist()


def test_train_without_a_network_learns_from_features_of_images(photos: Path, tmp_path: Path) -> None:
    run = train(photos, tmp_path / "run", backbone="tiny", quiet=True, device="cpu", epochs=4)
    assert (run.folder / "embedded.npz").is_file()
    assert run.model.encoding is not None
    assert run.model.encoding.settings["backbone"] == "tiny"
    again = train(None, tmp_path / "run", resume=True, quiet=True, device="cpu", epochs=5)
    assert again.result["epochs"] == 5
    assert len(predict(again, photos).ids) == 60
    pictures = run.pictures()
    assert pictures is not None
    assert len(pictures) == 60


def test_a_backbone_is_refused_where_there_is_nothing_for_it(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--backbone is not used: this run"):
        train(photos, tmp_path / "run", backbone="tiny", network="preact_resnet8")
    np.savez(tmp_path / "f.npz", **blobs())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--backbone is not used: this run"):
        train(tmp_path / "f.npz", tmp_path / "run", backbone="tiny")
    assert not (tmp_path / "run").exists()


def test_weights_from_a_file_must_be_there_when_images_are_predicted(photos: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = tmp_path / "w.safetensors"
    save_file({"weight": torch.full((3, 1, 1, 1), 2.0)}, weights)
    run = cleaned(photos, tmp_path / "run", backbone="tiny", weights=weights)
    expected = predict(run, photos).probs
    weights.rename(tmp_path / "moved.safetensors")
    with pytest.raises(InputError, match=r"no such file: .*w\.safetensors, the weights of tiny; give .* --weights"):
        predict(run, photos)
    assert torch.equal(predict(run, photos, weights=tmp_path / "moved.safetensors").probs, expected)
    save_file({"weight": torch.full((3, 1, 1, 1), 3.0)}, weights)
    with pytest.raises(InputError, match=r"with weights \w{16}, and .*w\.safetensors holds \w{16}; give the same"):
        predict(run, photos)
