"""``unflip review``: what goes wrong is one line, and the export needs no server."""

import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import Outcome, quick_train
from reviewing import decided
from unflip.errors import ConfigError
from unflip.review.decisions import Choice, State
from unflip.review.review import open_review

Cli = Callable[..., Outcome]


@pytest.fixture(scope="module")
def run(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    quick_train(features, folder, epochs=1)
    return folder


def assert_refused(outcome: Outcome, *parts: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    for part in parts:
        assert part in outcome.err


def test_a_folder_without_a_finished_run_is_refused(cli: Cli, tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        assert_refused(cli("review", folder), str(folder), "not a finished run")
        assert_refused(cli("review", folder, "--export", tmp_path / "a.csv"), "not a finished run")
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_refused(cli: Cli, run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused(cli("review", run, "--port", port), f"--port {port}", "in use", "--port 0")


def test_a_host_that_is_none_is_refused(cli: Cli, run: Path) -> None:
    assert_refused(cli("review", run, "--host", "no such host"), "--host no such host")


@pytest.mark.parametrize("name", ["  ", "a\nb", "n" * 81])
def test_a_name_that_cannot_be_shown_is_refused(cli: Cli, run: Path, name: str) -> None:
    assert_refused(cli("review", run, "--reviewer", name), "--reviewer", "printable")


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_extra_says_what_to_install(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in ("unflip.review.pages", "unflip.review.pages"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert_refused(cli("review", run), package, "pip install 'unflip[review]'")


def test_data_that_has_moved_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    from pictures import write_picture

    for i in range(12):
        write_picture(tmp_path / "photos" / f"class{i % 2}" / f"{i}.png", i % 2, (20, 20))
    run = quick_train(tmp_path / "photos", tmp_path / "run", epochs=1, network="mlp").folder
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    assert_refused(cli("review", run), "photos", "if the data was moved, name its location with --data")
    with open_review(run, reviewer="ann", data=str(tmp_path / "elsewhere")) as review:
        assert review.pictures is not None
        review.decisions.decide([Choice(1, 0, State.KEPT, 0)], person="x", reviewer="ann", request="request")
    assert cli("review", run, "--export", tmp_path / "out.csv").code == 0  # which needs no pictures
    assert (tmp_path / "out.csv").read_text().startswith("index,path,label,decision,given_label,digest,annotator\n")


def test_rows_that_have_moved_are_asked_for(cli: Cli, features: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copy(features, tmp_path / "moved.npz"))
    run = quick_train(moved, tmp_path / "run", epochs=1).folder
    moved.unlink()
    assert_refused(cli("review", run), "moved.npz", "if the data was moved, name its location with --data\n")


def test_the_export_is_written_while_others_decide(cli: Cli, features: Path, tmp_path: Path) -> None:
    run = quick_train(features, tmp_path / "run", epochs=1).folder
    target = tmp_path / "reviewed.csv"
    assert_refused(cli("review", run, "--export", target), "not reviewed yet")
    assert_refused(cli("review", run, "--export", tmp_path / "reviewed.txt"), "--export", ".csv")
    with open_review(run, reviewer="ann") as review:
        choices = [Choice(4, 0, State.CHANGED, 2), Choice(1, 0, State.KEPT, 0), Choice(2, 0, State.UNSURE, None)]
        review.decisions.decide(choices, person="x", reviewer="ann", request="request")
        outcome = cli("review", run, "--export", target)
        assert outcome == Outcome(0, f"2 reviewed examples: {target}\n", "")
    assert decided(target.read_text()) == "index,label,decision\n1,0,label\n4,2,label\n"
    assert_refused(cli("review", run, "--export", tmp_path / "no folder" / "a.csv"), "no folder")


def test_an_export_writes_nothing_to_the_run_also_while_decisions_wait_in_the_log(
    cli: Cli, features: Path, tmp_path: Path
) -> None:
    run = quick_train(features, tmp_path / "run", epochs=1).folder
    killed = tmp_path / "killed"
    with open_review(run, reviewer="ann") as review:
        review.decisions.decide([Choice(1, 0, State.KEPT, 0)], person="x", reviewer="ann", request="request")
        shutil.copytree(run, killed)
    assert (killed / "review.sqlite-wal").stat().st_size > 0
    for folder in (run, killed):
        before = {
            path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*")) if path.suffix != ".sqlite-shm"
        }
        assert cli("review", folder, "--export", tmp_path / f"{folder.name}.csv").code == 0
        after = {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*")) if path.suffix != ".sqlite-shm"}
        assert after == before
        assert decided((tmp_path / f"{folder.name}.csv").read_text()) == "index,label,decision\n1,0,label\n"


def test_a_name_of_the_machine_that_cannot_be_listened_on_is_one_line() -> None:
    from unflip.review.pages import listen

    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1"):
        listen("192.0.2.1", 0)
