"""unflip clean: from a folder, a table or features to a list of wrong labels; and what it refuses."""

import csv
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tiny_backbone
import unflip
from helpers import Outcome, blobs, write_npz
from pictures import write_picture
from unflip.api import clean as module
from unflip.errors import ConfigError
from unflip.review.examples import Examples, Filter
from unflip.review.review import open_review
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
NAMES = np.array(["red", "green", "blue"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_backbone.register(monkeypatch)


def clean(cli: Cli, *arguments: object) -> Outcome:
    done = cli("clean", *arguments, "--device", "cpu")
    assert done.code == 0, done.err
    return done


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def issues(path: Path) -> list[dict[str, str]]:
    """Return the first part of the list: label issues, without doubtful labels."""
    return [row for row in rows(path) if row["is_label_issue"] == "true"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """120 pictures of one color each, six of them in the folder of another color."""
    for i in range(120):
        given = (i + 1) % 3 if i < 6 else i % 3
        write_picture(tmp_path / "photos" / NAMES[given] / f"{i:03}.png", i % 3, (20, 20))
    return tmp_path / "photos"


def table_of(content: dict[str, Any], path: Path, *, wrong: int = 8) -> Path:
    """Write features as a .csv with labels by name, the first few of them wrong."""
    labels = content["train_labels"].copy()
    labels[:wrong] = (labels[:wrong] + 1) % 3
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"c{i}" for i in range(content["train"].shape[1])), "town", "kind"])
        for row, label in zip(content["train"], labels, strict=True):
            writer.writerow([*row, "Rome", NAMES[label]])
    return path


def test_a_folder_of_images_becomes_a_list_of_wrong_labels(cli: Cli, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = clean(cli, photos, "--out", out, "--backbone", "tiny")
    first, *_ = done.out.splitlines()
    assert first.startswith("photos: 120 images in 3 classes: features from tiny at 112 pixels, then train")
    assert first.endswith(", then train unflip for 10 epochs")
    assert " of 120 labels are wrong; 6 label issues; " in done.out
    assert "green -> red" in done.out
    assert f"Report: {out / 'report.html'}" in done.out
    assert "<img" in (report := (out / "report.html").read_text())
    assert "label_issues.csv</code> lists all" in report
    assert f"unflip review {out} " in done.out
    label_issues = issues(out / "label_issues.csv")
    assert {row["path"] for row in label_issues} == {f"{NAMES[(i + 1) % 3]}/{i:03}.png" for i in range(6)}
    assert {(row["path"], row["suggested_label"]) for row in label_issues} == {
        (f"{NAMES[(i + 1) % 3]}/{i:03}.png", NAMES[i % 3]) for i in range(6)
    }
    qualities = [float(row["label_quality"]) for row in label_issues]
    assert qualities == sorted(qualities)
    assert max(qualities) < 0.5
    run = Run(out)
    assert run.result["method"] == "unflip"
    assert run.pictures() is not None


def test_a_second_call_uses_the_features_again_and_reviewed_labels_are_kept(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    clean(cli, photos, "--out", out, "--backbone", "tiny")
    tiny_backbone.seen.clear()
    reviewed = tmp_path / "reviewed.csv"
    label_issues = issues(out / "label_issues.csv")
    kept = label_issues[0]  # a person says that the given label is right after all
    reviewed.write_text(f"path,label\n{kept['path']},{kept['given_label']}\n")
    refused = cli("clean", photos, "--out", out, "--backbone", "tiny")
    assert refused.code == 2
    assert "--force" in refused.err
    done = clean(
        cli, photos, "--out", out, "--backbone", "tiny", "--force", "--reviewed", reviewed
    )  # fmt: skip
    assert tiny_backbone.seen == []
    assert "(cached)" in done.out
    assert "\n  1 reviewed label, 0 corrected\n" in done.out
    assert kept["path"] not in {row["path"] for row in issues(out / "label_issues.csv")}
    row = Run(out).labels().slice(int(kept["index"]), 1).to_pylist()[0]
    assert row["reviewed"]
    assert row["current_label_name"] == kept["given_label"]


def test_the_commands_that_are_proposed_next_work(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    done = clean(cli, photos, "--out", out, "--backbone", "tiny")
    proposed = [line.partition("#")[0].split() for line in done.out.splitlines()[-3:]]
    fixed = f"{photos.name}-fixed"
    assert proposed == [
        ["unflip", "review", str(out)],
        ["unflip", "apply", str(out), "--out", fixed],
        ["unflip", "predict", str(out), "--data", "NEW"],
    ]
    applied = cli(*proposed[1][1:])
    assert f"{len(issues(out / 'label_issues.csv'))} labels changed, 0 examples dropped: {fixed}" in applied.out
    predicted = cli(*proposed[2][1:-1], fixed)
    assert predicted.code == 0, predicted.err


def test_classes_that_may_be_one_are_named_once(cli: Cli, tmp_path: Path) -> None:
    names = ["Cat", "cat", "CAT", "dog", "Dog", "eel"]
    values = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{values[i, 0]},{values[i, 1]},{names[i % 6]}\n" for i in range(60)]
    (tmp_path / "t.csv").write_text("x,y,label\n" + "".join(lines))
    done = clean(cli, tmp_path / "t.csv", "--out", tmp_path / "run", "--epochs", 3)
    assert done.err == (
        f"unflip: {tmp_path / 't.csv'}, column 'label': class names that differ in case, Unicode form, "
        "invisible characters or leading zeros only: 'CAT' and 'Cat' and 'cat', 'Dog' and 'dog'\n"
    )


def test_removed_examples_are_counted_and_are_no_label_issues(cli: Cli, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    clean(cli, photos, "--out", out, "--backbone", "tiny")
    before = issues(out / "label_issues.csv")
    removed = "".join(f"{row['path']},,remove\n" for row in before[:2])
    (tmp_path / "reviewed.csv").write_text(f"path,label,decision\n{removed}")
    features, again = out / "embedded.npz", tmp_path / "again"
    done = clean(cli, features, "--out", again, "--reviewed", tmp_path / "reviewed.csv")
    assert " of 118 labels are wrong; " in done.out
    assert "; 2 examples removed\n" in done.out
    assert not {row["path"] for row in before[:2]} & {row["path"] for row in issues(again / "label_issues.csv")}
    assert "2 examples were removed in review" in (again / "report.html").read_text("utf-8")
    assert f"unflip apply {again} --out photos-fixed" in done.out
    assert "2 examples dropped: " in cli("apply", again, "--out", tmp_path / "fixed").out  # images, not their features
    assert len([*(tmp_path / "fixed").rglob("*.png")]) == 118


def test_what_to_type_next_is_quoted_and_class_names_cannot_steer_the_terminal(cli: Cli, tmp_path: Path) -> None:
    content = blobs()
    content["train_labels"][:8] = (content["train_labels"][:8] + 1) % 3
    content["class_names"] = np.array(["two\nlines", "\x1b[31mred", "long" * 100])
    write_npz(tmp_path / "f.npz", **content)
    done = clean(cli, tmp_path / "f.npz", "--out", tmp_path / "my run")
    assert all(line.isprintable() for line in done.out.splitlines())
    assert "two lines" in done.out
    assert r"\x1b[31mred" in done.out
    pairs = [line for line in done.out.splitlines() if " -> " in line]
    assert pairs
    assert max(map(len, pairs)) < 200
    commands = [shlex.split(line, comments=True) for line in done.out.splitlines()[-3:]]
    assert commands[0] == ["unflip", "review", str(tmp_path / "my run")]
    assert [command[:3] for command in commands[1:]] == [
        ["unflip", name, commands[0][2]] for name in ("apply", "predict")
    ]


def test_what_becomes_of_a_tables_columns_is_told_before_anything_is_written(cli: Cli, tmp_path: Path) -> None:
    path = table_of(blobs(train=600), tmp_path / "t.csv", wrong=20)
    out = tmp_path / "run"
    told = cli("clean", path, "--label-column", "kind", "--out", out, "--dry-run")
    assert told.code == 0, told.err
    assert re.search(r"^  town +dropped +always Rome$", told.out, re.M)
    assert re.search(r"^  c0 +number +", told.out, re.M)
    assert not out.exists()
    done = clean(cli, path, "--label-column", "kind", "--out", out, "--epochs", 2)
    assert done.out.splitlines()[1].split() == ["town", "dropped", "always", "Rome"]
    assert " number " not in done.out


def test_a_table_is_cleaned_without_a_column_that_is_ignored(cli: Cli, tmp_path: Path) -> None:
    path = table_of(blobs(train=600), tmp_path / "t.csv", wrong=40)
    out = tmp_path / "run"
    done = clean(cli, path, "--label-column", "kind", "--ignore", "town", "--out", out)
    assert done.out.startswith("t.csv: 600 examples with 6 features in 3 classes: train unflip for 10 epochs\n")
    label_issues = issues(out / "label_issues.csv")
    assert f" of 600 labels are wrong; {len(label_issues)} label issues; " in done.out
    assert {int(row["index"]) for row in label_issues} <= set(range(40))
    assert len(label_issues) >= 5  # few labels of one flipped pair each: the estimate is low
    lines = done.out.splitlines()
    assert len(lines) <= 1 + 15  # the plan, and what was found
    assert not any("epoch 1" in line for line in lines)
    assert 'standardize = "auto"' in (out / "config.toml").read_text()


def test_columns_of_a_table_have_units_of_their_own_for_methods_that_do_not_choose(cli: Cli, tmp_path: Path) -> None:
    path = table_of(blobs(), tmp_path / "t.csv")
    out = tmp_path / "run"
    done = clean(cli, path, "--label-column", "kind", "--ignore", "town", "--out", out, "--method", "plc")
    assert "train plc for 21 epochs\n" in done.out
    assert 'standardize = "per-feature"' in (out / "config.toml").read_text()


def test_features_with_numbers_for_classes_are_cleaned(cli: Cli, tmp_path: Path) -> None:
    content = blobs()
    content["train_labels"][:5] = (content["train_labels"][:5] + 1) % 3
    done = clean(cli, write_npz(tmp_path / "f.npz", **content), "--out", tmp_path / "run")
    assert " of 150 labels are wrong; 5 label issues; " in done.out
    assert {row["id"] for row in issues(tmp_path / "run" / "label_issues.csv")} == {"0", "1", "2", "3", "4"}


def test_the_same_picture_under_two_labels_is_reported(cli: Cli, photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "red" / "009.png", photos / "blue" / "copy.png")
    shutil.copy(photos / "red" / "012.png", photos / "red" / "harmless.png")
    done = clean(cli, photos, "--out", tmp_path / "run", "--backbone", "tiny")
    assert "near duplicate" in done.out
    found = [row for row in rows(tmp_path / "run" / "issues.csv") if row["score"] == "1"]
    assert [(row["group"], row["path"], row["reason"]) for row in found] == [
        ("0", "blue/copy.png", "the same as red/009.png (red), and labeled blue"),
        ("0", "red/009.png", "the same as blue/copy.png (blue), and labeled red"),
        ("1", "red/012.png", "the same as red/harmless.png (red)"),
        ("1", "red/harmless.png", "the same as red/012.png (red)"),
    ]


def test_equal_rows_under_two_labels_are_reported(cli: Cli, tmp_path: Path) -> None:
    content = blobs()
    content["train"][[3, 40, 7]] = content["train"][[10, 10, 10]]
    content["train_labels"][[3, 40, 7, 10]] = 0, 1, 0, 0
    done = clean(cli, write_npz(tmp_path / "f.npz", **content), "--out", tmp_path / "run")
    assert "4 near duplicate" in done.out
    found = [row for row in rows(tmp_path / "run" / "issues.csv") if row["issue"] == "near_duplicate"]
    assert [int(row["index"]) for row in found] == [3, 7, 10, 40]


def test_rows_that_leak_into_the_test_set_are_counted_apart(cli: Cli, tmp_path: Path) -> None:
    content = blobs()
    test, answers = content["train"][::3].copy(), content["train_labels"][::3].copy()
    test[10:] += np.random.default_rng(5).normal(size=test[10:].shape)
    answers[:10] = (answers[:10] + 1) % 3  # leaked, and wrong
    path = write_npz(tmp_path / "f.npz", **(content | {"test": test, "test_labels": answers}))
    done = clean(cli, path, "--out", tmp_path / "run")
    found = [row for row in rows(tmp_path / "run" / "issues.csv") if row["issue"] == "leakage"]
    assert sorted(int(row["index"]) for row in found) == [*range(0, 30, 3)]
    assert found[0]["reason"] == f"the same as example 0 ({answers[0]}) of 'test'"
    figures = Run(tmp_path / "run").result["tests"]["test"]
    assert figures["leaked"] == 10
    assert figures["top1_without_leakage"] > figures["top1"] + 0.15
    with_them, without = (f"{figures[name]:.1%}" for name in ("top1", "top1_without_leakage"))
    told = f"test accuracy {with_them} ('test'; its labels are not checked), {without} without 10 leaked examples"
    assert told in done.out
    clean(cli, path, "--out", tmp_path / "off", "--skip-check", "leakage")
    assert "leaked" not in Run(tmp_path / "off").result["tests"]["test"]


def test_a_class_of_three_among_hundreds_is_found_and_kept(cli: Cli, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [400, 60, 3])
    content = {"train": 8.0 * np.eye(5)[labels] + random.normal(size=(463, 5)), "train_labels": labels.copy()}
    content["train_labels"][:10] = 1
    clean(cli, write_npz(tmp_path / "f.npz", **content), "--out", tmp_path / "run")
    found = {int(row["index"]): row for row in issues(tmp_path / "run" / "label_issues.csv")}
    assert len(set(range(10)) & set(found)) >= 5  # of a class this small, few are known to be wrong
    assert len(found) <= 14
    assert all(found[i]["suggested_label"] == "0" for i in range(10) if i in found)


def test_labels_whose_quality_is_not_known_are_counted_and_stay(cli: Cli, tmp_path: Path) -> None:
    """Five examples of one class are called by a name that nothing else has."""
    content = blobs()
    alone = [0, 30, 60, 90, 120]
    content["train_labels"][alone] = 3
    content["train_labels"][[7, 8]] = (content["train_labels"][[7, 8]] + 1) % 3
    done = clean(cli, write_npz(tmp_path / "f.npz", **content), "--out", tmp_path / "run")
    found = issues(tmp_path / "run" / "label_issues.csv")
    assert "5 labels without a score: too few examples of the class" in done.out
    assert not set(alone) & {int(row["index"]) for row in found}
    table = Run(tmp_path / "run").labels()
    assert np.isnan(table["label_quality"].to_numpy()[alone]).all()
    assert set(table["current_label"].to_numpy()[alone].tolist()) == {3}
    assert re.search(r"\nabout [\d,]+ \([\d,]+ to [\d,]+\) of 145 labels are wrong; ", done.out)


def test_a_thousand_classes_work(cli: Cli, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    centers = 10 * random.normal(size=(1000, 16))
    labels = np.arange(2000) % 1000
    features = (centers[labels] + random.normal(size=(2000, 16))).astype(np.float32)
    path = write_npz(tmp_path / "f.npz", train=features, train_labels=labels)
    done = clean(cli, path, "--out", tmp_path / "run", "--epochs", 2, "--set", "unflip.steps=30")
    assert "2,000 examples with 16 features in 1000 classes" in done.out
    assert len(Run(tmp_path / "run").labels()) == 2000


def test_where_nothing_looks_wrong_it_says_so(cli: Cli, tmp_path: Path) -> None:
    done = clean(cli, write_npz(tmp_path / "f.npz", **blobs()), "--out", tmp_path / "run")
    assert " of 150 labels are wrong; 0 label issues; " in done.out
    assert ("unflip review" in done.out) == bool(rows(tmp_path / "run" / "label_issues.csv"))
    assert done.out.splitlines()[-1].startswith(f"  unflip predict {tmp_path / 'run'} --data NEW")
    assert issues(tmp_path / "run" / "label_issues.csv") == []


def test_few_broken_images_are_left_out_and_many_are_refused(cli: Cli, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = (photos, "--out", out, "--backbone", "tiny")
    for i in range(9, 12):
        (photos / NAMES[i % 3] / f"{i:03}.png").write_text("no image")
    refused = cli("clean", *arguments)
    assert refused.code == 2
    assert ".png: not an image (and 2 more); to leave such images out: --skip-broken" in refused.err
    assert not out.exists()
    done = clean(cli, *arguments, "--skip-broken")
    assert f"3 broken images skipped: {out / 'skipped.csv'}" in done.out
    assert len(rows(out / "skipped.csv")) == 3
    result = Run(out).result
    assert (result["data"], result["skipped"]) == ("photos", 3)
    again = clean(cli, out / "embedded.npz", "--out", tmp_path / "again", "--epochs", 2)
    assert "3 broken images skipped" in again.out
    for i in range(12, 33):
        (photos / NAMES[i % 3] / f"{i:03}.png").write_text("no image")
    refused = cli("clean", *arguments, "--skip-broken", "--force")
    assert refused.code == 2
    assert "24 of its 120 images cannot be read" in refused.err
    assert (out / "label_issues.csv").exists()  # of the run before


def test_decisions_by_index_and_path_are_taken_where_images_were_left_out(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    (photos / "blue" / "005.png").write_text("no image")
    arguments = (photos, "--backbone", "tiny", "--epochs", 4, "--skip-broken")
    clean(cli, *arguments, "--out", tmp_path / "run")
    paths = Run(tmp_path / "run").labels(["id"])["id"].to_pylist()
    decided = [f"{i},{paths[i]},red" for i in (0, 60, len(paths) - 1)]
    (tmp_path / "reviewed.csv").write_text("\n".join(["index,path,label", *decided]) + "\n")
    clean(cli, *arguments, "--out", tmp_path / "again", "--reviewed", tmp_path / "reviewed.csv")
    reviewed = Run(tmp_path / "again").labels(["reviewed"])["reviewed"].to_numpy()
    assert np.flatnonzero(reviewed).tolist() == [0, 60, len(paths) - 1]


def test_labels_may_be_in_a_file_of_their_own(cli: Cli, photos: Path, tmp_path: Path) -> None:
    content = blobs()
    labels = content["train_labels"].copy()
    labels[:5] = (labels[:5] + 1) % 3
    np.save(tmp_path / "x.npy", content["train"])
    np.save(tmp_path / "y.npy", labels)
    refused = cli("clean", tmp_path / "x.npy", "--out", tmp_path / "run")
    assert refused.code == 2
    assert "give a file with --labels" in refused.err
    clean(cli, tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--out", tmp_path / "run")
    assert {int(row["index"]) for row in issues(tmp_path / "run" / "label_issues.csv")} >= {*range(5)}
    (tmp_path / "colors.csv").write_text(
        "path,label\n"
        + "".join(
            f"{path.relative_to(photos).as_posix()},{NAMES[int(path.stem) % 3]}\n" for path in photos.rglob("*.png")
        )
    )
    out = tmp_path / "photo-run"
    clean(cli, photos, "--labels", tmp_path / "colors.csv", "--out", out, "--backbone", "tiny")
    assert issues(out / "label_issues.csv") == []  # all pictures are labeled by their color there


def test_the_features_of_a_killed_call_are_not_lost(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from helpers import Crash

    def die(*args: object, **options: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(module, "train_run", die)
        with pytest.raises(Crash):
            module.plan_cleaning(photos, tmp_path / "run", backbone="tiny", device="cpu").execute()
    tiny_backbone.seen.clear()
    clean(cli, photos, "--out", tmp_path / "run", "--backbone", "tiny")
    assert tiny_backbone.seen == []


_OPENED: list[str] | None = None


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _OPENED is not None:
        _OPENED.append(str(arguments[0]))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file that this process opens from now on, whoever opens it."""
    if not hasattr(sys, "_unflip_records_opens"):
        sys.addaudithook(_record)  # which cannot be taken back
        sys._unflip_records_opens = True  # type: ignore[attr-defined]
    found: list[str] = []
    monkeypatch.setattr(sys.modules[__name__], "_OPENED", found)
    return found


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_a_file_of_features_is_read_once_and_a_table_for_its_report_again(
    cli: Cli, tmp_path: Path, opened: list[str], kind: str
) -> None:
    data = tmp_path / f"data.{kind}"
    if kind == "npz":
        write_npz(data, **blobs())
    else:
        table_of(blobs(), data)
    options = [] if kind == "npz" else ["--label-column", "kind", "--ignore", "town"]
    opened.clear()
    clean(cli, data, "--out", tmp_path / "run", *options)
    readings = [path for path in opened if path == str(data)]
    # of a table: its header several times, such as to find the loader; all of it to train, and for the report
    assert len(readings) <= (1 if kind == "npz" else 12)


def test_every_way_to_ask_names_the_same_label_issues(tmp_path: Path) -> None:
    """Also under a method that corrects nothing."""
    content = blobs()
    content["train_labels"][:9] = (content["train_labels"][:9] + 1) % 3
    data = write_npz(tmp_path / "data.npz", **content)
    for method in ("standard", "mddc"):
        cleaned = unflip.clean(data, tmp_path / method, method=method, device="cpu")
        listed = sorted(cleaned.issues.query("issue == 'label_issue'")["index"])
        assert 7 <= len(listed) <= 12
        marked = [
            int(row["index"]) for row in rows(cleaned.folder / "label_issues.csv") if row["is_label_issue"] == "true"
        ]
        assert sorted(marked) == listed
        examples = Examples(cleaned)
        page = examples.page(Filter(differs=True), np.zeros(len(examples), np.uint8), count=1000)
        assert sorted(page.indices) == listed
    found = unflip.find_label_errors(
        content["train"], content["train_labels"], method="standard", random_state=0, device="cpu"
    )
    table = pa.table(found.ranked)
    assert (
        table["is_label_issue"].to_pylist()
        == (table["given_label"].to_numpy() != table["suggested_label"].to_numpy()).tolist()
    )
    assert 7 <= sum(table["is_label_issue"].to_pylist()) <= 12


@pytest.mark.parametrize("method", ["unflip", "plc"])
def test_every_output_has_the_same_numbers(cli: Cli, tmp_path: Path, method: str) -> None:
    content = blobs(train=240)
    content["train"] += np.random.default_rng(1).normal(size=content["train"].shape).astype(np.float32)
    content["train_labels"][:24] = (content["train_labels"][:24] + 1) % 3
    data = write_npz(tmp_path / "data.npz", **content)
    (tmp_path / "reviewed.csv").write_text("index,label\n0,0\n100,1\n")
    out = tmp_path / "run"
    done = clean(cli, data, "--out", out, "--method", method, "--reviewed", tmp_path / "reviewed.csv")
    run = Run(out)
    table, result = run.labels(), run.result
    quality, reviewed = table["label_quality"].to_numpy(), table["reviewed"].to_numpy()
    differs = table["given_label"].to_numpy() != table["suggested_label"].to_numpy()
    listed = int((differs & ~reviewed).sum())
    doubtful = int(((quality < 0.9) & ~differs & ~reviewed).sum())
    wrong = float((1 - quality.astype(np.float64)).sum())
    assert listed >= 15
    assert doubtful >= 1
    low, high = result["label_summary"]["low"], result["label_summary"]["high"]
    told = f"about {wrong:.0f} ({low:.0f} to {high:.0f}) of 238 unreviewed labels are wrong; {listed} label issues; "
    told += f"{doubtful} more {'is' if doubtful == 1 else 'are'} worth a look"
    assert f"\n{told}\n" in done.out
    assert result["noise_rate_estimate"] == pytest.approx(wrong / 238, rel=1e-5)
    flags = [row["is_label_issue"] for row in rows(out / "label_issues.csv")]
    assert flags == ["true"] * listed + ["false"] * doubtful
    report = " ".join(re.sub("<[^>]*>", " ", (out / "report.html").read_text("utf-8")).replace("\xa0", " ").split())
    assert f"A{told[1:]}." in report
    with open_review(out, reviewer="ann") as review:
        about, nobody = review.about(), np.zeros(240, np.uint8)
        assert (about["summary"], about["label_issues"], about["doubtful"]) == (told, listed, doubtful)
        assert sum(count for *_, count in about["pairs"]) == listed
        assert review.examples.page(Filter(listed=True), nobody, count=1).total == listed + doubtful
        assert review.examples.page(Filter(differs=True), nobody, count=1).total == listed
    if method == "unflip":
        assert (quality[differs & ~reviewed] < 0.5).all()
        assert (table["changed"].to_numpy() == differs).all()
    mask = np.isin(np.arange(240), [0, 100])
    model = unflip.UnflipClassifier(method, random_state=0).fit(content["train"], content["train_labels"], trusted=mask)
    share = 1 - model.label_quality_[~mask].astype(np.float64)
    assert model.noise_rate_ == pytest.approx(share.mean(), rel=1e-5)
    assert model.noise_rate_interval_[0] <= model.noise_rate_ <= model.noise_rate_interval_[1]


def test_python_does_what_the_command_does(cli: Cli, photos: Path, tmp_path: Path) -> None:
    cleaned = unflip.clean(photos, tmp_path / "python", backbone="tiny", device="cpu")
    clean(cli, photos, "--out", tmp_path / "command", "--backbone", "tiny")
    for name in ("label_issues.csv", "labels.csv"):
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert cleaned.report_path.exists()
    assert "path" in cleaned.issues.columns
    with pytest.raises(ConfigError, match="unknown option 'backbon', did you mean 'backbone'"):
        unflip.clean(photos, tmp_path / "other", backbon="tiny")


BAD: dict[str, tuple[list[str], list[str]]] = {
    "nothing there": (["no", "--out", "out"], ["No such file or folder: no"]),
    "images but no class folders": (
        ["loose", "--out", "out"],
        ["images but no class folders in it; give a file with --labels"],
    ),
    "a run in the way": (["good.npz", "--out", "old"], ["old: holds files that are not ours"]),
    "one class only": (["lonely", "--out", "out"], ["1 class among 2 labels; at least two are needed"]),
    "one class in a table": (["one.csv", "--out", "out"], ["1 class among 2 labels"]),
    "a label column that is not there": (
        ["t.csv", "--label-column", "species", "--out", "out"],
        ["unknown column 'species'", "c0", "kind", "town"],
    ),
    "no label column named": (["t.csv", "--out", "out"], ["among c0, c1", "--label-column"]),
    "text among the numbers": (
        ["t.csv", "--label-column", "kind", "--numeric", "town", "--out", "out"],
        ["column 'town', row 0: 'Rome' is not a number"],
    ),
    "an unknown method": (["good.npz", "--out", "out", "--method", "unflp"], ["unknown method 'unflp'", "unflip"]),
    "an unknown backbone": (["two", "--out", "out", "--backbone", "resnet"], ["unknown backbone 'resnet'"]),
    "a file in the way": (["good.npz", "--out", "t.csv"], ["t.csv is a file; name a folder"]),
    "reviewed labels of unknown items": (
        ["good.npz", "--out", "out", "--reviewed", "reviewed.csv"],
        ["reviewed.csv, row 0: index '900' is not an integer from 0"],
    ),
    "reviewed labels of unknown images": (
        ["two", "--out", "out", "--backbone", "tiny", "--reviewed", "pictures.csv"],
        ["pictures.csv", "row 0 ('c/9.png')"],
    ),
    "an unknown device": (["good.npz", "--out", "out", "--device", "tpu"], ["unknown device 'tpu'"]),
    "an image size of nothing": (["two", "--out", "out", "--image-size", "0"], ["data.image_size = 0"]),
    "weights that are not there": (
        ["two", "--out", "out", "--backbone", "tiny", "--weights", "no.pth"],
        ["weights no.pth: No such file"],
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_npz(folder / "good.npz", **blobs())
    table_of(blobs(), folder / "t.csv")
    (folder / "old").mkdir()
    (folder / "old" / "config.toml").touch()
    (folder / "one.csv").write_text("x,label\n1,a\n2,a\n")
    (folder / "reviewed.csv").write_text("index,label\n900,0\n")
    (folder / "pictures.csv").write_text("path,label\nc/9.png,a\n")
    for i in range(2):
        write_picture(folder / "loose" / f"{i}.png", 0, (20, 20))
        write_picture(folder / "lonely" / "cat" / f"{i}.png", 0, (20, 20))
        write_picture(folder / "two" / "ab"[i] / f"{i}.png", 0, (20, 20))
    return folder


@pytest.mark.parametrize(("arguments", "fragments"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_with_code_two_and_nothing_is_written(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], fragments: list[str]
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    done = cli("clean", *arguments)
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    for fragment in fragments:
        assert fragment in done.err
    assert sorted(place.rglob("*")) == before


def test_a_second_command_is_refused_until_the_last_file_of_the_first_is_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list, the issues and the report belong to the same lock as the training."""
    first = table_of(blobs(), tmp_path / "first.csv")
    second = table_of(blobs(seed=1, train=60), tmp_path / "second.csv", wrong=2)
    refused: list[Outcome] = []

    def at(name: str) -> None:
        own = getattr(module, name)

        def meanwhile(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(module, name, own)
            refused.append(cli("clean", second, "--label-column", "kind", "--out", tmp_path / "run", "--force"))
            refused.append(cli("report", tmp_path / "run"))
            return own(*args, **options)

        monkeypatch.setattr(module, name, meanwhile)

    for name in ("list_label_issues", "run_checks", "report_finished"):
        at(name)
    clean(cli, first, "--label-column", "kind", "--out", tmp_path / "run", "--epochs", 3)
    assert len(refused) == 6
    for outcome in refused:
        assert outcome.code == 2
        assert outcome.err.endswith("run: another process is using this run; wait until it has finished\n")
    assert max(int(row["index"]) for row in issues(tmp_path / "run" / "label_issues.csv")) < 150
    assert Run(tmp_path / "run").labels().num_rows == 150


def test_clean_takes_a_configuration_and_settings(cli: Cli, tmp_path: Path) -> None:
    """Precedence: sizes by the number of examples < file < --set < flags."""
    data = table_of(blobs(), tmp_path / "data.csv")
    (tmp_path / "my.toml").write_text(
        "epochs = 2\nseed = 5\n[optimizer]\nlr = 0.07\nbatch_size = 30\n[mlp]\nhidden = [24]\n"
    )
    settings = ("--set", "mlp.hidden=[12]", "--set", "data.standardize=per-feature", "--set", "seed=6", "--seed", 7)
    mine = ("--config", tmp_path / "my.toml", *settings)
    clean(cli, data, "--label-column", "kind", "--out", tmp_path / "run", *mine)
    tree = Run(tmp_path / "run").config.tree()
    assert (tree["epochs"], tree["seed"], tree["method"], tree["select"]) == (2, 7, "unflip", "last")
    assert (tree["optimizer"]["lr"], tree["optimizer"]["batch_size"]) == (0.07, 30)
    assert tree["mlp"]["hidden"] == [12]
    assert tree["data"]["standardize"] == "per-feature"
    again = tmp_path / "run" / "config.toml"
    clean(cli, data, "--label-column", "kind", "--out", tmp_path / "again", "--config", again)
    assert Run(tmp_path / "again").config.tree() == tree


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("mlp.hiden=[3]", "did you mean 'mlp.hidden'"),
        ("plc.warmup=1", "section 'plc' is not used"),
        ("data.image_size=64", "data.image_size is not used"),
        ("data=3", "data = 3: must be a section"),
        ("network=preact_resnet8", "clean trains on features; use `unflip train`"),
        ("optimizer.batch_size=0", "optimizer.batch_size = 0"),
        ("optimizer=3", "optimizer"),
    ],
)
def test_a_wrong_setting_of_clean_is_one_line(cli: Cli, tmp_path: Path, setting: str, said: str) -> None:
    data = write_npz(tmp_path / "data.npz", **blobs())
    done = cli("clean", data, "--out", tmp_path / "run", "--set", setting)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err
    assert not (tmp_path / "run").exists()


def test_settings_of_the_data_reach_the_embedded_images(cli: Cli, photos: Path, tmp_path: Path) -> None:
    names = """data.classes=["red", "green", "blue", "gray"]"""
    clean(cli, photos, "--out", tmp_path / "run", "--backbone", "tiny", "--epochs", 2, "--set", names)
    run = Run(tmp_path / "run")
    assert run.class_names == ["red", "green", "blue", "gray"]
