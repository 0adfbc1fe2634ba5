"""The labels of new data, scored by a finished run: the same lists and report, and an exit code."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

import tiny_backbone
import unflip
from helpers import Outcome, blobs, quick_train, write_npz
from pictures import write_picture
from unflip.errors import ConfigError, InputError, RunFolderError, UnflipWarning

Cli = Callable[..., Outcome]
SCHEMA = Path(__file__).parents[2] / "docs" / "result.schema.json"
WRONG = [3, 40, 77, 110]


def new_rows(path: Path, seed: int = 1, *, wrong: bool = True) -> Path:
    """Write new examples of the classes a, b and c, some of them with another label; with a column of notes."""
    content = blobs(seed=seed)
    labels = content["train_labels"]
    if wrong:
        labels[WRONG] = (labels[WRONG] + 1) % 3
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{i}" for i in range(6)), "kind", "note"])
        writer.writerows(
            [*row, "abc"[label], i] for i, (row, label) in enumerate(zip(content["train"], labels, strict=True))
        )
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> unflip.Result:
    folder = tmp_path_factory.mktemp("check")
    data = new_rows(folder / "old.csv", 0, wrong=False)
    return unflip.clean(data, folder / "run", label_column="kind", ignore=["note"], quiet=True, device="cpu")


def test_wrong_labels_of_new_data_are_listed_without_training(run: unflip.Result, tmp_path: Path) -> None:
    done = unflip.check(run, new_rows(tmp_path / "new.csv"), tmp_path / "out", max_wrong="5%", device="cpu")
    assert sorted(done.issues["index"]) == WRONG
    assert done.passed
    assert 0.01 < done.wrong < 0.05
    table = done.labels()
    assert table["given_label_name"].to_pylist()[:3] == ["abc"[i] for i in blobs(seed=1)["train_labels"][:3]]
    assert all(table["out_of_sample"].to_pylist())
    listed = list(csv.DictReader((tmp_path / "out" / "label_issues.csv").read_text().splitlines()))
    assert {*WRONG} <= {int(row["index"]) for row in listed}
    assert (tmp_path / "out" / "report.html").exists()
    assert done.result["checked_with"] == str(run.folder)
    assert unflip.load(tmp_path / "out").apply(tmp_path / "fixed.csv").relabeled == len(WRONG)
    with pytest.raises(RunFolderError, match="already contains a run"):
        unflip.check(run, tmp_path / "new.csv", tmp_path / "out")


def test_a_data_frame_is_checked_and_predicted_as_its_file_is(run: unflip.Result, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = new_rows(tmp_path / "new.csv")
    frame = pandas.read_csv(path)
    by_path, done = unflip.check(run, path, device="cpu"), unflip.check(run, frame, device="cpu")
    assert sorted(done.issues["index"]) == WRONG
    assert isinstance(done.issues, pandas.DataFrame)
    assert done.wrong == by_path.wrong
    assert (done.folder / "data" / "data.parquet").exists()
    expected = unflip.predict(run, path, device="cpu")
    for data in (frame, frame.drop(columns=["kind", "note"])):
        got = unflip.predict(run, data, device="cpu")
        assert got.probs.tolist() == expected.probs.tolist()
        assert (got.ids, got.class_names) == (expected.ids, expected.class_names)
    with pytest.raises(InputError, match=r"^data: .*x3"):
        unflip.predict(run, frame.drop(columns="x3"), device="cpu")


def test_arrays_are_checked_and_predicted(tmp_path: Path) -> None:
    content = blobs()
    rows, labels = content["train"], content["train_labels"]
    run = unflip.clean((rows[:100], labels[:100]), tmp_path / "run", quiet=True, device="cpu")
    assert (unflip.predict(run, rows[100:], device="cpu").labels.numpy() == labels[100:]).all()
    assert unflip.check(run, (rows[100:], labels[100:]), device="cpu").wrong < 0.05
    with pytest.raises(InputError, match=r"^labels: none given"):
        unflip.check(run, rows[100:], device="cpu")
    with pytest.raises(InputError, match=r"^data, 'train': examples of shape \(5,\)"):
        unflip.predict(run, rows[:, :5], device="cpu")


def test_the_exit_code_says_whether_the_limit_is_kept(run: unflip.Result, tmp_path: Path, cli: Cli) -> None:
    data = new_rows(tmp_path / "new.csv")
    done = cli("check", run.folder, "--data", data, "--out", tmp_path / "out", "--max-wrong", "1%")
    assert done.code == 1
    assert done.out.splitlines()[-1].endswith("% wrong labels, above the limit of 1.0%")
    done = cli(
        "check",
        run.folder,
        "--data",
        data,
        "--out",
        tmp_path / "two",
        "--max-wrong",
        "1%",
        "--baseline",
        tmp_path / "out",
    )
    assert done.code == 0
    assert "within the limit of" in done.out
    done = cli("check", run.folder, "--data", data, "--out", tmp_path / "three")
    assert done.code == 0
    assert "limit" not in done.out


def test_examples_that_the_run_was_trained_on_are_counted(run: unflip.Result, tmp_path: Path) -> None:
    old = Path(run.result["data_path"]).read_text().splitlines()
    both = [*new_rows(tmp_path / "new.csv").read_text().splitlines(), *old[1:11]]
    (tmp_path / "both.csv").write_text("\n".join(both) + "\n")
    with pytest.warns(UnflipWarning, match="the run was trained on 10 of 160 examples"):
        done = unflip.check(run, tmp_path / "both.csv", tmp_path / "out", device="cpu")
    assert done.labels()["out_of_sample"].to_pylist() == [True] * 150 + [False] * 10


def test_images_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_backbone.register(monkeypatch)
    for i in range(120):
        label = "abc"[(i + (i % 40 == 7)) % 3]
        write_picture(tmp_path / ("old" if i < 60 else "new") / label / f"{i:03}.png", i % 3, (40, 40))
    run = unflip.clean(tmp_path / "old", tmp_path / "run", backbone="tiny", quiet=True, device="cpu")
    done = unflip.check(run.folder, tmp_path / "new", device="cpu")
    assert sorted(Path(path).name for path in done.issues["path"]) == ["087.png"]
    with pytest.warns(UnflipWarning, match="trained on 60 of 60"):
        unflip.check(run.folder, tmp_path / "old", device="cpu")


def test_what_cannot_be_checked_is_one_line(run: unflip.Result, tmp_path: Path) -> None:
    data = new_rows(tmp_path / "new.csv")
    with pytest.raises(ConfigError, match="--max-wrong 2 %%: must be a fraction from 0 to 1, or such as 2%"):
        unflip.check(run, data, max_wrong="2 %%")
    with pytest.raises(ConfigError, match="--baseline needs --max-wrong"):
        unflip.check(run, data, baseline=run.folder)
    with pytest.raises(RunFolderError, match="is an input of the run that would replace it"):
        unflip.check(run, data, run.folder, force=True)
    assert (run.folder / "model.safetensors").exists()
    data.write_text(data.read_text().replace(",b,", ",dog,"))
    with pytest.raises(InputError, match="label 'dog' is no class of the run, which are a, b, c"):
        unflip.check(run, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_results_follow_the_schema(run: unflip.Result, tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    trained = quick_train(write_npz(tmp_path / "f.npz", **blobs()), tmp_path / "trained", epochs=2)
    checked = unflip.check(run, new_rows(tmp_path / "new.csv"), tmp_path / "out", device="cpu")
    for result in (run.result, trained.result, checked.result):
        jsonschema.validate(dict(result), schema)
        assert set(result) <= set(schema["properties"])
    counts = run.result["other_issues"]
    assert set(counts) >= {"outlier", "near_duplicate"}
    assert counts["outlier"] == int((run.issues["issue"] == "outlier").sum())
    assert trained.result["other_issues"] is None
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**run.result, "epochs": "ten"}, schema)
