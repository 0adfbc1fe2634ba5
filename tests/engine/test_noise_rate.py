"""The estimated noise rate, and by class: by corrected training labels, else by validation predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import blobs, quick_train, write_npz


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of ten labels wrong."""
    content = blobs(train=400)
    wrong = np.arange(400) % 10 < 3
    content["train_labels"][wrong] = (content["train_labels"][wrong] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


def test_where_no_training_label_was_changed_the_validation_predictions_tell(noisy: Path, tmp_path: Path) -> None:
    """Corrected validation labels alone, a tenth of all, would say .03."""
    settings = {"plc.warmup": 1, "plc.threshold": 1e-6, "plc.limit": 1e-6, "data.val_fraction": 0.2}
    run = quick_train(noisy, tmp_path / "run", method="plc", epochs=5, settings=settings)
    assert [line["changed_fraction"] for line in run.metrics] == [None] * 5
    assert run.result["noise_rate_estimate"] == pytest.approx(0.3, abs=0.06)


def test_without_validation_examples_and_changes_it_is_known_also_by_class(noisy: Path, tmp_path: Path) -> None:
    settings = {"data.val_fraction": 0.0}
    run = quick_train(noisy, tmp_path / "run", method="standard", epochs=2, select="last", settings=settings)
    result = json.loads((run.folder / "result.json").read_text())
    assert result["noise_rate_estimate"] == pytest.approx(0.3, abs=0.06)
    assert sum(one["wrong"] for one in result["errors_by_class"]) == pytest.approx(result["label_summary"]["wrong"])


@pytest.mark.parametrize("method", ["plc", "mddc"])
def test_every_epoch_tells_the_share_of_changed_training_labels(noisy: Path, tmp_path: Path, method: str) -> None:
    run = quick_train(noisy, tmp_path / "run", method=method, epochs=8, settings={"plc.warmup": 4})
    rates: list[Any] = [line["changed_fraction"] for line in run.metrics]
    assert rates[:3] == [None] * 3
    table = run.labels()
    train = np.array(table["split"].to_pylist()) == "train"
    assert rates[-1] == pytest.approx(table["changed"].to_numpy(zero_copy_only=False)[train].mean())
    assert rates[-1] > 0.05
