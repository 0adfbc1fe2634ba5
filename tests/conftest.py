"""What all tests share: one thread each, a small separable problem, the command line inside this process."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for every process that a test starts
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # the threads of a test wait without using a processor
# Some virtual machines announce AMX and die of it (illegal instruction) in bfloat16; float32 never uses it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from hypothesis import HealthCheck, settings

from helpers import Outcome, blobs, write_npz

# machines are shared, so a test's time says nothing
settings.register_profile("unflip", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unflip")


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
OUTSIDE = (
    "UNFLIP_DATA does not name",  # features and labels that others published
    "UNFLIP_PAPER does not name",  # the source of the paper
    "the superuser may",  # about the account, not about the product
    "SCIPY_ARRAY_API is not set",  # scikit-learn's checks of arrays that we do not claim to take
)
"""Beginnings of the reasons for which a test may be skipped where ``CI=true``: they lie outside the product.

``UNFLIP_CI_MAY_SKIP`` may hold one more, for what this machine cannot have.
"""


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(NoSkips())  # a plugin, since hooks of this file would not see the doctests in src


class NoSkips:
    """Makes a failure of whatever is skipped for a reason that the product could do something about."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        return self._score((yield))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        return self._score((yield))

    def _score(self, report: Report) -> Report:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            allowed = (*OUTSIDE, *filter(None, [os.environ.get("UNFLIP_CI_MAY_SKIP")]))
            if not reason.startswith(allowed):
                report.outcome = "failed"
                report.longrepr = f"skipped, which CI does not allow: {reason}"
        return report


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
