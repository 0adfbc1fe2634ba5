"""Images through the whole of a run: trained, saved, resumed and predicted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import Crash, assert_same_run, capture_trainers, crash_after, shrink_cifar
from unflip import predict, train
from unflip.engine.checkpoints import EpochProgress
from unflip.runs.folder import Run
from unflip.runs.model_file import load_model

SETTINGS = {"optimizer.batch_size": 32, "preact_resnet8.width": 4, "preact_resnet8.blocks": [1, 1]}


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_cifar(monkeypatch, 30, 40)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10's layout with 150 images to train and 40 to test; a class is a color."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    colors = np.array([[220, 30, 30], [30, 220, 30], [30, 30, 220]])
    for name, count in [(f"data_batch_{i}", 30) for i in range(1, 6)] + [("test_batch", 40)]:
        labels = np.arange(count) % 3
        pixels = colors[labels][:, :, None] + random.integers(-30, 30, (count, 3, 1024))
        records = np.concatenate([labels[:, None], pixels.reshape(count, -1)], 1).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


def run(data: Path, out: Path, **options: Any) -> Run:
    chosen: dict[str, Any] = {"method": "standard", "network": "preact_resnet8", "epochs": 3, **options}
    return train(data, out, settings=SETTINGS, device="cpu", **chosen)


def test_a_run_learns_and_its_model_predicts_what_it_was_tested_with(pictures: Path, tmp_path: Path) -> None:
    done = run(pictures, tmp_path / "run")
    assert done.result["test_accuracy"]["selected"] == 1.0
    model = load_model(tmp_path / "run" / "model.safetensors")
    assert model.standardization is not None
    assert model.standardization.mean.shape == (3, 1, 1)
    found = predict(tmp_path / "run", pictures)
    assert found.labels.tolist() == [i % 3 for i in range(40)]
    assert found.class_names[:2] == ["airplane", "automobile"]


def test_bytes_without_a_layout_are_predicted_alike(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "run", epochs=1)
    records = np.frombuffer((pictures / "test_batch.bin").read_bytes(), np.uint8).reshape(40, -1)
    np.save(tmp_path / "a.npy", records[:, 1:].reshape(-1, 3, 32, 32))
    one, other = predict(tmp_path / "run", pictures), predict(tmp_path / "run", tmp_path / "a.npy")
    torch.testing.assert_close(one.probs, other.probs)


def test_a_resumed_run_is_the_same_run(pictures: Path, tmp_path: Path) -> None:
    whole = run(pictures, tmp_path / "whole", method="plc")
    with pytest.MonkeyPatch.context() as crashing:
        crash_after(crashing, 2)
        with pytest.raises(Crash):
            run(pictures, tmp_path / "cut", method="plc")
    assert_same_run(whole, run(pictures, tmp_path / "cut", method="plc", resume=True))


def test_an_ensemble_of_two_is_trained_on_all_images_but_those_for_validation(pictures: Path, tmp_path: Path) -> None:
    done = run(pictures, tmp_path / "whole", method="unflip", epochs=4)
    table = done.labels().to_pandas()
    assert set(table.fold) == {-1}
    assert table.out_of_sample.tolist() == (table.split == "val").tolist()
    assert set(table.split) == {"train", "val"}
    assert table.gaussian_prob_given.isna().all()  # Gaussians of images would be learned from the labels
    assert table.network_prob_given.between(0, 1).all()
    model = load_model(tmp_path / "whole" / "model.safetensors").build()
    assert len(model.networks) == 2
    found = predict(tmp_path / "whole", pictures)
    assert found.probs.shape == (40, 10)
    assert float((found.labels == torch.arange(40) % 3).float().mean()) == done.result["test_accuracy"]["last"]
    with pytest.MonkeyPatch.context() as crashing:
        crash_after(crashing, 3)
        with pytest.raises(Crash):
            run(pictures, tmp_path / "cut", method="unflip", epochs=4)
    assert_same_run(done, run(pictures, tmp_path / "cut", method="unflip", epochs=4, resume=True))


def test_every_pass_sees_other_views_of_the_same_images(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = capture_trainers(monkeypatch)
    run(pictures, tmp_path / "run", epochs=1)
    (trainer,) = made
    (phase,) = trainer.method.phases(1, trainer.observe(EpochProgress()), trainer.labels)
    first, again, later = (next(iter(trainer.batches(epoch, 0, phase))) for epoch in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, later.inputs)
    assert not torch.equal(first.inputs, trainer.source.fetch(first.indices))


def test_images_can_be_trained_on_without_augmentation(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = capture_trainers(monkeypatch)
    train(pictures, tmp_path / "run", network="mlp", epochs=1, settings={"data.augment": False}, device="cpu")
    (trainer,) = made
    (phase,) = trainer.method.phases(1, trainer.observe(EpochProgress()), trainer.labels)
    batch = next(iter(trainer.batches(1, 0, phase)))
    assert torch.equal(batch.inputs, trainer.source.fetch(batch.indices))
