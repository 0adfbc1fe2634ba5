"""Calibration around any method: only the head moves, draws are even, emptied classes survive, auto picks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from epoch_outputs import Unseen
from helpers import Crash, assert_same_run, blobs, crash_after, quick_train, write_npz
from unflip.errors import ConfigError
from unflip.methods import find_method
from unflip.methods.base import LabelStore, Method, NetworkOutputs, TrainContext
from unflip.methods.mddc import (
    Calibrated,
    CalibrationOptions,
    CovarianceCalibrator,
    CovarianceOptions,
    MeanCalibrator,
    MeanOptions,
)
from unflip.nn.mlp import MLP, MLPOptions
from unflip.options import Options
from unflip.stats.gaussians import ClassGaussians

CALIBRATE = {"calibration.head_lr": 0.05}


class Seen(Unseen):
    """Fixed features to observe."""

    def __init__(self, features: Tensor, validation: tuple[Tensor, Tensor] | None = None) -> None:
        self.seen, self.held_out = features, validation

    def features(self, network: int = 0) -> Tensor:
        return self.seen

    def validation(self, network: int = 0) -> tuple[NetworkOutputs, Tensor] | None:
        return None if self.held_out is None else (NetworkOutputs(self.held_out[0], self.held_out[0]), self.held_out[1])

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor


def make(count: int, classes: int, calibrator: Any = None, **options: Any) -> Calibrated:
    context = TrainContext(classes, torch.arange(count), 10, 0, 16, lambda epoch: 1.0, torch.device("cpu"))
    calibrator = calibrator or CovarianceCalibrator(CovarianceOptions())
    method = Calibrated(Method(Options(), context), calibrator, CalibrationOptions(**options), context)
    torch.manual_seed(0)
    method.set_networks([MLP(MLPOptions(hidden=(5,)), (4,), classes)])
    return method


def test_calibration_moves_only_the_head() -> None:
    method = make(60, 3, head_lr=0.1)
    network = method.networks[0]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    labels = LabelStore(torch.arange(60) % 3, 3)
    method.end_epoch(1, Seen(torch.randn(60, 5)), labels)
    moved = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"head.weight", "head.bias"}
    assert labels.history()["index"].numel() == 0


def test_it_trains_on_lambda_n_draws_the_same_number_for_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, list[int]]] = []
    sample = ClassGaussians.sample

    def counting(self: ClassGaussians, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        features, labels = sample(self, per_class, generator)
        asked.append((per_class, labels.bincount(minlength=3).tolist()))
        return features, labels

    monkeypatch.setattr(ClassGaussians, "sample", counting)
    labels = LabelStore(torch.tensor([0] * 100 + [1] * 150 + [2] * 50), 3)
    make(300, 3, sample_fraction=0.25).end_epoch(1, Seen(torch.randn(300, 5)), labels)
    assert asked == [(25, [25, 25, 25])]


def test_a_class_that_empties_keeps_its_last_gaussian() -> None:
    method = make(40, 2)
    features = torch.randn(40, 5)
    labels = LabelStore(torch.arange(40) % 2, 2)
    method.end_epoch(1, Seen(features), labels)
    first = method.gaussians()
    assert first is not None
    kept = first.means[1].clone()
    labels.change(1, torch.arange(40), torch.zeros(40, dtype=torch.long), torch.ones(40))
    method.end_epoch(2, Seen(features + 5), labels)
    second = method.gaussians()
    assert second is not None
    assert second.present.tolist() == [True, True]
    torch.testing.assert_close(second.means[1], kept)
    torch.testing.assert_close(second.means[0], (features + 5).mean(0), atol=1e-5, rtol=1e-5)


def test_a_class_that_never_had_members_is_left_out() -> None:
    method = make(20, 3)
    method.end_epoch(1, Seen(torch.randn(20, 5)), LabelStore(torch.arange(20) % 2, 3))
    gaussians = method.gaussians()
    assert gaussians is not None
    assert gaussians.present.tolist() == [True, True, False]


@pytest.mark.parametrize(("start", "every", "epochs"), [(None, 1, [1, 2, 3, 4]), (3, 1, [3, 4]), (2, 2, [2, 4])])
def test_it_starts_when_told_and_comes_again_as_often_as_told(start: int | None, every: int, epochs: list[int]) -> None:
    method = make(30, 3, MeanCalibrator(MeanOptions()), start=start, every=every)
    labels = LabelStore(torch.arange(30) % 3, 3)
    seen = []
    for epoch in range(1, 5):
        before = method.gaussians()
        method.end_epoch(epoch, Seen(torch.randn(30, 5)), labels)
        seen += [epoch] if method.gaussians() is not before else []
    assert seen == epochs


class Choosy:
    """Candidates of which only one draws where the validation examples are."""

    disturbances = (0.1, 0.4)

    def fit(self, features: Tensor, labels: Tensor, num_classes: int, previous: Any = None) -> ClassGaussians:
        calibrator = CovarianceCalibrator(CovarianceOptions())
        return calibrator.fit(features, labels, num_classes, previous)


def test_auto_takes_the_candidate_that_fits_the_noisy_validation_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = torch.randn(200, 5), torch.arange(200) % 2
    features[:, 0] += 3 * labels

    def misled(self: ClassGaussians, alpha: float) -> ClassGaussians:
        gaussians = ClassGaussians.from_state_dict(self.state_dict())
        if alpha == 0.1:  # this candidate swaps the classes
            gaussians.means.copy_(self.means.flip(0))
        return gaussians

    monkeypatch.setattr(ClassGaussians, "with_disturbance", misled)
    method = make(200, 2, Choosy(), head_lr=0.5, sample_fraction=1.0)
    store = LabelStore(labels, 2)
    figures = method.end_epoch(1, Seen(features, (features, labels)), store)
    assert figures["disturbance"] == 0.4


def test_auto_scores_survive_a_checkpoint() -> None:
    method = make(30, 3, sample_fraction="auto")
    features, labels = torch.randn(30, 5), torch.arange(30) % 3
    store = LabelStore(labels, 3)
    method.end_epoch(1, Seen(features, (features, labels)), store)
    other = make(30, 3, sample_fraction="auto")
    other.load_state_dict(method.state_dict())
    assert other.scores == method.scores
    assert len(other.scores) == 4


@pytest.mark.parametrize("name", ["gce-m", "standard-c", "lrt-c", "plc-m"])
def test_any_method_can_be_calibrated(name: str, features: Path, tmp_path: Path) -> None:
    inner = name.rpartition("-")[0]
    settings = CALIBRATE | {"plc": {"plc.warmup": 3}, "lrt": {"lrt.warmup": 4, "lrt.retro_lead": 0}}.get(inner, {})
    run = quick_train(features, tmp_path / "run", method=name, epochs=6, settings=settings)
    assert run.result["test_accuracy"]["last"] > 0.9
    loaded = run.gaussians
    assert loaded is not None
    assert loaded.means.shape == (3, 16)
    assert np.load(run.folder / "features.npy").shape == (150, 16)


def test_plc_m_is_mddc(features: Path, tmp_path: Path) -> None:
    settings = CALIBRATE | {"plc.warmup": 1}
    runs = [
        quick_train(features, tmp_path / name, method=name, epochs=3, settings=settings) for name in ("plc-m", "mddc")
    ]
    assert_same_run(*runs)


def test_a_name_that_cannot_be_calibrated_says_the_closest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gce'"):
        find_method("gcc-m")


@pytest.mark.parametrize("method", ["mddc", "cddc"])
def test_a_resumed_run_is_the_undisturbed_one_with_auto(
    method: str, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CALIBRATE | {"plc.warmup": 1, "calibration.sample_fraction": "auto"}
    if method == "cddc":
        settings |= {"covariance.disturbance": "auto"}
    whole = quick_train(features, tmp_path / "whole", method=method, epochs=4, settings=settings)
    crash_after(monkeypatch, 2)
    with pytest.raises(Crash):
        quick_train(features, tmp_path / "broken", method=method, epochs=4, settings=settings)
    monkeypatch.undo()
    resumed = quick_train(features, tmp_path / "broken", method=method, epochs=4, settings=settings, resume=True)
    assert_same_run(whole, resumed)


def test_a_feature_file_with_a_single_member_class_survives(tmp_path: Path) -> None:
    content = blobs(train=90)
    content["train_labels"] = np.where(np.arange(90) == 5, 3, content["train_labels"])
    path = write_npz(tmp_path / "odd.npz", **content)
    run = quick_train(path, tmp_path / "run", method="mddc", epochs=3, settings=CALIBRATE | {"plc.warmup": 1})
    assert run.result["test_accuracy"]["last"] > 0.9


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"covariance.disturbance": "auto"}, "disturbance = 'auto' needs validation examples; set a value"),
        ({"calibration.sample_fraction": "auto"}, "calibration.sample_fraction = 'auto' needs validation examples"),
    ],
)
def test_auto_without_validation_examples_is_refused(
    features: Path, tmp_path: Path, context: dict[str, Any], message: str
) -> None:
    settings = context | {"data.val_fraction": 0.0}
    with pytest.raises(ConfigError, match=message):
        quick_train(features, tmp_path / "run", method="cddc", epochs=3, select="last", settings=settings)
    assert not (tmp_path / "run").exists()


def test_the_shortest_command_calibrates_as_well_as_the_preset(tmp_path: Path) -> None:
    """The head learns at the run's own rate, so calibration moves it as much as training does."""
    content = blobs(train=300)
    path = write_npz(tmp_path / "data.npz", **content)
    moved = quick_train(path, tmp_path / "run", method="mddc", epochs=6)
    calibration = moved.config.parts["calibration"]
    assert isinstance(calibration, CalibrationOptions)
    assert calibration.head_lr == moved.config.common.optimizer.lr == 0.05
