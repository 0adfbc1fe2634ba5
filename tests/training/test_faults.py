"""Every write of a run fails once: in one line, with what was saved before whole, and the run goes on from there."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import Crash, Outcome, assert_same_run, blobs, write_npz
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
ARGUMENTS = ["--method", "mddc", "--epochs", "2", "--set", "plc.warmup=1", "--set", "optimizer.batch_size=64"]
ARGUMENTS += ["--set", "mlp.hidden=[8]", "--device", "cpu", "--quiet"]
FAULTS: dict[str, tuple[str, Any]] = {
    "full disk": ("fsync", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "broken disk": ("fsync", OSError(errno.EIO, os.strerror(errno.EIO))),
    "lost permission": ("replace", PermissionError(errno.EACCES, os.strerror(errno.EACCES))),
    "crash before the rename": ("replace", Crash()),
}
_MOST = 60  # writes of a run


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = blobs(train=120)
    content["train_labels"][::5] = (content["train_labels"][::5] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


def fail_once(monkeypatch: pytest.MonkeyPatch, fault: str, number: int) -> None:
    """Let the ``number``-th write fail, until ``monkeypatch.undo()``."""
    where, error = FAULTS[fault]
    owner: Any = os if where == "fsync" else Path
    plain, calls = getattr(owner, where), itertools.count(1)

    def failing(*args: Any) -> Any:
        if next(calls) == number:
            raise error
        return plain(*args)

    monkeypatch.setattr(owner, where, failing)


def survive(cli: Cli, monkeypatch: pytest.MonkeyPatch, noisy: Path, out: Path, fault: str, number: int) -> bool:
    """Let a run fail in its ``number``-th write and go on; return whether it had as many."""
    start = ["train", "--data", noisy, "--out", out, *ARGUMENTS]
    with monkeypatch.context() as patch:
        fail_once(patch, fault, number)
        try:
            done = cli(*start)
        except Crash:
            done = Outcome(2, "", f"unflip: cannot write {out}: crash\n")
    if done.code == 0:
        return False
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("unflip: cannot write ")
    assert done.err.count("\n") == 1
    if "checkpoints" in done.err:
        assert "earlier checkpoints are intact: fix the cause and continue with --resume" in done.err
    assert [path for path in out.rglob(".*") if path.name != ".lock"] == []
    again = cli("train", "--out", out, "--resume", "--quiet") if Run(out).config_path.exists() else cli(*start)
    assert again == Outcome(0, "", "")
    return True


def undisturbed(cli: Cli, noisy: Path, out: Path) -> Run:
    assert cli("train", "--data", noisy, "--out", out, *ARGUMENTS).code == 0
    return Run(out)


def test_a_run_survives_the_failure_of_any_write(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, noisy: Path, tmp_path: Path
) -> None:
    """The faults take turns; the soak test lets each happen everywhere."""
    expected = undisturbed(cli, noisy, tmp_path / "undisturbed")
    for number, fault in zip(range(1, _MOST), itertools.cycle(FAULTS)):
        out = tmp_path / f"{number}"
        if survive(cli, monkeypatch, noisy, out, fault, number):
            assert_same_run(expected, Run(out))
        elif number > 12:
            return
    raise AssertionError(f"more than {_MOST} writes")


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_survives_every_fault_in_every_write(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, noisy: Path, tmp_path: Path, fault: str
) -> None:
    expected = undisturbed(cli, noisy, tmp_path / "undisturbed")
    for number in itertools.count(1):
        if not survive(cli, monkeypatch, noisy, tmp_path / str(number), fault, number):
            break
        assert_same_run(expected, Run(tmp_path / str(number)))
    assert number > 12  # configuration, two epochs, labels, model, features, Gaussians, result
