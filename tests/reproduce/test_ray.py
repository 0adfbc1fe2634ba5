"""Sweeps on a Ray cluster, a real one on this machine."""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers import blobs, write_npz
from sweeps import failures, results, sweeping, write_grid
from unflip.errors import ConfigError, MissingExtraError
from unflip.reproduce.sweep import Ray, sweep

EPOCHS = 30
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed")


@needs_ray
@pytest.mark.soak
def test_a_lost_worker_process_costs_a_cell_an_attempt_and_the_results_are_those_of_this_machine(
    tmp_path: Path,
) -> None:
    write_npz(tmp_path / "blobs.npz", **blobs())
    grid = write_grid(tmp_path / "g.toml", 'data = ["blobs.npz"]\nmethod = ["plc", "sl"]', EPOCHS, "plc.warmup = 2")
    out = tmp_path / "ray"

    def under_way() -> bool:
        return any(1 < len(path.read_text().splitlines()) < EPOCHS for path in out.glob("cells/*/metrics.jsonl"))

    def tasks() -> list[int]:
        return running.others("ray::run_cell")

    with sweeping(
        grid, "--out", out, "--data-root", tmp_path, "--backend", "ray", "--jobs", 1, "--device", "cpu"
    ) as running:
        victim = running.wait_for(lambda: under_way() and tasks())[0]
        os.kill(victim, signal.SIGKILL)
        output, err = running.process.communicate(timeout=600)
        assert (running.process.returncode, err) == (0, "")
    assert "2 done, 0 running, 0 failed, 0 left" in output
    (failure,) = failures(out)
    assert failure.startswith("WorkerCrashedError")
    sweep([str(grid)], tmp_path / "local", device="cpu", data_root=tmp_path, jobs=1)
    assert results(out) == results(tmp_path / "local")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_answers_is_an_error(address: str) -> None:
    with pytest.raises(ConfigError, match=f"--address {address}: no Ray cluster answers there .*refused"):
        Ray("cpu", threads=1, address=address)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'unflip\[ray\]'"):
        Ray("cpu", threads=1, address=None)
