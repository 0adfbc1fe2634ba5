"""PLC: when labels change, what is remembered, and repeated rounds."""

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from helpers import blobs, quick_train, write_npz
from unflip.methods.base import TrainContext
from unflip.methods.plc import PLC

SETTINGS = {"plc.warmup": 2}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Blobs with a fifth of the labels wrong, and the file of those labels."""
    folder = tmp_path_factory.mktemp("noisy")
    content = blobs(train=300)
    random = np.random.default_rng(1)
    labels = content["train_labels"].copy()
    wrong = random.random(300) < 0.2
    labels[wrong] = (labels[wrong] + 1) % 3
    np.save(folder / "labels.npy", labels)
    return write_npz(folder / "blobs.npz", **content), folder / "labels.npy"


def test_labels_change_first_at_the_end_of_the_warm_up(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    run = quick_train(noisy[0], tmp_path / "run", labels=noisy[1], method="plc", epochs=4, settings=SETTINGS)
    changed = [line["changed"] for line in run.metrics]
    assert changed[0] == 0
    assert changed[1] > 0
    history = pyarrow.parquet.read_table(run.folder / "history.parquet")
    assert min(history["epoch"].to_pylist()) == 2


def test_correction_makes_labels_right_and_scores_the_validation_examples(
    noisy: tuple[Path, Path], tmp_path: Path
) -> None:
    run = quick_train(noisy[0], tmp_path / "run", labels=noisy[1], method="plc", epochs=8, settings=SETTINGS)
    result = run.result
    assert result["label_accuracy"]["given"] < 0.85
    assert result["label_accuracy"]["current"] > 0.97
    assert result["label_accuracy_all"]["current"] > 0.97
    assert result["noise_rate_estimate"] == pytest.approx(result["noise_rate"], abs=0.03)
    assert result["transition_error"] < 0.05
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet").to_pylist()
    assert any(row["changed"] for row in table if row["split"] == "val")
    truth = np.load(noisy[0])["train_labels"]
    wrong = [row["label_quality"] for row, label in zip(table, truth, strict=True) if row["given_label"] != label]
    right = [row["label_quality"] for row, label in zip(table, truth, strict=True) if row["given_label"] == label]
    assert max(wrong) < np.mean(right)
    assert {row["out_of_sample"] for row in table} == {True}


def test_rounds_train_again_within_the_epoch_until_nothing_changes(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    once = quick_train(noisy[0], tmp_path / "once", labels=noisy[1], method="plc", epochs=3, settings=SETTINGS)
    thrice = quick_train(
        noisy[0], tmp_path / "thrice", labels=noisy[1], method="plc", epochs=3, settings=SETTINGS | {"plc.rounds": 3}
    )
    assert thrice.metrics[0]["loss"] == once.metrics[0]["loss"]  # the warm-up knows no rounds
    assert thrice.metrics[1]["changed"] > once.metrics[1]["changed"]


def test_a_restored_method_knows_when_its_warm_up_ended() -> None:
    context = TrainContext(2, torch.arange(4), 60, 0, 8, lambda epoch: 1.0, torch.device("cpu"), has_val=True)
    method, restored = (PLC(PLC.Options(warmup="auto"), context) for _ in range(2))
    method.warming.scores, method.warming.end, method.warming.is_open = [0.5, 0.6], 2, False
    restored.load_state_dict(method.state_dict())
    assert (restored.warmup, restored.warming.scores) == (2, [0.5, 0.6])


def test_examples_that_did_not_train_follow_the_rule_at_the_threshold_of_now() -> None:
    context = TrainContext(2, torch.arange(4), 6, 0, 8, lambda epoch: 1.0, torch.device("cpu"))
    method = PLC(PLC.Options(threshold=0.3, step=0.2), context)
    probs, labels = torch.tensor([[0.4, 0.6], [0.3, 0.7], [0.2, 0.8]]), torch.zeros(3, dtype=torch.long)
    corrected = []
    for _ in range(3):
        corrected.append(method.correct(probs, labels).tolist())
        method.corrector.relax()
    assert corrected == [[0, 0, 1], [0, 1, 1], [1, 1, 1]]  # ratios 0.67, 0.43 and 0.25 against 0.3, 0.5 and 0.7
