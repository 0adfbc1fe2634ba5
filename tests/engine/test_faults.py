"""Every write fails once: in one line, earlier files stay intact, and the run can be resumed."""

import errno
import itertools
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from safetensors import SafetensorError

import tiny_backbone
import unflip.files
from helpers import Crash, Outcome, assert_same_run, blobs, quick_train, write_npz
from pictures import write_picture
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
Break = Callable[[pytest.MonkeyPatch, int], None]
"""Lets the n-th write fail, until ``monkeypatch.undo()``."""
ARGUMENTS = ["--method", "mddc", "--epochs", "2", "--set", "plc.warmup=1", "--set", "optimizer.batch_size=64"]
ARGUMENTS += ["--set", "mlp.hidden=[8]", "--device", "cpu", "--quiet"]
_WRITERS: list[tuple[Any, str]] = [
    (Path, "write_text"),
    (unflip.files, "save_file"),
    (np.lib.format, "write_array"),
    (np.lib.format, "write_array_header_1_0"),  # of arrays that are written in pieces
    (pyarrow.parquet, "write_table"),
    (pyarrow.csv, "write_csv"),
    (Path, "write_bytes"),
]
"""Everything by which files get their content."""


def at(owner: Any, name: str, error: BaseException) -> Break:
    """Let the n-th call of a function fail."""

    def install(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        plain, calls = getattr(owner, name), itertools.count(1)

        def failing(*args: Any, **options: Any) -> Any:
            if next(calls) == number:
                raise error
            return plain(*args, **options)

        monkeypatch.setattr(owner, name, failing)

    return install


def failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def halfway(number_of_error: int) -> Break:
    """Let the n-th writer, whichever library's it is, stop in the middle of the file with what it would raise."""
    reason = os.strerror(number_of_error)

    def install(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        calls = itertools.count(1)
        for owner, name in _WRITERS:
            monkeypatch.setattr(owner, name, stopping(getattr(owner, name), name, calls, number))

    def stopping(plain: Any, name: str, calls: "itertools.count[int]", number: int) -> Any:
        def write(*args: Any, **options: Any) -> Any:
            done = plain(*args, **options)
            if next(calls) != number:
                return done
            paths = [arg if isinstance(arg, Path) else Path(arg.name) for arg in args if hasattr(arg, "name")]
            if paths:  # else it is a member of an archive
                os.truncate(paths[0], paths[0].stat().st_size // 2)
            if name == "save_file":
                raise SafetensorError(f"Error while serializing: I/O error: {reason} (os error {number_of_error})")
            if name in ("write_table", "write_csv"):
                raise OSError(number_of_error, f"Error writing bytes to file. Detail: {reason}")
            raise failure(number_of_error)

        return write

    return install


@contextmanager
def no_larger_than(size: int) -> Iterator[Callable[[], None]]:
    """Yield what makes the system refuse to write files beyond a size, in every library; lift it at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def limited(monkeypatch: pytest.MonkeyPatch, number: int, limit: Callable[[], None]) -> None:
    """Set the limit when the n-th file is made."""
    plain, calls = tempfile.mkdtemp, itertools.count(1)

    def make(*args: Any, **options: Any) -> Any:
        if next(calls) == number:
            limit()
        return plain(*args, **options)

    monkeypatch.setattr(tempfile, "mkdtemp", make)


FAULTS: dict[str, Break] = {
    "full disk when a file is made": at(tempfile, "mkdtemp", failure(errno.ENOSPC)),
    "full disk in the middle of a file": halfway(errno.ENOSPC),
    "broken disk in the middle of a file": halfway(errno.EIO),
    "full disk at the flush": at(os, "fsync", failure(errno.ENOSPC)),
    "broken disk at the flush": at(os, "fsync", failure(errno.EIO)),
    "full disk at the rename": at(Path, "replace", failure(errno.ENOSPC)),
    "lost permission": at(Path, "replace", PermissionError(errno.EACCES, os.strerror(errno.EACCES))),
    "crash before the rename": at(Path, "replace", Crash()),
}
LIMIT = "the system's limit of a file's size"
"""The fault that is no monkeypatch: the system itself refuses, wherever the writer is compiled."""


@contextmanager
def broken(monkeypatch: pytest.MonkeyPatch, fault: str, number: int) -> Iterator[None]:
    """Let the ``number``-th write fail."""
    with monkeypatch.context() as patch, no_larger_than(0) as limit:
        if fault == LIMIT:
            limited(patch, number, limit)
        else:
            FAULTS[fault](patch, number)
        yield


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = blobs(train=120)
    content["train_labels"][::5] = (content["train_labels"][::5] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


def survive(cli: Cli, monkeypatch: pytest.MonkeyPatch, noisy: Path, out: Path, fault: str, number: int) -> bool:
    """Let a run fail in its ``number``-th write and resume it; return whether it had as many."""
    start = ["train", "--data", noisy, "--out", out, *ARGUMENTS]
    with broken(monkeypatch, fault, number):
        try:
            done = cli(*start)
        except Crash:
            done = Outcome(2, "", f"unflip: cannot write {out}: crash\n")
    assert done.out == ""
    assert done.err.count("\n") <= 1
    if done.code == 0:
        assert done.err == "" or "the report could not be written" in done.err
        return False
    assert done.code == 2
    assert done.err.startswith("unflip: cannot write ")
    assert done.err.endswith("\n")
    if "checkpoints" in done.err:
        assert "earlier checkpoints are intact: fix the cause and resume with: unflip train --out " in done.err
    assert [path for path in out.rglob(".*") if path.name != ".unflip-lock"] == []
    again = cli("train", "--out", out, "--resume", "--quiet") if Run(out).config_path.exists() else cli(*start)
    assert again == Outcome(0, "", "")
    return True


def undisturbed(cli: Cli, noisy: Path, out: Path) -> Run:
    assert cli("train", "--data", noisy, "--out", out, *ARGUMENTS).code == 0
    return Run(out)


def test_a_run_survives_the_failure_of_any_write(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, noisy: Path, tmp_path: Path
) -> None:
    """Each fault in another write; the soak test lets each happen everywhere."""
    expected = undisturbed(cli, noisy, tmp_path / "undisturbed")
    for number, fault in enumerate([*FAULTS, LIMIT], 2):
        assert survive(cli, monkeypatch, noisy, tmp_path / str(number), fault, number), fault
        assert_same_run(expected, Run(tmp_path / str(number)))


@pytest.mark.soak
@pytest.mark.parametrize("fault", [*FAULTS, LIMIT])
def test_a_run_survives_every_fault_in_every_write(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, noisy: Path, tmp_path: Path, fault: str
) -> None:
    expected = undisturbed(cli, noisy, tmp_path / "undisturbed")
    for number in itertools.count(1):
        if not survive(cli, monkeypatch, noisy, tmp_path / str(number), fault, number):
            break
        assert_same_run(expected, Run(tmp_path / str(number)))
    assert number > 12  # configuration, two epochs, labels, model, features, Gaussians, result


def test_the_page_tells_how_many_faults_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "reliability.md").read_text("utf-8")
    assert f": {len(FAULTS) + 1} faults, each at every write |" in page
    assert f"| {len(WRITING)} kinds of output, the same faults except the crash |" in page


# Other commands: what was there stays, nothing half written is left, and once the cause is gone the command works

WRITING: dict[str, list[str]] = {
    "predictions.csv": ["predict", "RUN", "--data", "noisy.npz", "--out", "OUT"],
    "predictions.parquet": ["predict", "RUN", "--data", "noisy.npz", "--out", "OUT"],
    "labels.csv": ["export", "RUN", "--out", "OUT"],
    "labels.parquet": ["export", "RUN", "--format", "parquet", "--out", "OUT"],
    "labels.jsonl": ["export", "RUN", "--format", "jsonl", "--out", "OUT"],
    "tasks.json": ["export", "RUN", "--format", "label-studio", "--out", "OUT"],
    "report.html": ["report", "RUN", "--out", "OUT"],
    "noise.npy": ["corrupt", "--data", "noisy.npz", "--noise", "sym:0.3", "--out", "OUT", "--quiet"],
    "noise.csv": ["corrupt", "--data", "noisy.npz", "--noise", "sym:0.3", "--out", "OUT", "--quiet"],
    "features.npz": ["embed", "photos", "--backbone", "tiny", "--out", "OUT", "--device", "cpu", "--quiet"],
}


@pytest.fixture(scope="module")
def place(noisy: Path) -> Path:
    """The folder of the data, with two finished runs, labels and images."""
    folder = noisy.parent
    np.save(folder / "given.npy", np.load(noisy)["train_labels"])
    for name in ("RUN", "RUN2"):
        quick_train(noisy, folder / name, epochs=2, method="mddc", settings={"plc.warmup": 1})
    for i in range(4):
        write_picture(folder / "photos" / "ab"[i % 2] / f"{i}.png", i % 2, (20, 20))
    return folder


QUICK_OUTPUTS = ("predictions.csv", "labels.parquet", "report.html", "noise.npy")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK_OUTPUTS else pytest.mark.soak) for name in WRITING]
)
def test_a_command_that_cannot_write_says_so_and_leaves_what_was_there(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path, name: str
) -> None:
    tiny_backbone.register(monkeypatch)
    monkeypatch.chdir(place)
    out = tmp_path / name
    arguments = [*(str(out) if part == "OUT" else part for part in WRITING[name]), "--force"]
    for fault in (*FAULTS, LIMIT):
        is_table = arguments[0] in ("export", "predict") and out.suffix != ".json"
        if fault.startswith("crash") or (is_table and "middle" in fault):
            continue  # tables chose their writers before they were broken; the limit of a file's size reaches them
        out.write_text("what was there")
        with broken(monkeypatch, fault, 1):
            done = cli(*arguments)
        assert (done.code, done.out) == (2, ""), (fault, done)
        assert done.err.startswith("unflip: cannot write "), (fault, done)
        assert done.err.count("\n") == 1, fault
        assert out.stem in done.err, fault  # `corrupt` writes a picture beside the labels
        left = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if ".parts" not in str(path)]
        assert left == [Path(name)], fault
        if "flush" not in fault:  # that of the folder comes after the rename
            assert out.read_text() == "what was there"
    done = cli(*arguments)
    assert done.code == 0, done.err
    assert out.read_bytes() != b"what was there"
