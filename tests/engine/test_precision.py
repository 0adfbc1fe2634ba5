"""Mixed precision: what computes in half the bits, what does not, and where it is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import Crash, assert_same_run, capture_trainers, crash_after, quick_train
from unflip.engine.checkpoints import EpochProgress
from unflip.engine.distributed import Distributed, find_precision
from unflip.errors import ConfigError
from unflip.nn.base import unwrap
from unflip.runs.model_file import load_model

HALF = {"precision": "bfloat16"}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("mddc", {"plc.warmup": 2}),
        pytest.param("coteaching+", {"coteaching+.warmup": 2}, marks=pytest.mark.soak),
        pytest.param("dividemix-c", {"dividemix.warmup": 2}, marks=pytest.mark.soak),
    ],
)
def test_a_run_in_bfloat16_learns_and_keeps_everything_in_float32(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    trainers = capture_trainers(monkeypatch)
    run = quick_train(features, tmp_path / "run", method=method, epochs=8, settings=HALF | settings)
    (trainer,) = trainers
    assert run.result["test_accuracy"]["last"] > 0.9
    state = load_model(run.folder / "model.safetensors").state
    assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float32}
    gaussians = trainer.method.gaussians()
    if gaussians is not None:
        assert gaussians.means.dtype == torch.float32
    train_probs = trainer.method.train_probs()
    assert train_probs is None or train_probs.dtype == torch.float32
    observed = trainer.observe(EpochProgress())
    assert observed.logits().dtype == observed.features().dtype == torch.float32


def test_training_passes_compute_in_bfloat16_and_scans_do_not(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trainer,) = _trained(features, tmp_path, monkeypatch)
    seen: set[tuple[bool, torch.dtype]] = set()
    head = unwrap(trainer.networks[0]).head
    head.register_forward_hook(lambda module, inputs, output: seen.add((module.training, output.dtype)))
    trainer.train_epoch(3)
    assert (True, torch.bfloat16) in seen
    trainer.observe(EpochProgress()).features()
    assert (False, torch.float32) in seen
    assert (False, torch.bfloat16) not in seen


def test_recorded_probabilities_are_in_float32(features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (trainer,) = _trained(features, tmp_path, monkeypatch)
    probs = trainer.method.corrector.window.stored[-1]
    assert probs.dtype == torch.float32
    torch.testing.assert_close(probs.sum(1), torch.ones(len(probs)))


def _trained(features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    trainers = capture_trainers(monkeypatch)
    quick_train(features, tmp_path / "run", method="plc", epochs=2, settings=HALF)
    return trainers


def test_bfloat16_is_another_run_than_float32_and_auto_is_float32_on_the_processor(
    features: Path, tmp_path: Path
) -> None:
    runs = {
        name: quick_train(features, tmp_path / name, method="standard", epochs=2, settings={"precision": name})
        for name in ("auto", "float32", "bfloat16")
    }
    assert_same_run(runs["auto"], runs["float32"])
    models = [(run.folder / "model.safetensors").read_bytes() for run in runs.values()]
    assert models[0] != models[2]


def test_a_resumed_run_in_bfloat16_is_the_undisturbed_one(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"method": "plc", "epochs": 4, "settings": HALF}
    whole = quick_train(features, tmp_path / "whole", **options)
    crash_after(monkeypatch, 2)
    with pytest.raises(Crash):
        quick_train(features, tmp_path / "cut", **options)
    monkeypatch.undo()
    assert_same_run(whole, quick_train(features, tmp_path / "cut", resume=True, **options))


def test_float16_on_the_processor_is_refused_before_anything_is_written(features: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="precision = 'float16' needs a GPU, and the device is cpu; try bfloat16"):
        quick_train(features, tmp_path / "run", settings={"precision": "float16"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("accelerator", "supported", "found"),
    [("cuda", True, "bfloat16"), ("cuda", False, "float32"), ("mps", True, "float32"), ("cpu", True, "float32")],
)
def test_auto_is_bfloat16_only_on_a_gpu_that_has_it(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, supported: bool, found: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert find_precision("auto", accelerator) == found


def test_nothing_is_said_about_the_precision(capfd: pytest.CaptureFixture[str]) -> None:
    assert Distributed("cpu", "bfloat16").precision == "bfloat16"
    assert capfd.readouterr() == ("", "")
