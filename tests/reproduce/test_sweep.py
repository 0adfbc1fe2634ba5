"""Sweeps: whatever happens to them, the same comes out."""

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers import Crash, Outcome, assert_same_run, blobs, crash_after, write_npz
from sweeps import Running, failures, results, sweeping, write_grid
from unflip.engine.run import train_run
from unflip.files import LOCK, locked
from unflip.reproduce.grid import Cell
from unflip.reproduce.sweep import Progress, plan, sweep
from unflip.runs.folder import Claim, Run
from unflip.runs.options import Execution

Cli = Callable[..., Outcome]
EPOCHS = 20  # so many that a sweep can be caught in the middle of a cell


def run(grid: Path, out: Path, **options: Any) -> Progress:
    return sweep([str(grid)], out, device="cpu", **{"data_root": grid.parent} | options)


def run_nothing(grid: Path, out: Path, **options: Any) -> Progress:
    """Sweep where every cell is finished, and nothing is to be run."""
    logs = {log: log.read_text() for log in out.glob("cells/*/log.txt")}
    progress = run(grid, out, **options)
    assert {log: log.read_text() for log in out.glob("cells/*/log.txt")} == logs
    return progress


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four cells on labels of which some are wrong."""
    folder = tmp_path_factory.mktemp("grid")
    content = blobs()
    content["train_labels"][::5] = (content["train_labels"][::5] + 1) % 3
    write_npz(folder / "noisy.npz", **content)
    axes = 'data = ["noisy.npz"]\nmethod = ["plc", "cddc"]\nseed = [0, 1]'
    return write_grid(folder / "small.toml", axes, EPOCHS, "plc.warmup = 2")


@pytest.fixture(scope="module")
def undisturbed(grid: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    progress = run(grid, out, jobs=2)
    assert (len(progress.seconds), progress.failed, progress.running, progress.left) == (4, {}, {}, 0)
    return out


def assert_same_sweep(one: Path, other: Path) -> None:
    assert results(one) == results(other)
    for cell in (one / "cells").iterdir():
        assert_same_run(Run(cell), Run(other / "cells" / cell.name))


def test_a_line_of_results_is_as_documented(undisturbed: Path) -> None:
    lines = results(undisturbed)
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text("utf-8")
    for key in lines[0]:
        assert f"`{key}`" in page
    assert [line["axes"] for line in lines] == [
        {"data": "noisy.npz", "method": method, "seed": seed} for method in ("plc", "cddc") for seed in (0, 1)
    ]
    for line in lines:
        result = Run(undisturbed / "cells" / line["cell"]).result
        same = ["method", "data", "seed", "epochs", "selection", "test_accuracy", "label_accuracy", "val_accuracy"]
        same += ["quality_auroc", "score_auroc"]
        assert {key: line[key] for key in same} == {key: result[key] for key in same}
        assert line["tests"] == {"test": {"top1": line["test_accuracy"]["selected"], "top5": 1.0}}
        assert (line["grid"], line["network"], line["noise"]) == ("small", "mlp", None)


def test_finished_cells_are_not_run_again(undisturbed: Path, grid: Path) -> None:
    before = (undisturbed / "results.jsonl").read_bytes()
    assert len(run_nothing(grid, undisturbed).seconds) == 4
    assert (undisturbed / "results.jsonl").read_bytes() == before


def test_a_finished_cell_is_a_run_without_checkpoints_and_with_a_log(undisturbed: Path) -> None:
    for cell in (undisturbed / "cells").iterdir():
        names = {path.name for path in cell.iterdir()}
        assert {"log.txt", "config.toml", "result.json", "labels.csv", "model.safetensors"} <= names
        assert "checkpoints" not in names


@pytest.mark.soak
def test_a_sweep_killed_again_and_again_comes_to_the_same_end(grid: Path, tmp_path: Path, undisturbed: Path) -> None:
    out = tmp_path / "out"

    def finished() -> int:
        return len(list(out.glob("cells/*/result.json")))

    def under_way() -> bool:
        return any(
            2 < len(path.read_text().splitlines()) < EPOCHS
            for path in out.glob("cells/*/metrics.jsonl")
            if not (path.parent / "result.json").exists()
        )

    def begun() -> bool:
        return any(out.glob("cells/*/config.toml"))

    def it_is_time(running: Running, moment: Callable[[], Any]) -> Any:
        return moment() and running.others()

    moments: list[tuple[Callable[[], Any], signal.Signals]] = [
        (begun, signal.SIGKILL),
        (under_way, signal.SIGTERM),
        (lambda: finished() and under_way(), signal.SIGKILL),
    ]
    for moment, number in moments:
        with sweeping(grid, "--out", out, "--data-root", grid.parent, "--jobs", 2, "--device", "cpu") as running:
            running.wait_for(partial(it_is_time, running, moment))
            running.process.send_signal(number)
            _, err = running.process.communicate(timeout=120)
            if number == signal.SIGTERM:
                assert running.others() == []  # it ends its workers before it ends
                assert (running.process.returncode, err) == (130, "unflip: stopped\n")
        # the workers of a killed sweep have ended by themselves: `sweeping` waits for that
    assert finished()
    assert not failures(out)
    run(grid, out, jobs=2)
    assert_same_sweep(undisturbed, out)
    left_over = {path.name for path in out.rglob("*") if path.name.startswith(".") or path.name == "checkpoints"}
    assert left_over == {".unflip-lock", ".unflip-cell-lock"}  # the sweep's, and one in each cell


def in_the_middle(cell: Cell) -> bool:
    metrics = cell.folder / "metrics.jsonl"
    return metrics.exists() and 1 < len(metrics.read_text().splitlines()) < EPOCHS // 2  # what is done takes a moment


def until(happened: Callable[[Path], object], folder: Path) -> Path:
    """Try again in fresh folders until it ``happened`` there, and return that one: a quick cell may escape notice."""
    for attempt in range(20):
        if happened(folder / f"out{attempt}"):
            return folder / f"out{attempt}"
    pytest.fail("no cell was ever seen in its middle")


@pytest.mark.soak
def test_a_killed_worker_costs_a_cell_an_attempt_and_the_others_nothing(
    grid: Path, tmp_path: Path, undisturbed: Path
) -> None:
    killed: list[int] = []

    def kill_one(progress: Progress, message: str | None) -> None:
        if not killed and any(map(in_the_middle, progress.running)):
            killed.append(_workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    def lost_a_cell(out: Path) -> object:
        killed.clear()
        assert run(grid, out, jobs=2, callback=kill_one).failed == {}
        return failures(out)

    out = until(lost_a_cell, tmp_path)
    (failure,) = failures(out)
    assert "SIGKILL" in failure
    assert_same_sweep(undisturbed, out)
    assert _workers() == []


def _workers() -> list[int]:
    """Return the workers among this process's children."""
    children = [
        int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    ]
    return [pid for pid in children if b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_cell_that_fails_twice_is_reported_and_stops_no_other(cli: Cli, features: Path, tmp_path: Path) -> None:
    grid = write_grid(
        tmp_path / "g.toml", f'data = ["{features}"]\n"optimizer.lr" = [1e30, 0.05]\nmethod = ["standard"]'
    )
    done = cli("paper", "sweep", grid, "--out", tmp_path / "out", "--jobs", 1)
    assert done.code == 1
    (line,) = results(tmp_path / "out")
    assert line["axes"]["optimizer.lr"] == 0.05
    first, second = failures(tmp_path / "out")
    assert first == second
    assert "will retry" in done.out
    assert "1 done, 0 running, 1 failed, 0 left" in done.out
    assert done.err.startswith(f"failed: data = {features}, optimizer.lr = 1e+30, method = standard: {first}; see ")
    assert Path(done.err.rpartition("see ")[2].strip()).read_text().count(first) == 2


def test_a_cell_is_resumed_with_moved_data_and_foreign_locks_stay(
    grid: Path, tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "noisy.npz").write_bytes((grid.parent / "noisy.npz").read_bytes())
    out = tmp_path / "out"

    class StopError(Exception): ...

    def stop(progress: Progress, message: str | None) -> None:
        raise StopError

    with pytest.raises(StopError):
        run(grid, out, jobs=1, callback=stop)
    crash_after(monkeypatch, EPOCHS // 3)
    for cell in list(plan([str(grid)], out, data_root=grid.parent))[::2]:
        cell.prepare()
        with pytest.raises(Crash), Claim(cell.run, resume=True) as claim:
            train_run(claim, cell.run.config, Execution(device="cpu", quiet=True))
        assert len(cell.run.metrics) == EPOCHS // 3
    monkeypatch.undo()
    foreign = [folder / ".lock" for folder in (out, *(out / "cells").iterdir())]
    for lock in foreign:
        lock.write_text("not ours")
    run(grid, out, data_root=tmp_path / "moved", jobs=1)
    assert failures(out) == []
    assert {lock.read_text() for lock in foreign} == {"not ours"}
    assert_same_sweep(undisturbed, out)


def test_grids_in_one_folder_share_cells_and_keep_each_others_lines(
    undisturbed: Path, grid: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.symlink_to(undisturbed)
    other = tmp_path / "another.toml"
    other.write_text(grid.read_text().replace("seed = [0, 1]", "seed = [1]\n[axes.note]\na = {}\nb = { epochs = 20 }"))
    small = results(out)
    run_nothing(other, out, data_root=grid.parent)
    both = results(out)
    assert [line["grid"] for line in both] == ["another"] * 4 + ["small"] * 4
    assert [line["axes"]["note"] for line in both[:4]] == ["a", "b", "a", "b"]
    assert both[0]["cell"] == both[1]["cell"] == small[1]["cell"]
    assert both[4:] == small
    run_nothing(grid, out)
    assert results(out) == both


def test_keep_results_removes_everything_else(undisturbed: Path, grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    run_nothing(grid, out, keep="results")
    for cell in (out / "cells").iterdir():
        names = {path.name for path in cell.iterdir()}
        assert names == {
            "run.json",
            "config.toml",
            ".unflip-cell-lock",
            "log.txt",
            "metrics.jsonl",
            "result.json",
        }
    assert len(run_nothing(grid, out).seconds) == 4


def test_a_second_sweep_in_the_same_folder_is_refused(cli: Cli, tmp_path: Path) -> None:
    with locked(tmp_path / LOCK):
        done = cli("paper", "sweep", "smoke/digits", "--out", tmp_path)
    assert done.code == 2
    assert done.err == f"unflip: {tmp_path}: another sweep is running here; let it finish, or choose another --out\n"


def test_a_dry_run_lists_the_cells_and_writes_nothing(cli: Cli, undisturbed: Path, grid: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}
    wider = tmp_path / "small.toml"
    wider.write_text(grid.read_text().replace("[0, 1]", "[0, 2]"))
    done = cli("paper", "sweep", wider, "--out", undisturbed, "--data-root", grid.parent, "--dry-run")
    assert done.code == 0
    assert "4 cells, 2 done, 2 to do; nothing was run" in done.out
    assert done.out.count("  to do  ") == 2
    assert {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")} == before
    assert cli("paper", "sweep", wider, "--out", tmp_path / "new", "--data-root", grid.parent, "--dry-run").code == 0
    assert not (tmp_path / "new").exists()


def test_a_dry_run_refuses_the_folder_that_the_sweep_would_refuse(cli: Cli, grid: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for how in ([], ["--dry-run"]):
        done = cli("paper", "sweep", grid, "--out", tmp_path, "--data-root", grid.parent, *how)
        assert done.code == 2
        assert done.err.endswith("holds files that are not ours, such as notes.txt; name a new or an empty folder\n")


def test_a_file_of_somebody_in_the_way_of_a_cell_stays_and_stops_the_sweep(
    cli: Cli, undisturbed: Path, grid: Path, tmp_path: Path
) -> None:
    name = "log.txt"
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    cell = next((out / "cells").iterdir())
    shutil.rmtree(cell)
    Run(cell).begin()
    (cell / name).write_text("mine")
    for how in ([], ["--dry-run"]):
        done = cli("paper", "sweep", grid, "--out", out, "--data-root", grid.parent, *how)
        assert done.code == 2
        assert done.err == f"unflip: {cell / name}: is in the way, and was not written by unflip; move it elsewhere\n"
    assert (cell / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "rya"], "unknown --backend 'rya', did you mean 'ray'?"),
        (["--keep", "nothing"], "unknown --keep 'nothing'"),
        (["smoke/digits"], "grids smoke/digits, smoke/digits: names must differ"),
    ],
)
def test_wrong_options_are_one_line(cli: Cli, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = cli("paper", "sweep", "smoke/digits", "--out", tmp_path / "out", *arguments)
    assert done.code == 2
    assert done.err.startswith(f"unflip: {message}")
    assert done.err.count("\n") == 1


def test_grids_are_listed(cli: Cli) -> None:
    listed = cli("list", "grids").out
    assert "smoke/digits" in listed
    assert "features/cifar100" in listed
