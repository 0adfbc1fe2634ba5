"""No command ever changes or removes a file that it did not write: refused, forced or killed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tiny_backbone
import unflip
from helpers import QUICK, Outcome, blobs, quick_train, write_npz
from pictures import write_picture
from unflip.api import demo
from unflip.errors import RunFolderError
from unflip.files import OwnedFolder
from unflip.review.decisions import Choice, DecisionStore, State
from unflip.review.examples import Examples
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
Snapshot = dict[Path, tuple[bytes | None, int]]
TRAIN = ["--epochs", "1", "--device", "cpu", "--quiet", "--method", "standard"]
TRAIN += ["--set", "mlp.hidden=[8]", "--set", "optimizer.batch_size=32"]


def snapshot(folder: Path) -> Snapshot:
    """Every file and folder below ``folder``: its bytes, None for a folder, and when a file last changed."""
    found: Snapshot = {}
    for path in folder.rglob("*"):
        found[path] = (None, 0) if path.is_dir() else (path.read_bytes(), path.stat().st_mtime_ns)
    return found


def assert_kept(before: Snapshot) -> None:
    """What was there is there, unchanged; there may be more."""
    for path, (content, changed) in before.items():
        assert path.exists(), f"{path} is gone"
        if content is not None:
            assert path.read_bytes() == content, f"{path} was changed"
            assert path.stat().st_mtime_ns == changed, f"{path} was written again"


OWN_FILES = (
    "notes.txt", ".tmpnotes", ".tmp/inner.txt", "checkpoints/my.pt", "tensorboard/mine.txt", "label_issues.csv",
    "issues.csv", "embedded.npz", "skipped.csv", "noise.json", "data/table.csv", ".unflip", "reviewed.csv",
    "labels (copy).csv", "lock", ".lock", "cell.json", "log.txt", "results.jsonl", "demo.png",
)  # fmt: skip
"""What a person may keep in a folder, some of it under names that a run might use."""


def put_own_files(folder: Path) -> None:
    for name in OWN_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_text(f"mine: {name}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's folder: data of every kind, their own files, and a run in which they keep some, too."""
    tiny_backbone.register(monkeypatch)
    monkeypatch.chdir(tmp_path)
    content = blobs()
    write_npz(tmp_path / "data.npz", **content)
    np.save(tmp_path / "x.npy", content["train"])
    np.save(tmp_path / "labels.npy", content["train_labels"])
    (tmp_path / "labels.csv").write_text("label\n" + "\n".join(map(str, content["train_labels"])) + "\n")
    for i in range(12):
        write_picture(tmp_path / "photos" / str(i % 2) / f"{i}.png", i % 2, (20, 20))
    for name in (
        "page.html",
        "table.csv",
        "figure.png",
        "labels.json",
        "tasks.json",
        "features.npz",
    ):
        (tmp_path / name).write_text(f"mine: {name}")
    put_own_files(tmp_path)
    run = unflip.train("data.npz", "run", epochs=1, method="standard", settings=QUICK, device="cpu")
    examples = Examples(Run(run.folder))
    store = DecisionStore(run.folder / "review.sqlite", examples.keys)
    store.decide([Choice(0, 0, State.KEPT, int(examples.given[0]))], person="p", reviewer="me", request="r")
    store.close()
    return tmp_path


COMMANDS: list[list[str]] = [
    ["train", "--data", "x.npy", "--labels", "labels.csv", "--out", ".", *TRAIN],
    ["train", "--data", "data.npz", "--out", "photos", *TRAIN],
    ["train", "--data", "data.npz", "--out", "run", *TRAIN],
    ["train", "--data", "data.npz", "--out", "new", *TRAIN],
    ["train", "--data", "data.npz", "--labels", "run/labels.csv", "--out", "run", *TRAIN],
    ["train", "--data", "run/features.npy", "--labels", "labels.npy", "--out", "run", *TRAIN],
    ["train", "--out", "run", "--resume", "--quiet"],
    ["train", "--data", "data.npz", "--out", "data.npz", *TRAIN],
    ["clean", "data.npz", "--out", ".", "--epochs", "2", "--device", "cpu", "--quiet"],
    ["clean", "data.npz", "--out", "run", "--epochs", "2", "--device", "cpu", "--quiet"],
    ["clean", "photos", "--out", "photos", "--backbone", "tiny", "--epochs", "2", "--device", "cpu", "--quiet"],
    ["clean", "photos", "--out", "run", "--backbone", "tiny", "--epochs", "2", "--device", "cpu", "--quiet"],
    ["embed", "photos", "--out", "features.npz", "--backbone", "tiny", "--device", "cpu", "--quiet"],
    ["embed", "photos", "--out", "run/labels.npz", "--backbone", "tiny", "--device", "cpu", "--quiet"],
    ["embed", "photos", "--out", "data.npz", "--backbone", "tiny", "--device", "cpu", "--quiet"],
    ["predict", "run", "--data", "data.npz", "--out", "table.csv", "--device", "cpu"],
    ["predict", "run", "--data", "x.npy", "--out", "labels.csv", "--device", "cpu"],
    ["predict", "run", "--data", "x.npy", "--out", "run/labels.csv", "--device", "cpu"],
    ["corrupt", "--data", "data.npz", "--noise", "sym:0.3", "--out", "labels.npy", "--quiet"],
    ["corrupt", "--data", "x.npy", "--labels", "labels.npy", "--noise", "sym:0.3", "--out", "labels.npy", "--quiet"],
    ["export", "run", "--out", "table.csv"],
    ["export", "run", "--out", "run/labels.csv"],
    ["export", "run", "--out", "tasks.json", "--format", "label-studio"],
    ["report", "run"],
    ["report", "run", "--out", "page.html"],
    ["review", "run", "--export", "reviewed.csv"],
    ["review", "run", "--export", "run/labels.csv"],
    ["paper", "sweep", "smoke/digits", "--out", ".", "--quiet"],
    ["paper", "sweep", "smoke/digits", "--out", "run", "--quiet"],
    ["paper", "sweep", "no/such", "--out", "swept", "--quiet"],
    ["paper", "sweep", "smoke/digits", "--out", "swept", "--backend", "ray", "--address", "127.0.0.1:1", "--quiet"],
    ["demo", "--out", ".", "--quiet"],
    ["demo", "--out", "run", "--quiet"],
    ["paper", "table", "1"],
    ["list"],
]
FORCED = ("train", "clean", "embed", "predict", "corrupt", "export", "report", "review")


def users(home: Path) -> Snapshot:
    """All that is in the person's folder but what the run in it wrote."""
    ours = {home / "run" / name for name in [*Run(home / "run").owned(), "run.json", ".unflip-lock", "review.sqlite"]}
    return {
        path: state
        for path, state in snapshot(home).items()
        if path not in ours and not any(parent in ours for parent in path.parents)
    }


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:6]))
def test_without_force_nothing_that_is_there_changes(cli: Cli, home: Path, command: list[str]) -> None:
    put_own_files(home / "run")
    before = users(home) if command == ["report", "run"] else snapshot(home)
    done = cli(*command)
    assert done.code in (0, 2), done.err
    after_lock = {path: state for path, state in before.items() if path.name not in (".unflip-lock",)}
    assert_kept(after_lock)
    if done.code == 2:
        new = [
            path
            for path in snapshot(home)
            if path not in before and path.name not in (".unflip-lock", ".unflip-review-lock")
        ]
        assert new == [], "a refused command left something behind"


@pytest.mark.parametrize(
    "command",
    [words for words in COMMANDS if words[0] in FORCED],
    ids=lambda words: " ".join(words[:6]),
)
def test_force_replaces_what_it_names_and_nothing_else(cli: Cli, home: Path, command: list[str]) -> None:
    put_own_files(home / "run")
    named = {home / word for word in command[1:] if (home / word).is_file()}
    if command[0] == "corrupt":
        named |= {home / "labels.json"}
    inputs = {home / word for flag, word in pairwise(command) if flag in ("--data", "--labels", "--clean", command[0])}
    before = {path: state for path, state in users(home).items() if path not in named or path in inputs}
    done = cli(*command, "--force")
    assert done.code in (0, 2), done.err
    assert_kept(before)


def test_a_second_forced_run_keeps_the_files_that_came_in_between(cli: Cli, home: Path) -> None:
    """The run is replaced three times; in between somebody puts files into its folders."""
    for turn in range(3):
        assert cli("train", "--data", "data.npz", "--out", "run", "--force", *TRAIN).code == 0
        (home / "run" / "checkpoints" / f"{turn}.pt").write_text("mine")
        (home / "run" / f"my-{turn}.csv").write_text("mine")
    for turn in range(3):
        assert (home / "run" / "checkpoints" / f"{turn}.pt").read_text() == "mine"
        assert (home / "run" / f"my-{turn}.csv").read_text() == "mine"


@pytest.mark.parametrize("name", ["labels.npy", "labels.json", "standard"])
def test_the_demo_replaces_only_what_a_demo_wrote(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: Path, name: str
) -> None:
    monkeypatch.setattr(demo, "METHODS", ("standard",))
    folder = tmp_path / "demo"
    OwnedFolder(folder, "demo.json").begin()
    if name == "standard":
        quick_train(features, folder / name, method="standard", epochs=1)
    else:
        (folder / name).write_text("mine")
    before = snapshot(folder)
    done = cli("demo", "--out", folder, "--quiet")
    assert done.code == 2
    assert done.err == f"unflip: {folder / name}: is in the way, and was not written by unflip; move it elsewhere\n"
    assert snapshot(folder) == before


def test_a_second_demo_replaces_the_first(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "METHODS", ("standard", "gce"))
    monkeypatch.setattr(demo, "NOISE", "sym:0.3")
    for _ in range(2):
        done = cli("demo", "--out", tmp_path / "demo")
        assert done.code == 0, done.err
        assert "suggested label" in done.out
        assert done.out.rstrip().endswith("report.html")
        (tmp_path / "demo" / "notes.txt").write_text("mine")


def test_a_lock_of_somebody_else_is_left_alone(home: Path) -> None:
    (home / "f.npz.parts").mkdir()
    (home / "f.npz.parts" / ".lock").write_text("mine")
    unflip.embed("photos", "f.npz", backbone="tiny", device="cpu")
    assert (home / "f.npz.parts" / ".lock").read_text() == "mine"
    (home / "locked").mkdir()
    (home / "locked" / ".lock-mine").write_text("mine")
    with pytest.raises(RunFolderError, match=r"holds files that are not ours, such as \.lock-mine"):
        unflip.train("data.npz", "locked", epochs=1, method="standard", settings=QUICK, device="cpu")


KILLED = {
    "train": ["train", "--data", "data.npz", "--out", "run", "--force", *TRAIN, "--epochs", "200"],
    "clean": ["clean", "data.npz", "--out", "run", "--force", "--epochs", "60", "--device", "cpu", "--quiet"],
    "sweep": ["paper", "sweep", "smoke/digits", "--out", "swept", "--jobs", "1", "--device", "cpu", "--quiet"],
}


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("train", 1),
        *(pytest.param(name, int(os.environ.get("UNFLIP_KILLS", "2")), marks=pytest.mark.soak) for name in KILLED),
    ],
)
def test_a_kill_at_any_moment_costs_nobody_else_a_file(home: Path, name: str, kills: int) -> None:
    put_own_files(home / "run")
    for own in ("label_issues.csv", "issues.csv", "skipped.csv"):
        (home / "run" / own).unlink()  # else `clean` would be refused
    before = users(home)
    moments = random.Random(name)
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "unflip", *KILLED[name]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        time.sleep(moments.uniform(1.5, 6.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert_kept(before)
    shutil.rmtree(home / "swept", ignore_errors=True)
