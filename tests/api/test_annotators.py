"""Several annotators through clean, train and Python: consensus, tables about people, resumed runs, what is refused."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
import torch

import tiny_backbone
import unflip
from helpers import QUICK, Crash, Outcome, assert_same_run, blobs, crash_after, quick_train, write_npz
from pictures import write_picture
from unflip import UnflipClassifier, find_label_errors
from unflip.methods import methods
from unflip.runs.annotators import annotator_tables, read_annotators
from unflip.runs.folder import Run
from unflip.stats.annotators import Annotations, fit_annotators

Cli = Callable[..., Outcome]
SCHEMA = Path(__file__).parents[2] / "docs" / "result.schema.json"
NAMES = ("cat", "dog", "eel")
PEOPLE = ("ann", "bob", "eve", "lazy")


def annotations(share: float = 0.8, seed: int = 0) -> np.ndarray[Any, Any]:
    """Class numbers (150, 4): two who are good, one who is right in half the cases, one who says 0; the first
    example has no label."""
    random, truth = np.random.default_rng(seed), blobs()["train_labels"]
    columns = [
        np.where(random.random(150) < accuracy, truth, (truth + random.integers(1, 3, 150)) % 3)
        for accuracy in (0.95, 0.9, 0.5)
    ]
    table = np.stack([*columns, np.zeros(150, int)], 1)
    table[random.random((150, 4)) > share] = -1
    table[0] = -1
    return table


def features(path: Path) -> Path:
    """Arrays with annotations and, as the truth, labels."""
    return write_npz(
        path, **blobs(), train_annotations=annotations(), annotators=np.array(PEOPLE), class_names=np.array(NAMES)
    )


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> unflip.Result:
    folder = tmp_path_factory.mktemp("annotators")
    return unflip.clean(features(folder / "a.npz"), folder / "run", settings=QUICK, device="cpu", epochs=8)


def test_the_consensus_is_better_than_the_majority(run: unflip.Result) -> None:
    accuracy = run.result["label_accuracy"]
    assert accuracy["given"] < accuracy["current"]
    assert accuracy["current"] > 0.98
    jsonschema.validate(dict(run.result), json.loads(SCHEMA.read_text("utf-8")))
    rows = run.labels().to_pylist()
    assert (rows[0]["split"], rows[0]["given_label"]) == ("unlabeled", -1)
    assert rows[0]["suggested_label"] == blobs()["train_labels"][0]
    assert [int(row["index"]) for row in read(run.folder / "unlabeled.csv")] == [0]


def test_the_table_of_people(run: unflip.Result) -> None:
    table, truth = annotations(), blobs()["train_labels"]
    rows = {row["annotator"]: row for row in read_annotators(run.folder / "annotators.csv").to_pylist()}
    assert rows.keys() == {*PEOPLE}
    for place, name in enumerate(PEOPLE):
        row, given = rows[name], table[:, place] >= 0
        assert row["labels"] == given.sum()
        right = float((table[given, place] == truth[given]).mean())
        assert row["low"] <= right <= row["high"]
        assert row["accuracy"] == pytest.approx(right, abs=0.05)
        others = [
            table[i, place] == table[i, other]
            for i in np.flatnonzero(given)
            for other in range(4)
            if other != place and table[i, other] >= 0
        ]
        assert row["agreement"] == pytest.approx(np.mean(others), abs=1e-6)
    assert [name for name, row in rows.items() if row["no_better_than_chance"]] == ["lazy"]
    assert "dog > cat" in rows["lazy"]["confuses"]
    assert "eel > cat" in rows["lazy"]["confuses"]
    assert {row["copies"] for row in rows.values()} == {None}


def test_the_table_of_labels(run: unflip.Result) -> None:
    table, truth = annotations(), blobs()["train_labels"]
    rows = read_annotators(run.folder / "annotations.csv").to_pylist()
    expected = {(i, PEOPLE[by]): NAMES[table[i, by]] for i, by in zip(*np.nonzero(table >= 0), strict=True)}
    assert {(row["index"], row["annotator"]): row["label"] for row in rows} == expected
    qualities = [row["label_quality"] for row in rows]
    assert qualities == sorted(qualities)
    wrong = [row["label"] != NAMES[truth[row["index"]]] for row in rows]
    assert np.mean([row["is_label_issue"] == w for row, w in zip(rows, wrong, strict=True)]) > 0.97


def test_who_is_asked_next_has_not_answered_yet() -> None:
    table = annotations()
    rows, by = np.nonzero(table >= 0)
    example, annotator, label = map(torch.from_numpy, (rows, by, table[rows, by]))
    long = Annotations(example, annotator, label, PEOPLE)
    fit = fit_annotators(long, torch.full((150, 3), -np.log(3.0)), of_prior=True)
    ids = [f"r{2 * row}" for row in range(150)]
    tables = annotator_tables(fit, long, 2 * torch.arange(150), [f"r{row}" for row in range(300)], NAMES)
    asked = tables.ask_next.to_pylist()
    assert len(asked) > 10
    gains = [row["gain"] for row in asked]
    assert gains == sorted(gains, reverse=True)
    assert 0 in [row["index"] for row in asked]  # nobody has labeled it
    for row in asked:
        place = row["index"] // 2
        assert row["id"] == ids[place]
        assert row["labels"] == int((table[place] >= 0).sum())
        best = fit.log_probs[place].topk(2).indices.tolist()
        assert (row["top1"], row["top2"]) == tuple(NAMES[number] for number in best)
        assert row["annotator"] is None if row["labels"] == 4 else table[place, PEOPLE.index(row["annotator"])] < 0
    whom = [row["annotator"] for row in asked if table[row["index"] // 2, 0] < 0]
    assert whom.count("ann") > len(whom) / 2


def test_examples_that_nobody_labeled_are_asked_about(tmp_path: Path) -> None:
    data = blobs()
    truth, nobody = data["train_labels"], np.arange(0, len(data["train_labels"]), 9)
    table = np.random.default_rng(0).permuted(np.tile([0, 0, -1, -1], (len(truth), 1)), axis=1)
    table = np.where(table < 0, -1, truth[:, None])
    table[nobody] = -1
    source = write_npz(tmp_path / "a.npz", train=data["train"], train_annotations=table)
    done = quick_train(source, tmp_path / "run", method="unflip", epochs=4)
    asked = done.annotator_table("ask_next.csv")
    assert asked is not None
    found = {row["index"]: row for row in asked.to_pylist() if row["labels"] == 0}
    assert set(found) <= set(nobody.tolist())
    assert len(found) > 0
    assert all(row["annotator"] is not None and row["gain"] > 0 for row in found.values())


def test_a_run_with_one_label_each_has_no_such_tables(tmp_path: Path) -> None:
    done = quick_train(write_npz(tmp_path / "a.npz", **blobs()), tmp_path / "run", epochs=2)
    assert done.annotator_table("annotators.csv") is None


def test_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = features(tmp_path / "a.npz")
    options: dict[str, Any] = {"method": "unflip", "epochs": 6, "settings": {"unflip.warmup": 2}}
    undisturbed = quick_train(data, tmp_path / "undisturbed", **options)
    crash_after(monkeypatch, 4)
    with pytest.raises(Crash):
        quick_train(data, tmp_path / "run", **options)
    monkeypatch.undo()
    resumed = quick_train(None, tmp_path / "run", resume=True)
    assert_same_run(undisturbed, resumed)
    for name in ("annotators.csv", "annotations.csv", "ask_next.csv"):
        assert (undisturbed.folder / name).read_bytes() == (resumed.folder / name).read_bytes()


@pytest.mark.parametrize("name", [name for name in methods.names() if name != "unflip"])
def test_other_methods_refuse_several_labels_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        unflip.errors.ConfigError, match=f"method {name.replace('+', '.')}: takes one label per example"
    ) as error:
        quick_train(features(tmp_path / "a.npz"), tmp_path / "run", method=name, epochs=2)
    assert "\n" not in str(error.value)


def test_a_reviewed_label_is_the_truth(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("index,label\n0,eel\n1,eel\n2,eel\n")
    done = unflip.clean(
        features(tmp_path / "a.npz"),
        tmp_path / "run",
        reviewed=str(tmp_path / "r.csv"),
        settings=QUICK,
        device="cpu",
        epochs=4,
    )
    rows = done.labels().to_pylist()[:3]
    assert [row["current_label"] for row in rows] == [2, 2, 2]
    assert [row["label_quality"] for row in rows] == [1.0, 1.0, 1.0]


def test_photos_with_a_column_per_annotator(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_backbone.register(monkeypatch)
    random, lines = np.random.default_rng(0), ["path,ann,bob,eve"]
    for row in range(60):
        write_picture(tmp_path / "photos" / f"{row}.png", row % 3, (20, 20))
        cells = [
            NAMES[row % 3 if random.random() < 0.8 else random.integers(3)] if random.random() < 0.8 else ""
            for _ in range(3)
        ]
        lines.append(f"photos/{row}.png,{','.join(cells)}")
    (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    done = cli(
        "clean",
        tmp_path / "m.csv",
        "--annotator-columns",
        "ann,bob,eve",
        "--out",
        out,
        "--backbone",
        "tiny",
        "--device",
        "cpu",
    )
    assert done.code == 0, done.err
    assert [row["annotator"] for row in sorted(read(out / "annotators.csv"), key=lambda row: row["annotator"])] == [
        "ann",
        "bob",
        "eve",
    ]
    labels = Run(out).labels()
    correct = [name == NAMES[row % 3] for row, name in enumerate(labels["suggested_label_name"].to_pylist())]
    assert np.mean(correct) > 0.9
    long = tmp_path / "long.csv"
    given = [line.split(",") for line in lines[1:]]
    long.write_text(
        "path,annotator,label\n"
        + "".join(
            f"{path},{by},{label}\n"
            for path, *own in given
            for by, label in zip(("ann", "bob", "eve"), own, strict=True)
        )
    )
    (tmp_path / "m.csv").write_text("\n".join(line.split(",")[0] for line in lines) + "\n")
    done = cli(
        "clean",
        tmp_path / "m.csv",
        "--annotations",
        long,
        "--out",
        tmp_path / "again",
        "--backbone",
        "tiny",
        "--device",
        "cpu",
    )
    assert done.code == 0, done.err
    assert (
        Run(tmp_path / "again")
        .labels()
        .select(["suggested_label", "label_quality"])
        .equals(labels.select(["suggested_label", "label_quality"]))
    )


def wide() -> Any:
    return np.where(annotations() < 0, np.nan, annotations())


def frames(kind: str) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: no frames")
    match kind:
        case "numbers":
            return wide()
        case "names":
            return np.array([*NAMES, None], object)[annotations()]
        case "frame":
            return pandas.DataFrame(wide(), columns=PEOPLE)
        case _:
            return pandas.DataFrame(np.array([*NAMES, None], object)[annotations()], columns=PEOPLE)


@pytest.mark.parametrize("kind", ["numbers", "names", "frame", "frame of names"])
def test_the_estimator_takes_annotations(kind: str) -> None:
    content = blobs()
    model = UnflipClassifier(epochs=6, hidden=(16,), random_state=0).fit(content["train"], frames(kind))
    expected = np.array(NAMES)[content["train_labels"]] if "names" in kind else content["train_labels"]
    assert model.classes_.tolist() == ([*NAMES] if "names" in kind else [0, 1, 2])
    assert (model.labels_ == expected).mean() > 0.98
    assert model.labels_[0] == expected[0]
    assert np.isnan(model.label_quality_[0])
    assert not model.label_issues_[0]
    assert model.annotators_ is not None
    people = model.annotators_["annotator"].to_pylist()
    assert sorted(people) == (sorted(PEOPLE) if "frame" in kind else ["0", "1", "2", "3"])
    test = np.array(NAMES)[content["test_labels"]] if "names" in kind else content["test_labels"]
    assert model.score(content["test"], test) > 0.95
    names = [*NAMES] if "names" in kind else ["0", "1", "2"]
    lazy = model.annotators_.to_pylist()[people.index("lazy" if "frame" in kind else "3")]
    assert f"{names[1]} > {names[0]}" in lazy["confuses"]


@pytest.mark.parametrize("marker", [-1, "none"])
def test_the_estimator_takes_unlabeled_examples(marker: Any) -> None:
    content = blobs()
    truth = content["train_labels"] if marker == -1 else np.array(NAMES, object)[content["train_labels"]]
    y = truth.copy()
    y[::3] = marker
    model = UnflipClassifier(epochs=6, hidden=(16,), random_state=0, unlabeled=marker).fit(content["train"], y)
    assert len(model.classes_) == 3
    assert (model.labels_ == truth).mean() > 0.98
    assert np.isnan(model.label_quality_[::3]).all()
    assert not model.label_issues_[::3].any()
    assert model.annotators_ is None
    assert model.predict(content["test"]).dtype == model.classes_.dtype
    plain = UnflipClassifier(epochs=2, hidden=(16,), random_state=0, val_fraction=0.1).fit(content["train"], y)
    assert len(plain.classes_) == 4  # a class like the others unless it is marked


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full((150, 2), np.nan), "y: example 0 has none"),
        (np.full((150, 2), 1.0), "y holds 1 class"),
        (np.full((149, 2), 1.0), "inconsistent numbers of samples"),
        (np.array([["a", 1]] * 150, object), "y: must be all numbers or all names"),
        (np.stack([np.arange(150) % 3, np.full(150, np.nan)], 1), "one annotator, '0', gave all labels"),
    ],
)
def test_bad_annotations_are_refused_in_one_line(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        UnflipClassifier(epochs=1).fit(blobs()["train"], y)
    assert "\n" not in str(error.value)


def test_what_goes_with_annotations_and_what_does_not() -> None:
    X, y = blobs()["train"], wide()
    with pytest.raises(ValueError, match="trusted: not for annotations"):
        UnflipClassifier(epochs=1).fit(X, y, trusted=np.ones(150, bool))
    with pytest.raises(ValueError, match="trusted: not for annotations"):
        find_label_errors(X, annotations=y, trusted=np.ones(150, bool))
    with pytest.raises(ValueError, match="method plc: takes one label per example"):
        UnflipClassifier("plc", epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="give either labels, one of each example, or annotations"):
        find_label_errors(X)
    with pytest.raises(ValueError, match="give either labels, one of each example, or annotations"):
        find_label_errors(X, blobs()["train_labels"], annotations=y)
    with pytest.raises(ValueError, match="annotations: nothing is trained where pred_probs are given"):
        find_label_errors(pred_probs=np.full((150, 3), 1 / 3), annotations=y)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"annotations: shape \(150,\); must be \(examples, annotators\)"):
        find_label_errors(X, annotations=np.zeros(150))


def test_label_errors_among_annotations_wide_and_long(tmp_path: Path) -> None:
    content, names = blobs(), np.array(NAMES)
    options: dict[str, Any] = {"epochs": 6, "hidden": (16,), "random_state": 0}
    found = find_label_errors(content["train"], annotations=frames("frame of names"), out=tmp_path / "wide", **options)
    rows = [
        {"index": int(i), "annotator": PEOPLE[by], "label": NAMES[annotations()[i, by]]}
        for i, by in zip(*np.nonzero(annotations() >= 0), strict=True)
    ]
    long = find_label_errors(content["train"], annotations=pa.Table.from_pylist(rows), out=tmp_path / "long", **options)
    assert found.labels().drop_columns(["id"]).equals(long.labels().drop_columns(["id"]))
    suggested = found.labels()["suggested_label_name"].to_pylist()
    assert np.mean(np.array(suggested) == names[content["train_labels"]]) > 0.98
    people = found.annotator_table("annotators.csv")
    assert people is not None
    assert sorted(people["annotator"].to_pylist()) == sorted(PEOPLE)
    assert len(found.ranked) == 149


def test_frames_in_memory_with_annotations(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: no frames")
    data = pandas.DataFrame(blobs()["train"]).rename(columns=str)
    done = unflip.clean(data, tmp_path / "run", annotations=frames("frame"), settings=QUICK, device="cpu", epochs=4)
    assert done.annotator_table("annotators.csv") is not None
    assert sorted(done.labels()["given_label_name"].drop_null().unique().to_pylist()) == ["0", "1", "2"]


def test_the_consensus_is_written_for_every_example(run: unflip.Result, tmp_path: Path) -> None:
    run.apply(tmp_path / "fixed.npz", fill_above=0.5)
    assert np.load(tmp_path / "fixed.npz")["train_labels"].tolist() == run.labels()["suggested_label"].to_pylist()
    content = blobs()
    done = unflip.clean(
        content["train"], tmp_path / "run", annotations=frames("names"), settings=QUICK, device="cpu", epochs=4
    )
    X, labels = done.apply(fill_above=0.0).data
    assert X is not None
    assert labels.tolist() == done.labels()["suggested_label_name"].to_pylist()
    assert done.apply().data[1][0] == ""  # nobody has labeled it
