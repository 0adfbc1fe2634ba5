"""Data at the edge, which every method survives."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from helpers import blobs, quick_train, write_npz
from unflip.methods import methods
from unflip.runs.folder import Run
from unflip.runs.model_file import load_model

WARMUPS = {f"{name}.warmup": 1 for name in ("plc", "unflip", "lrt", "coteaching+", "dividemix")}
SECTIONS = {"mddc": "plc", "cddc": "plc", "dividemix-m": "dividemix", "dividemix-c": "dividemix"}


MAIN = ("unflip", "mddc", "dividemix")


@pytest.fixture(
    params=[name if name in MAIN else pytest.param(name, marks=pytest.mark.soak) for name in methods.names()]
)
def method(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def train(method: str, tmp_path: Path, content: dict[str, Any], **settings: Any) -> Run:
    """Three epochs with a warm-up of one, so that every stage is reached; then the run must be sound."""
    key = f"{SECTIONS.get(method, method)}.warmup"
    short = {key: 1} if key in WARMUPS else {}
    data = write_npz(tmp_path / "data.npz", **content)
    chosen = short | {name.replace("__", "."): value for name, value in settings.items()}
    run: Run = quick_train(data, tmp_path / "run", method=method, epochs=3, settings=chosen)
    state = load_model(run.folder / "model.safetensors").state
    assert all(bool(value.isfinite().all()) for value in state.values())
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet")
    assert len(table) == len(content["train"])
    for name in ("prob_current", "prob_given", "label_quality"):
        values = table[name].drop_null().to_numpy()
        assert ((values >= 0) & (values <= 1 + 1e-6)).all()
    return run


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_features_does_not_matter(method: str, tmp_path: Path, scale: float) -> None:
    content = blobs(train=90)
    for part in ("train", "test"):
        content[part] = content[part] * np.float32(scale)
    assert train(method, tmp_path, content).result["test_accuracy"]["last"] > 0.5  # three epochs; chance is a third


@pytest.mark.parametrize("what", ["all but one", "class", "columns"])
def test_identical_examples(method: str, tmp_path: Path, what: str) -> None:
    content = blobs(train=90)
    if what == "all but one":
        content["train"][1:] = 1.0
    elif what == "class":
        content["train"][content["train_labels"] == 0] = 2.0
    else:
        content["train"][:, 1:] = 0.0
    train(method, tmp_path, content)


def test_a_class_with_one_example_among_ten_thousand(method: str, tmp_path: Path) -> None:
    content = blobs(classes=2, train=10_001, columns=3)
    content["train_labels"][:] = 0
    content["train_labels"][77] = 1
    train(method, tmp_path, content, optimizer__batch_size=2048)


@pytest.mark.soak  # gigabytes, for the matrix of which class is called what
def test_ten_thousand_classes_of_which_few_have_an_example(method: str, tmp_path: Path) -> None:
    content = blobs(train=60)
    content["train_labels"] = content["train_labels"] * 4000
    content["test_labels"] = content["test_labels"] * 4000
    train(method, tmp_path, content, data__classes=10_000)
