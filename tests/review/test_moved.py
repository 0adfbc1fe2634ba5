"""Decisions find their examples in data that was reordered, has grown or shrunk, or was replaced."""

import csv
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_backbone
from helpers import Outcome, blobs, write_npz
from pictures import write_picture
from reviewing import new_request
from unflip.data.matching import Keys, Matcher, Reference
from unflip.review.decisions import Choice
from unflip.review.review import open_review
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
NAMES = ("red", "green", "blue")


def run_clean(cli: Cli, *arguments: object) -> Outcome:
    done = cli("clean", *arguments, "--epochs", 1, "--device", "cpu", "--quiet")
    assert done.code == 0, done.err
    return done


def decide(folder: Path, labels: dict[int, int | None]) -> None:
    """Decide about examples as the page does: a class, or None to remove."""
    with open_review(folder, reviewer="ann") as review:
        for index, label in labels.items():
            held = review.decisions.current(index)
            choice = Choice(
                index,
                held.version if held else 0,
                *review.meaning("choose" if label is not None else "remove", index, label),
            )
            assert review.decisions.decide([choice], person="a", reviewer="ann", request=new_request()).written


def exported(cli: Cli, folder: Path, out: Path) -> list[dict[str, str]]:
    done = cli("review", folder, "--export", out, "--force")
    assert done.code == 0, done.err
    with out.open() as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Sequence[object]], columns: int = 6) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*(f"c{i}" for i in range(columns)), "kind"], *rows])
    return path


def table_rows() -> list[list[object]]:
    content = blobs(train=90)
    return [[*row, NAMES[label]] for row, label in zip(content["train"].round(4), content["train_labels"], strict=True)]


def reviewed_rows(folder: Path) -> dict[tuple[object, ...], str]:
    """Return the current label of each reviewed example by its cells."""
    run = Run(folder)
    table, rows = run.labels(), run.rows()
    assert rows is not None
    return {
        tuple(value for _, value in rows.values(index)): name
        for index, (is_reviewed, name) in enumerate(
            zip(table["reviewed"].to_pylist(), table["current_label_name"].to_pylist(), strict=True)
        )
        if is_reviewed
    }


def test_a_reordered_and_grown_table_gets_the_decisions_about_its_rows(cli: Cli, tmp_path: Path) -> None:
    rows = table_rows()
    run_clean(cli, write_rows(tmp_path / "a.csv", rows), "--label-column", "kind", "--out", tmp_path / "run")
    decide(tmp_path / "run", {i: (i // 4) % 3 for i in range(0, 80, 4)})
    decisions = exported(cli, tmp_path / "run", tmp_path / "reviewed.csv")
    assert len(decisions) == 20
    run_clean(
        cli,
        tmp_path / "a.csv",
        "--label-column",
        "kind",
        "--out",
        tmp_path / "same",
        "--reviewed",
        tmp_path / "reviewed.csv",
    )
    expected = reviewed_rows(tmp_path / "same")
    assert len(expected) == 20
    others = [[*(value + 0.5 for value in row[:6]), row[6]] for row in rows[:15]]  # type: ignore[operator]
    mixed = random.Random(0).sample(rows + others, 105)
    run_clean(
        cli,
        write_rows(tmp_path / "b.csv", mixed),
        "--label-column",
        "kind",
        "--out",
        tmp_path / "mixed",
        "--reviewed",
        tmp_path / "reviewed.csv",
    )
    assert reviewed_rows(tmp_path / "mixed") == expected
    few = [row for row in mixed if row[0] != rows[8][0]]  # one of the reviewed rows is gone
    few[5] = ["n/a", *few[5][1:]]  # and c0 is read as text
    done = run_clean(
        cli,
        write_rows(tmp_path / "c.csv", few),
        "--label-column",
        "kind",
        "--out",
        tmp_path / "few",
        "--reviewed",
        tmp_path / "reviewed.csv",
    )
    assert "1 of 20 decisions match no example of the data, or several: row 2 (index 8); they are not used" in done.err
    assert len(reviewed_rows(tmp_path / "few")) == 19
    foreign = write_rows(tmp_path / "d.csv", [[*(value + 9 for value in row[:6]), row[6]] for row in rows])  # type: ignore[operator]
    done = cli(
        "clean",
        foreign,
        "--label-column",
        "kind",
        "--out",
        tmp_path / "foreign",
        "--reviewed",
        tmp_path / "reviewed.csv",
    )
    assert (done.code, (tmp_path / "foreign").exists()) == (2, False)
    assert "20 of 20 decisions match no example" in done.err


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_backbone.register(monkeypatch)
    for i in range(30):
        write_picture(tmp_path / "photos" / NAMES[i % 3] / f"{i:03}.png", i % 3, (20 + i, 20))
    return tmp_path / "photos"


def test_a_folder_that_has_grown_takes_the_export_of_the_page(cli: Cli, photos: Path, tmp_path: Path) -> None:
    run_clean(cli, photos, "--out", tmp_path / "run", "--backbone", "tiny")
    decide(tmp_path / "run", {3: 2, 7: 0, 20: None})
    decisions = exported(cli, tmp_path / "run", tmp_path / "reviewed.csv")
    for i in range(15):
        write_picture(photos / NAMES[i % 3] / f"a{i:03}.png", i % 3, (60 + i, 20))
    moved = photos / decisions[1]["path"]
    shutil.move(moved, photos / "red" / "moved.png")  # as people correct labels
    for data, out in ((photos, "grown"), (tmp_path / "grown" / "embedded.npz", "again")):
        done = run_clean(
            cli,
            data,
            "--out",
            tmp_path / out,
            *(["--backbone", "tiny"] if data == photos else []),
            "--reviewed",
            tmp_path / "reviewed.csv",
        )
        assert done.err == ""
        table = Run(tmp_path / out).labels().to_pylist()
        found = {row["id"]: (row["current_label_name"], row["split"]) for row in table if row["reviewed"]}
        assert found[decisions[0]["path"]][0] == decisions[0]["label"]
        assert found["red/moved.png"][0] == decisions[1]["label"]
        assert found[decisions[2]["path"]][1] == "removed"
        assert len(found) == 3


def test_another_picture_under_the_same_name_is_not_the_one_that_was_reviewed(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    run_clean(cli, photos, "--out", tmp_path / "run", "--backbone", "tiny")
    decide(tmp_path / "run", {3: 2, 7: 0})
    decisions = exported(cli, tmp_path / "run", tmp_path / "reviewed.csv")
    write_picture(photos / decisions[0]["path"], 2, (90, 20))
    done = run_clean(
        cli, photos, "--out", tmp_path / "new", "--backbone", "tiny", "--reviewed", tmp_path / "reviewed.csv"
    )
    assert f"1 of 2 decisions match no example of the data, or several: row 0 ('{decisions[0]['path']}')" in done.err


def test_decisions_outlive_the_run_that_they_were_made_about(cli: Cli, tmp_path: Path) -> None:
    content = blobs(train=90)
    first, order = write_npz(tmp_path / "a.npz", **content), np.random.default_rng(0).permutation(90)
    run_clean(cli, first, "--out", tmp_path / "run")
    decide(tmp_path / "run", {3: 2, 7: 0, 20: None})
    kept = order[order != 7]
    reordered = {key: array[kept] if key.startswith("train") else array for key, array in content.items()}
    run_clean(cli, write_npz(tmp_path / "b.npz", **reordered), "--out", tmp_path / "run", "--force")
    decisions = exported(cli, tmp_path / "run", tmp_path / "reviewed.csv")
    found = {row["index"]: (row["label"], row["decision"]) for row in decisions}
    place = {int(old): str(new) for new, old in enumerate(kept)}
    assert found == {place[3]: ("2", "label"), place[20]: ("", "remove"), "": ("0", "label")}
    decide(tmp_path / "run", {int(place[3]): 1})
    (tmp_path / "run" / "result.json").unlink()  # the next one was killed
    assert len(exported(cli, tmp_path / "run", tmp_path / "reviewed.csv")) == 3
    run_clean(cli, first, "--out", tmp_path / "run", "--force", "--reviewed", tmp_path / "reviewed.csv")
    table = Run(tmp_path / "run").labels().to_pylist()
    assert {row["index"]: row["current_label"] for row in table if row["reviewed"]} == {
        3: 1,
        7: 0,
        20: table[20]["given_label"],
    }


KINDS = st.sampled_from(["ids", "digests", "both"])


@given(kind=KINDS, count=st.integers(1, 12), new=st.integers(0, 5), copies=st.booleans(), seed=st.integers(0, 999))
@settings(max_examples=150)
def test_an_example_is_found_wherever_it_went(kind: str, count: int, new: int, copies: bool, seed: int) -> None:
    """Against the obvious: in shuffled, grown and thinned data every reference finds an equal example, or none."""
    draw = random.Random(seed)
    digests = [f"row-{draw.randrange(3 if copies else 10**9)}" for _ in range(count + new)]
    ids = [f"{i}.png" for i in range(count + new)]
    labels = [draw.randrange(3) for _ in range(count + new)]

    def keys(rows: Sequence[int]) -> Keys:
        named = [ids[row] for row in rows] if kind != "digests" else None
        hashed = [digests[row] for row in rows] if kind != "ids" else None
        return Keys(named, hashed, np.array([labels[row] for row in rows], np.int64), NAMES)

    before = keys(range(count))
    rows = draw.sample(range(count + new), draw.randrange(1, count + new + 1))
    after, matcher = keys(rows), Matcher(keys(rows))
    for index in range(count):
        wanted = before.reference(index)
        found = matcher.find(wanted)
        if kind == "ids":
            assert found == (rows.index(index) if index in rows else None)
            continue
        same = [place for place, row in enumerate(rows) if digests[row] == digests[index]]
        assert (found in same) if same else (found is None)
        if index in rows and kind == "both":
            assert found == rows.index(index)
        assert found is None or after.reference(found).digest == wanted.digest


def test_an_index_alone_is_trusted_only_where_nothing_else_is_known() -> None:
    keys = Keys(None, ["row6-a", "row6-b"], np.array([0, 1]), NAMES)
    wanted: list[tuple[Reference, Any]] = [
        (Reference(1), 1),
        (Reference(1, None, "green"), 1),
        (Reference(1, None, "red"), None),
        (Reference(2), None),
        (Reference(1, None, "green", "row6-a"), 0),
        (Reference(1, None, "green", "row7-b"), None),  # of other columns
        (Reference(None, None, None, "row6-b"), 1),
        (Reference(None, "a.png"), None),
    ]
    assert [Matcher(keys).find(reference) for reference, _ in wanted] == [found for _, found in wanted]
    files = Keys(["a.png", "b.png", "b.png"], None, np.array([0, 1, 1]), NAMES)
    assert Matcher(files).find(Reference(0, "a.png", "green", "image-1")) == 0  # by name, whatever its class was
    assert Matcher(files).find(Reference(0, "b.png")) is None  # there are two
    assert Matcher(files).find(Reference(2, "b.png")) == 2
