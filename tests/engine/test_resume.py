"""A run that died resumes as if nothing had happened."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import (
    QUICK,
    Crash,
    Outcome,
    assert_same_run,
    blobs,
    crash_after,
    open_dataset,
    quick_train,
    spawn,
    write_npz,
)
from unflip.data.options import DataOptions
from unflip.data.sources import ArraySource
from unflip.engine.checkpoints import data_fingerprint, difference
from unflip.errors import ConfigError, RunFolderError, UnflipWarning
from unflip.runs.folder import Run

METHOD: dict[str, Any] = {"method": "plc", "settings": {"plc.warmup": 2, "mlp.dropout": 0.2}}
"""A method that changes labels and a network that draws, so that there is something to restore."""


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = blobs()
    content["train_labels"][::5] = (content["train_labels"][::5] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


@pytest.fixture(scope="module")
def undisturbed(noisy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return quick_train(noisy, tmp_path_factory.mktemp("undisturbed") / "run", epochs=6, **METHOD)


def test_there_is_something_to_restore(undisturbed: Run) -> None:
    assert sum(line["changed"] for line in undisturbed.metrics) > 0


@pytest.mark.parametrize("epoch", [3, *(pytest.param(epoch, marks=pytest.mark.soak) for epoch in (1, 6))])
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noisy: Path, undisturbed: Run, epoch: int
) -> None:
    crash_after(monkeypatch, epoch)
    with pytest.raises(Crash):
        quick_train(noisy, tmp_path / "run", epochs=6, **METHOD)
    monkeypatch.undo()
    assert not Run(tmp_path / "run").is_finished
    resumed = quick_train(noisy, tmp_path / "run", epochs=6, resume=True, **METHOD)
    assert_same_run(undisturbed, resumed)
    assert resumed.result["selected_epoch"] == undisturbed.result["selected_epoch"]


def test_a_run_killed_between_metrics_and_checkpoint_resumes_without_arguments(
    tmp_path: Path, noisy: Path, undisturbed: Run
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, sys\n"
        "sys.path[:0] = sys.argv[1:2]\n"
        "from pathlib import Path\n"
        "from test_resume_settings import METHOD\n"
        "from helpers import quick_train\n"
        "from unflip.engine import checkpoints\n"
        "save = checkpoints.Checkpoints.save\n"
        "def save_or_die(self, tree, epoch, midway=None):\n"
        "    if epoch == 4:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    save(self, tree, epoch, midway)\n"
        "checkpoints.MAX_OVERHEAD = float('inf')\n"
        "checkpoints.Checkpoints.save = save_or_die\n"
        "quick_train(Path(sys.argv[2]), Path(sys.argv[3]), epochs=6, **METHOD)\n"
    )
    (tmp_path / "test_resume_settings.py").write_text(f"METHOD = {METHOD!r}\n")
    killed = spawn(sys.executable, script, Path(__file__).parents[1] / "support", noisy, tmp_path / "run")
    assert killed.code == -signal.SIGKILL, killed.err
    assert len(Run(tmp_path / "run").metrics) == 4
    from unflip import train

    resumed = train(None, tmp_path / "run", resume=True, device="cpu")
    assert_same_run(undisturbed, resumed)


def test_a_damaged_newest_checkpoint_costs_an_epoch_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noisy: Path, undisturbed: Run
) -> None:
    crash_after(monkeypatch, 4)
    with pytest.raises(Crash):
        quick_train(noisy, tmp_path / "run", epochs=6, **METHOD)
    monkeypatch.undo()
    newest = tmp_path / "run" / "checkpoints" / "epoch-00004.safetensors"
    os.truncate(newest, newest.stat().st_size // 2)
    message = r"epoch-00004\.safetensors: not a readable checkpoint .*resuming from the earlier epoch-00003"
    with pytest.warns(UnflipWarning, match=message):
        resumed = quick_train(noisy, tmp_path / "run", resume=True, **METHOD, epochs=6)
    assert_same_run(undisturbed, resumed)


def test_a_run_that_died_before_its_first_checkpoint_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noisy: Path, undisturbed: Run
) -> None:
    crash_after(monkeypatch, 1)
    with pytest.raises(Crash):
        quick_train(noisy, tmp_path / "run", epochs=6, **METHOD)
    monkeypatch.undo()
    (tmp_path / "run" / "checkpoints" / "epoch-00001.safetensors").unlink()
    assert_same_run(undisturbed, quick_train(noisy, tmp_path / "run", epochs=6, resume=True, **METHOD))


def test_a_finished_run_returns_at_once(tmp_path: Path, noisy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = quick_train(noisy, tmp_path / "run", epochs=2)
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}

    def fail(*args: Any, **options: Any) -> None:
        raise AssertionError("nothing is to be opened or trained")

    monkeypatch.setattr("unflip.runs.config.RunConfig.load_data", fail)
    again = quick_train(noisy, tmp_path / "run", epochs=2, resume=True)
    assert again.result == first.result
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == before


def test_more_epochs_continue_a_finished_run(tmp_path: Path, noisy: Path, undisturbed: Run) -> None:
    quick_train(noisy, tmp_path / "run", epochs=3, **METHOD)
    longer = quick_train(noisy, tmp_path / "run", epochs=6, resume=True, **METHOD)
    assert_same_run(undisturbed, longer)
    assert longer.result["epochs"] == 6


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"seed": 1}, "seed = 0, now it is 1"),
        ({"settings": {"optimizer.lr": 0.5}}, r"optimizer\.lr = 0\.05, now it is 0\.5"),
        ({"limit": 100}, r"data\.limit = None, now it is 100"),
        ({"select": "last"}, "select = noisy-val, now it is last"),
        ({"settings": {"mlp.hidden": [16, 16]}}, r"mlp\.hidden = \[16\], now it is \[16, 16\]"),
    ],
)
def test_another_configuration_is_refused_by_its_key(
    tmp_path: Path, noisy: Path, change: dict[str, Any], key: str
) -> None:
    quick_train(noisy, tmp_path / "run", epochs=1, method="plc")
    with pytest.raises(ConfigError, match=rf"was started with {key}; .*--force"):
        quick_train(noisy, tmp_path / "run", epochs=1, method="plc", resume=True, **change)


def test_a_changed_default_of_the_command_does_not_undo_the_run(tmp_path: Path, noisy: Path) -> None:
    """What is not said on resuming comes from the run, not from the defaults."""
    from unflip import train

    train(noisy, tmp_path / "run", settings=QUICK, epochs=1, seed=3, method="sl")
    longer = train(None, tmp_path / "run", epochs=2, resume=True)
    assert (longer.result["method"], longer.result["seed"], longer.result["epochs"]) == ("sl", 3, 2)


def test_there_must_be_something_to_resume(tmp_path: Path, noisy: Path) -> None:
    with pytest.raises(RunFolderError, match="no run to resume"):
        quick_train(noisy, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def swap_labels(content: dict[str, Any]) -> None:
    content["train_labels"] = content["train_labels"][::-1].copy()


def swap_rows(content: dict[str, Any]) -> None:
    same = (content["train_labels"] == content["train_labels"][0]).nonzero()[0][:2]
    content["train"][same] = content["train"][same[::-1]]


def drop_rows(content: dict[str, Any]) -> None:
    for name in ("train", "train_labels"):
        content[name] = content[name][:100]


def name_classes(content: dict[str, Any]) -> None:
    content["class_names"] = np.array(["a", "b", "c"])


OTHER_DATA: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "labels": (swap_labels, "labels, splits or names of the data have changed since the run started"),
    "inputs": (swap_rows, "inputs of the data have changed since the run started"),
    "fewer rows": (drop_rows, "labels, splits or names of the data have changed since the run started"),
    "class names": (name_classes, "labels, splits or names of the data have changed since the run started"),
}


@pytest.mark.parametrize(("change", "message"), OTHER_DATA.values(), ids=OTHER_DATA)
def test_other_data_is_refused_and_says_what_is_different(
    cli: Callable[..., Outcome], noisy: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = dict(np.load(noisy))
    data = write_npz(tmp_path / "data.npz", **content)
    run = quick_train(data, tmp_path / "run", epochs=1, method="plc", settings={"plc.warmup": 1})
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    before[run.folder / ".unflip-review-lock"] = b""  # held while the data is compared
    change(content)
    write_npz(data, **content)
    done = cli("train", "--out", run.folder, "--resume", "--epochs", 2, "--device", "cpu", "--quiet")
    error = f"unflip: {run.folder}: {message}; resume with the same data, or start over with --force\n"
    assert done == Outcome(2, "", error)
    assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before


def test_examples_are_known_by_their_names_too() -> None:
    dataset = open_dataset(DataOptions(path="digits"))
    assert difference(data_fingerprint(dataset), data_fingerprint(dataset)) is None
    ids = np.arange(len(dataset.given)).astype(np.str_)
    trains = (replace(dataset.train, ids=names) for names in (ids, ids[::-1]))
    named, renamed = (data_fingerprint(replace(dataset, train=train)) for train in trains)
    assert difference(named, renamed) == "labels, splits or names of the data have changed since the run started"


def test_another_way_of_rounding_is_no_other_data() -> None:
    before = data_fingerprint(open_dataset(DataOptions(path="digits")))
    now = before | {"inputs": before["inputs"] * (1 + 1e-5)}
    assert difference(before, now) is None
    assert difference(before, now | {"inputs": before["inputs"] * 1.01}) is not None


def test_of_large_data_evenly_spaced_rows_are_looked_at() -> None:
    array = np.zeros((300_000, 200), np.float32)
    dataset = open_dataset(DataOptions(path="digits"))
    dataset = replace(dataset, train=replace(dataset.train, opened=ArraySource(array)))
    assert len(data_fingerprint(dataset)["inputs"]) == 2**25 // 200
