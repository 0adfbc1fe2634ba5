"""The dry run: it tells what a run would do, with every method, and writes nothing."""

import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import QUICK, Outcome, blobs, quick_train, write_npz
from unflip.api.dry_run import dry_run
from unflip.engine import rehearsal as module
from unflip.engine.inference import scan
from unflip.engine.posterior import PosteriorFit
from unflip.engine.rehearsal import DryRun, Rehearsal
from unflip.errors import ConfigError, RunFolderError
from unflip.methods import methods
from unflip.methods.base import Standard
from unflip.progress import duration

SETTINGS: dict[str, dict[str, Any]] = {
    "lrt": {"lrt.warmup": 3, "lrt.retro_lead": 1},
    **{name: {"coteaching+.warmup": 2} for name in ("coteaching+", "coteaching+-c")},
    **{name: {"plc.warmup": 3} for name in ("plc", "mddc", "cddc")},
    **{name: {"dividemix.warmup": 3} for name in ("dividemix", "dividemix-m", "dividemix-c")},
}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every sixth label wrong."""
    content = blobs(train=400)
    content["train_labels"][::6] = (content["train_labels"][::6] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps and small scans, so that much is left out."""
    monkeypatch.setattr(module, "_STEPS_FOR", 0.0)
    monkeypatch.setattr(module, "_SCAN_FOR", 0.0)


def rehearse(data: Path, out: Path, *, settings: dict[str, Any] | None = None, **options: Any) -> DryRun:
    return dry_run(data, out, settings=QUICK | (settings or {}), device="cpu", **options).run


@pytest.mark.parametrize("method", [*methods.names(), "gce-m", "coteaching+-c"])
def test_every_method_can_be_rehearsed_and_nothing_is_written(method: str, noisy: Path, tmp_path: Path) -> None:
    told = rehearse(noisy, tmp_path / "run", method=method, epochs=8, settings=SETTINGS.get(method))
    assert list(tmp_path.iterdir()) == []
    assert sorted(epoch for stage in told.stages for epoch in stage.epochs) == list(range(1, 9))
    assert all(stage.seconds > 0 for stage in told.stages)
    assert told.evaluation > 0
    assert told.seconds > sum(len(stage.epochs) * stage.seconds for stage in told.stages)
    calibrated = [stage for stage in told.stages if stage.calibrates]
    assert bool(calibrated) == ("calibration" in told.config.parts)


def test_the_stages_are_those_of_the_method(noisy: Path, tmp_path: Path) -> None:
    told = rehearse(noisy, tmp_path / "run", method="cddc", epochs=9, settings={"plc.warmup": 3})
    assert [(list(stage.epochs), stage.corrects, stage.calibrates) for stage in told.stages] == [
        ([1, 2], False, False),
        ([3], True, False),
        ([4, 5, 6, 7, 8, 9], True, True),
    ]
    text = told.text()
    assert "epochs 1-2: train on given labels, 12 steps over 359 examples; " in text
    assert "epoch 3: train on given labels, 12 steps over 359 examples, then correct labels; " in text
    assert "epochs 4-9: train on corrected labels, 12 steps over 359 examples, then calibrate the head" in text


def test_epochs_between_calibrations_are_a_stage_of_their_own(noisy: Path, tmp_path: Path) -> None:
    settings = {"plc.warmup": 2, "calibration.every": 3}
    told = rehearse(noisy, tmp_path / "run", method="mddc", epochs=9, settings=settings)
    assert [list(stage.epochs) for stage in told.stages] == [[1], [2], [3, 6, 9], [4, 5, 7, 8]]
    assert "epochs 3, 6, ... 9: " in told.text()


def test_two_networks_and_their_division_are_told(noisy: Path, tmp_path: Path) -> None:
    told = rehearse(noisy, tmp_path / "run", method="dividemix", epochs=4, settings={"dividemix.warmup": 2})
    last = told.stages[-1]
    assert [phase.learns for phase, _ in last.passes] == [(0,), (1,)]
    text = told.text()
    assert "network 0: 12 steps over 359 examples, network 1: 12 steps over 359 examples" in text
    assert "unlabelled in 2 views" in text
    assert "hardly trained" in text


def test_what_is_printed_is_the_configuration_of_the_run(noisy: Path, tmp_path: Path) -> None:
    """The whole text is TOML: what is not a value is a comment."""
    told = rehearse(noisy, tmp_path / "dry", method="gce", epochs=2)
    run = quick_train(noisy, tmp_path / "run", method="gce", epochs=2)
    assert tomllib.loads(told.text()) == tomllib.loads(run.config_path.read_text("utf-8"))


def test_what_is_left_out_is_extrapolated(noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only steps move, an epoch takes as long as it has steps, whatever few were taken."""
    clock = 0.0
    taken = 0
    loss = Standard.loss

    def slow(self: Standard, *args: Any) -> Any:
        nonlocal clock, taken
        clock += 10.0 if not taken else 2.0  # the first may be slow, and says nothing about the others
        taken += 1
        return loss(self, *args)

    monkeypatch.setattr(Standard, "loss", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    told = rehearse(noisy, tmp_path / "run", method="standard", epochs=5, settings={"optimizer.batch_size": 4})
    assert [steps for stage in told.stages for _, steps in stage.passes] == [90]
    assert taken == 4
    assert told.stages[0].seconds == 10.0 + 89 * 2.0


def test_a_scan_is_extrapolated_and_repeated_for_every_example(
    noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[int] = []

    def watched(network: Any, source: Any, rows: torch.Tensor, *args: Any, **options: Any) -> Any:
        scanned.append(len(rows))
        return scan(network, source, rows, *args, **options)

    seen: list[tuple[int, ...]] = []
    glimpse = Rehearsal.glimpse

    def noted(self: Rehearsal, *args: Any, **options: Any) -> Any:
        found, seconds = glimpse(self, *args, **options)
        seen.append(tuple(found.logits.shape))
        return found, seconds

    monkeypatch.setattr(module, "scan", watched)
    monkeypatch.setattr(Rehearsal, "glimpse", noted)
    rehearse(noisy, tmp_path / "run", method="standard-c", epochs=1)
    assert max(scanned) == 32
    assert (359, 3) in seen


@pytest.mark.parametrize("recipe", ["pmd1:0.35 + sym:0.3", "pmd2:0.7", "pmd3:0.35"])
def test_posteriors_for_noise_are_timed_and_not_estimated(
    noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    def never(*args: Any) -> None:
        raise AssertionError("a dry run trains nothing to its end")

    monkeypatch.setattr(PosteriorFit, "__call__", never)
    told = rehearse(noisy, tmp_path / "run", method="standard", epochs=2, noise=recipe)
    assert told.posterior > 0
    assert "for the posteriors of the noise" in told.text()


def test_a_dry_run_refuses_what_the_run_would_refuse(noisy: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs clean labels"):
        rehearse(noisy, tmp_path / "run", select="clean-val", settings={"data.val_fraction": 0.1})
    with pytest.raises(ConfigError, match="needs validation examples"):
        rehearse(noisy, tmp_path / "run", select="clean-val")
    done = quick_train(noisy, tmp_path / "there", epochs=1)
    before = {path: path.stat().st_mtime_ns for path in done.folder.rglob("*")}
    with pytest.raises(RunFolderError, match="already holds a run"):
        rehearse(noisy, tmp_path / "there")
    rehearse(noisy, tmp_path / "there", force=True, method="standard", epochs=1)
    assert {path: path.stat().st_mtime_ns for path in done.folder.rglob("*")} == before


def test_the_command_prints_it_and_exits_with_zero(cli: Callable[..., Outcome], noisy: Path, tmp_path: Path) -> None:
    done = cli("train", "--data", noisy, "--out", tmp_path / "run", "--dry-run", "--method", "mddc", "--epochs", 12)
    assert (done.code, done.err) == (0, "")
    assert tomllib.loads(done.out)["method"] == "mddc"
    assert "# estimate: " in done.out
    assert not (tmp_path / "run").exists()


def test_a_dry_run_of_a_resumed_run_is_refused(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    done = cli("train", "--out", tmp_path / "run", "--dry-run", "--resume")
    assert done.code == 2
    assert "leave --resume out" in done.err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0123, "0.012 s"), (3.14159, "3.1 s"), (100, "100 s"), (600, "10 min"), (9000, "2.5 h"), (1e6, "11.6 days")],
)
def test_times_are_said_with_the_figures_that_matter(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_estimate_is_of_the_order_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processor time, so that other processes do not count; loose, since a small run's time is mostly overhead."""
    monkeypatch.undo()
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    random = np.random.default_rng(0)
    labels = np.arange(2000) % 4
    data = write_npz(tmp_path / "a.npz", train=random.normal(size=(2000, 64)).astype(np.float32), train_labels=labels)
    options: dict[str, Any] = {"method": "plc", "epochs": 6, "settings": {"mlp.hidden": [256], "plc.warmup": 2}}
    told = rehearse(data, tmp_path / "dry", **options)
    run = quick_train(data, tmp_path / "run", **options)
    assert 0.33 < told.seconds / run.result["seconds"] < 3
