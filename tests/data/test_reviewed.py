"""Reviewed labels: from a table to labels that no method changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from helpers import Crash, Outcome, assert_same_run, blobs, crash_after, quick_train, write_npz
from unflip.data.labels import read_reviewed
from unflip.data.matching import Keys
from unflip.errors import ConfigError, InputError, RunFolderError
from unflip.methods import methods
from unflip.runs.labels import label_issue_mask

IDS = ["a.png", "b.png", "sub/c.png", "d.png"]
NAMES = ["cat", "dog", "7"]


def keys_of(ids: list[str] | None, digests: list[str] | None = None) -> Keys:
    return Keys(ids, digests, np.array([0, 1, 2, 0]), NAMES)


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        lines = [",".join(columns), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".CSV"])
@pytest.mark.parametrize(
    "columns",
    [
        {"index": [2, 0], "label": ["dog", "cat"]},
        {"path": ["sub/c.png", "a.png"], "label": ["dog", "cat"]},
        {"note": ["x", "y"], "id": ["sub/c.png", "a.png"], "Label": [1, 0]},
        {"index": [2, 0, 2], "path": ["sub/c.png", "a.png", "sub/c.png"], "label": ["dog", "cat", "1"]},
    ],
)
def test_a_table_names_examples_by_index_or_path_and_classes_by_name_or_number(
    tmp_path: Path, suffix: str, columns: dict[str, list[Any]]
) -> None:
    path = write(tmp_path / f"reviewed{suffix}", columns)
    labels, removed, *_ = read_reviewed(path, keys_of(IDS))
    assert labels.tolist() == [0, -1, 1, -1]
    assert not removed.any()


@pytest.mark.parametrize(("suffix", "none"), [(".csv", ""), (".parquet", None), (".jsonl", None)])
def test_a_table_may_remove_examples(tmp_path: Path, suffix: str, none: str | None) -> None:
    columns: dict[str, list[Any]] = {
        "index": [2, 0, 3, 3],
        "decision": ["label", *["remove"] * 3],
        "label": ["dog", none, none, none],
        "review_weight": [12.5, 3, none, none],
    }
    labels, removed, weights, _ = read_reviewed(write(tmp_path / f"reviewed{suffix}", columns), keys_of(IDS))
    assert labels.tolist() == [-1, -1, 1, -1]
    assert removed.tolist() == [True, False, False, True]
    assert weights.tolist() == [3, 0, 12.5, 0]


def test_a_class_name_that_is_a_number_wins_over_the_number(tmp_path: Path) -> None:
    path = write(tmp_path / "r.parquet", {"index": [0, 1], "label": [7, 2]})
    assert read_reviewed(path, keys_of(None)).labels.tolist() == [2, 2, -1, -1]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"index": [0, 4], "label": ["cat", "cat"]}, "row 1: index '4' is not an integer from 0 to 3"),
        ({"index": ["-1"], "label": ["cat"]}, "row 0: index '-1' is not an integer"),
        ({"index": ["1.5"], "label": ["cat"]}, "row 0: index '1.5' is not an integer"),
        (
            {"path": ["a.png", "e.png"], "label": ["cat", "cat"]},
            "1 of 2 decisions match no example of the data, or several: row 1 ('e.png')",
        ),
        ({"index": [0, 1], "label": ["cat", "dot"]}, "row 1: unknown class 'dot', did you mean 'dog'"),
        ({"index": [0], "label": ["3"]}, "row 0: unknown class '3'; choose from: 7, cat, dog"),
        ({"index": [0], "label": [""]}, "row 0: unknown class ''"),
        ({"name": ["a.png"], "class": ["cat"]}, "no column 'label' among name, class"),
        ({"name": ["a.png"], "label": ["cat"]}, "no column 'index' or 'path' among name, label"),
        ({"path": ["a.png"], "given": ["cat"]}, "no column 'label' among path, given"),
        (
            {"index": [1, 0, 1], "label": ["cat", "cat", "dog"]},
            "row 2: example 1 has another label in row 0; keep one",
        ),
        (
            {"index": [1], "path": ["e.png"], "label": ["cat"]},
            "match no example of the data, or several: row 0 ('e.png')",
        ),
        (
            {"index": [1], "given_label": ["cat"], "label": ["cat"]},
            "match no example of the data, or several: row 0 (index 1)",
        ),
        (
            {"index": [0, 1], "label": ["cat", ""], "decision": ["label", "delete"]},
            "row 1: unknown decision 'delete'; choose from: label, remove",
        ),
        ({"index": [0], "label": ["cat"], "decision": [""]}, "row 0: unknown decision ''"),
        (
            {"index": [0, 1], "label": ["cat", "cat"], "review_weight": ["2.5", "heavy"]},
            "row 1: review_weight 'heavy' is not a number from 0 on; leave it empty",
        ),
        ({"index": [0], "label": ["cat"], "review_weight": ["-1"]}, "row 0: review_weight '-1' is not a number from 0"),
        ({"index": [0], "label": [""], "decision": ["label"]}, "row 0: unknown class ''"),
        (
            {"index": [1, 1], "label": ["cat", ""], "decision": ["label", "remove"]},
            "row 1: example 1 has another label in row 0; keep one",
        ),
    ],
)
def test_what_a_table_must_not_hold_is_named_with_its_row(
    tmp_path: Path, columns: dict[str, list[Any]], said: str
) -> None:
    path = write(tmp_path / "reviewed.csv", columns)
    with pytest.raises(InputError) as error:
        read_reviewed(path, keys_of(IDS))
    assert str(error.value).startswith(f"reviewed {path}")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.csv", None, "No such file or directory"),
        ("empty.csv", b"", "not a readable table ("),
        ("labels.txt", b"1\n2\n", "cannot read '.txt'; must be .csv, .parquet or .jsonl"),
        ("broken.parquet", b"PAR1", "not a readable table"),
        ("broken.jsonl", b'{"index": 0, "label": 1}\n{"index"', "not a readable table"),
        ("list.jsonl", b"[1, 2]\n", "not a readable table"),
        ("latin.csv", "index,label\n0,\xe9".encode("latin-1"), "not a readable table"),
    ],
)
def test_files_that_are_no_tables_are_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        read_reviewed(tmp_path / name, keys_of(IDS))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_examples_without_or_with_the_same_path_need_an_index(tmp_path: Path) -> None:
    path = write(tmp_path / "reviewed.csv", {"path": ["a"], "label": ["cat"]})
    with pytest.raises(InputError, match="examples of this data have no path; use the column 'index'"):
        read_reviewed(path, keys_of(None))
    with pytest.raises(InputError, match=r"match no example of the data, or several: row 0 \('a'\); remove these rows"):
        read_reviewed(path, keys_of(["a", "a", "b", "c"]))


@pytest.fixture
def wrong_on_purpose(tmp_path: Path) -> tuple[Path, Path, np.ndarray[Any, Any]]:
    """Separable data with right labels, and a review that calls every tenth example by the next class instead."""
    content = blobs()
    data = write_npz(tmp_path / "blobs.npz", **content)
    rows = np.arange(0, 150, 10)
    decided = (content["train_labels"][rows] + 1) % 3
    reviewed = write(tmp_path / "reviewed.csv", {"index": rows.tolist(), "label": decided.tolist()})
    expected = content["train_labels"].copy()
    expected[rows] = decided
    return data, reviewed, expected


EAGER: dict[str, dict[str, Any]] = {
    "unflip": {"unflip.warmup": 1},
    "plc": {"plc.warmup": 1, "plc.threshold": 0.9},
    "mddc": {"plc.warmup": 1, "plc.threshold": 0.9},
    "cddc": {"plc.warmup": 1, "plc.threshold": 0.9},
    "lrt": {"lrt.warmup": 1},
    "gce": {"gce.truncation": 0.5, "gce.prune_from": 1},
    "coteaching+": {"coteaching+.warmup": 1, "coteaching+.forget_rate": 0.3, "coteaching+.ramp_epochs": 1},
    "dividemix": {"dividemix.warmup": 2},
}


@pytest.mark.parametrize("method", [entry.name for entry in methods])
def test_no_method_changes_a_reviewed_label_however_wrong(
    tmp_path: Path, wrong_on_purpose: tuple[Path, Path, np.ndarray[Any, Any]], method: str
) -> None:
    data, reviewed, expected = wrong_on_purpose
    run = quick_train(
        data, tmp_path / "run", method=method, epochs=5, reviewed=reviewed, settings=EAGER.get(method, {})
    )
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet")
    trusted = table["reviewed"].to_numpy()
    assert trusted.nonzero()[0].tolist() == list(range(0, 150, 10))
    sides = {"train"} if method == "unflip" else {"train", "val"}
    assert set(np.array(table["split"].to_pylist())[trusted]) == sides
    np.testing.assert_array_equal(table["given_label"].to_numpy(), blobs()["train_labels"])
    np.testing.assert_array_equal(table["current_label"].to_numpy()[trusted], expected[trusted])
    assert (table["label_quality"].to_numpy()[trusted] == 1).all()
    assert run.result["reviewed"] == 15
    history = pyarrow.parquet.read_table(run.folder / "history.parquet")
    assert not set(history["index"].to_pylist()) & set(range(0, 150, 10))


@pytest.mark.parametrize("method", [entry.name for entry in methods])
def test_a_removed_example_has_no_say_in_a_run_and_keeps_its_row(tmp_path: Path, method: str) -> None:
    content, rows = blobs(), np.arange(0, 150, 10)
    reviewed = write(
        tmp_path / "reviewed.csv", {"index": rows.tolist(), "label": [""] * 15, "decision": ["remove"] * 15}
    )
    others = content["train"].copy()
    others[rows] = np.random.default_rng(1).normal(0, 9, (15, 6))
    settings = EAGER.get(method, {}) | {"data.standardize": "off"}
    runs = [
        quick_train(
            write_npz(tmp_path / f"{name}.npz", **content | {"train": inputs}), tmp_path / name, method=method,
            epochs=3, reviewed=reviewed, settings=settings,
        )
        for name, inputs in (("one", content["train"]), ("other", others))
    ]  # fmt: skip
    one, other = ((run.folder / "model.safetensors").read_bytes() for run in runs)
    assert one == other
    for run in runs:
        assert (run.result["reviewed"], run.result["removed"]) == (0, 15)
        table = run.labels()
        assert table["index"].to_pylist() == list(range(150))
        removed = np.array(table["split"].to_pylist()) == "removed"
        assert removed.nonzero()[0].tolist() == rows.tolist()
        for name in ("current_label", "suggested_label"):
            np.testing.assert_array_equal(table[name].to_numpy()[removed], content["train_labels"][rows])
        for name in ("label_quality", "log_odds"):
            assert np.isnan(table[name].to_numpy()[removed]).all()
            assert np.isfinite(table[name].to_numpy()[~removed]).all()
        assert table["reviewed"].to_numpy()[removed].all()
        assert not label_issue_mask(table)[removed].any()
        assert np.isfinite(table["network_prob_given"].to_numpy()).all()
        assert set(np.array(table["out_of_sample"].to_pylist())[removed]) == {True}
    kept = ~np.isin(np.arange(150), rows)
    one, other = (run.labels().filter(kept) for run in runs)
    assert one.drop_columns("last_changed_epoch").equals(other.drop_columns("last_changed_epoch"))


def test_a_run_that_would_have_nothing_left_to_learn_is_refused(tmp_path: Path, features: Path) -> None:
    first = blobs()["train_labels"] == 0
    rows = (~first).nonzero()[0].tolist()
    reviewed = write(
        tmp_path / "reviewed.csv", {"index": rows, "label": [""] * len(rows), "decision": ["remove"] * len(rows)}
    )
    with pytest.raises(InputError, match="fewer than two classes in 45 training examples"):
        quick_train(features, tmp_path / "run", method="plc", reviewed=reviewed)


def test_figures_leave_removed_examples_out(tmp_path: Path) -> None:
    content = blobs()
    noisy = content["train_labels"].copy()
    noisy[:30] = (noisy[:30] + 1) % 3
    data = write_npz(tmp_path / "blobs.npz", **content)
    np.save(tmp_path / "noisy.npy", noisy)
    reviewed = write(
        tmp_path / "reviewed.csv", {"index": list(range(20)), "label": [""] * 20, "decision": ["remove"] * 20}
    )
    result = quick_train(
        data, tmp_path / "run", method="standard", labels=tmp_path / "noisy.npy", reviewed=reviewed, epochs=1
    ).result
    assert result["noise_rate"] == pytest.approx(10 / 130)
    assert result["label_accuracy_all"]["current"] == pytest.approx(120 / 130)


def test_without_the_review_the_same_run_changes_such_labels(
    tmp_path: Path, wrong_on_purpose: tuple[Path, Path, np.ndarray[Any, Any]]
) -> None:
    _, _, expected = wrong_on_purpose
    data = write_npz(tmp_path / "given.npz", **(blobs() | {"train_labels": expected}))
    run = quick_train(data, tmp_path / "run", epochs=5, settings=EAGER["unflip"])
    changed = pyarrow.parquet.read_table(run.folder / "labels.parquet")["changed"].to_numpy()
    assert changed[::10].mean() > 0.5


def test_a_review_that_says_what_was_given_trains_the_same_run(tmp_path: Path, features: Path) -> None:
    labels = blobs()["train_labels"][:4].tolist()
    reviewed = write(tmp_path / "reviewed.jsonl", {"index": [0, 1, 2, 3], "label": labels})
    plain = quick_train(features, tmp_path / "plain", method="plc", epochs=3)
    kept = quick_train(features, tmp_path / "kept", method="plc", epochs=3, reviewed=reviewed)
    assert (plain.folder / "model.safetensors").read_bytes() == (kept.folder / "model.safetensors").read_bytes()


def test_a_resumed_run_is_the_same_run_and_needs_the_same_review(
    tmp_path: Path, wrong_on_purpose: tuple[Path, Path, np.ndarray[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, reviewed, _ = wrong_on_purpose
    whole = quick_train(data, tmp_path / "whole", epochs=4, reviewed=reviewed, settings=EAGER["unflip"])
    crash_after(monkeypatch, 2)
    with pytest.raises(Crash):
        quick_train(data, tmp_path / "broken", epochs=4, reviewed=reviewed, settings=EAGER["unflip"])
    monkeypatch.undo()
    other = write(tmp_path / "other.csv", {"index": [1], "label": [0]})
    with pytest.raises(ConfigError, match=r"data\.reviewed"):
        quick_train(data, tmp_path / "broken", resume=True, reviewed=other)
    before = reviewed.read_text("utf-8")
    reviewed.write_text(before.rsplit("\n", 2)[0] + "\n", "utf-8")
    with pytest.raises(RunFolderError, match="labels, splits or names of the data have changed"):
        quick_train(data, tmp_path / "broken", resume=True)
    reviewed.write_text(before, "utf-8")
    assert_same_run(whole, quick_train(data, tmp_path / "broken", resume=True))


def test_figures_speak_of_the_labels_as_they_had_been_given(tmp_path: Path) -> None:
    content = blobs()
    noisy = content["train_labels"].copy()
    noisy[:30] = (noisy[:30] + 1) % 3
    data = write_npz(tmp_path / "blobs.npz", **content)
    np.save(tmp_path / "noisy.npy", noisy)
    reviewed = write(
        tmp_path / "reviewed.csv", {"index": list(range(20)), "label": content["train_labels"][:20].tolist()}
    )
    run = quick_train(
        data, tmp_path / "run", method="standard", labels=tmp_path / "noisy.npy", reviewed=reviewed, epochs=1,
        settings={"data.val_fraction": 0.0}, select="last",
    )  # fmt: skip
    result = run.result
    assert result["label_accuracy"]["given"] == pytest.approx(0.8)
    assert result["label_accuracy"]["current"] == pytest.approx(1 - 10 / 150)
    assert result["noise_rate"] == pytest.approx(0.2)


def test_the_command_takes_it_and_says_what_is_wrong_in_one_line(
    cli: Callable[..., Outcome], tmp_path: Path, features: Path
) -> None:
    path = write(tmp_path / "reviewed.csv", {"index": [3, 900], "label": [0, 0]})
    answer = cli("train", "--data", features, "--out", tmp_path / "run", "--reviewed", path)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"unflip: reviewed {path}, row 1: index '900' is not an integer from 0 to 149\n"
    assert not (tmp_path / "run").exists()
    write(path, {"index": [3], "label": [0]})
    answer = cli("train", "--data", features, "--out", tmp_path / "run", "--reviewed", path, "--epochs", 1, "-q")
    assert answer.code == 0, answer.err


def test_trusted_examples_are_picked_first_whether_networks_agree_or_not() -> None:
    from unflip.methods.coteaching import pick

    losses = torch.tensor([0.1, 0.2, 9.0, 0.3]).masked_fill(torch.tensor([False, False, True, False]), -torch.inf)
    assert pick(losses, torch.tensor([True, False, True, False]), 0.5).nonzero()[:, 0].tolist() == [2]
