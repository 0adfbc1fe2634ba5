"""The dry run: it shows configuration, columns and classes, trains nothing and writes nothing."""

import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import QUICK, Outcome, blobs, quick_train, write_npz
from unflip.api.train import dry_run
from unflip.engine.trainer import Trainer
from unflip.errors import ConfigError, RunFolderError
from unflip.progress import duration


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every sixth label wrong."""
    content = blobs(train=400)
    content["train_labels"][::6] = (content["train_labels"][::6] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


@pytest.fixture(autouse=True)
def _idle(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("a dry run trains nothing")

    if "run_of" not in request.fixturenames:
        monkeypatch.setattr(Trainer, "train_epoch", never)


@pytest.fixture
def run_of(tmp_path: Path, noisy: Path) -> Path:
    """A finished run."""
    return quick_train(noisy, tmp_path / "there", method="gce", epochs=1).folder


def test_the_text_is_the_configuration_of_the_run(noisy: Path, tmp_path: Path, run_of: Path) -> None:
    """What is not a value is a comment."""
    told = dry_run(noisy, tmp_path / "dry", method="gce", epochs=1, settings=QUICK, device="cpu")
    assert tomllib.loads(told) == tomllib.loads((run_of / "config.toml").read_text("utf-8"))
    assert not (tmp_path / "dry").exists()


def test_classes_and_columns_are_shown_within_two_seconds(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    lines = ["size,town,kind", *(f"{i / 7},{'ab'[i % 2]},{('red', 'green')[i % 3 > 0]}" for i in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    started = time.process_time()
    done = cli("train", "--data", tmp_path / "t.csv", "--label-column", "kind", "--out", tmp_path / "run", "--dry-run")
    assert time.process_time() - started < 2
    assert (done.code, done.err) == (0, "")
    assert tomllib.loads(done.out)["method"] == "unflip"
    said = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "# 60 training examples in 2 classes:" in said
    assert {"# green 40", "# red 20"} <= set(said)
    assert any(line.startswith("# size number") for line in said)
    assert not (tmp_path / "run").exists()


def test_noise_is_not_made(noisy: Path, tmp_path: Path) -> None:
    assert 'recipe = "pmd1:0.35"' in dry_run(noisy, tmp_path / "run", noise="pmd1:0.35")


def test_it_refuses_what_the_run_would_refuse(noisy: Path, tmp_path: Path, run_of: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_of.rglob("*")}
    with pytest.raises(RunFolderError, match="already contains a run"):
        dry_run(noisy, run_of)
    with pytest.raises(ConfigError, match="cuda-7"):
        dry_run(noisy, tmp_path / "run", device="cuda-7")
    dry_run(noisy, run_of, force=True)
    assert {path: path.stat().st_mtime_ns for path in run_of.rglob("*")} == before


def test_a_dry_run_of_a_resumed_run_is_refused(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    done = cli("train", "--out", tmp_path / "run", "--dry-run", "--resume")
    assert done.code == 2
    assert "cannot be combined" in done.err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0123, "0.012 s"), (3.14159, "3.1 s"), (100, "100 s"), (600, "10 min"), (9000, "2.5 h"), (1e6, "11.6 days")],
)
def test_times_are_said_with_the_figures_that_matter(seconds: float, said: str) -> None:
    assert duration(seconds) == said
