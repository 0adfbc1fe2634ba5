"""What all tests share: one thread each, a small separable problem, the command line inside this process."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for every process that a test starts
# Some virtual machines announce AMX and die of it (illegal instruction) in bfloat16; float32 never uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from helpers import Outcome, blobs, write_npz

settings.register_profile("unflip", deadline=None)  # machines are shared, so a test's time says nothing
settings.load_profile("unflip")


def pytest_configure() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A feature file with three classes that are easy to tell apart: 150 to train, 60 to test, 6 columns."""
    return write_npz(tmp_path_factory.mktemp("features") / "blobs.npz", **blobs())


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command line in this process: much cheaper than a new one, which imports torch anew."""

    def run(*args: object) -> Outcome:
        from unflip.cli import main

        monkeypatch.setattr(sys, "argv", ["unflip", *map(str, args)])
        capsys.readouterr()  # what came before is not this command's
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), out, err)

    return run
