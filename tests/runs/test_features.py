"""The features of a run: what it was trained on, and what the network made of it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from helpers import blobs, quick_train, write_npz
from unflip.runs.folder import Run


def test_features_are_the_rows_of_the_data_and_the_hidden_layer_has_its_own_name(tmp_path: Path) -> None:
    content, more = blobs(train=60), blobs(train=15, seed=1)
    content |= {"val": more["train"], "val_labels": more["train_labels"]}
    run = quick_train(write_npz(tmp_path / "data.npz", **content), tmp_path / "run", epochs=1)
    features = Run(run.folder).features()
    np.testing.assert_array_equal(features, np.concatenate([content["train"], content["val"]]))
    assert run.hidden_features is not None
    assert run.hidden_features.shape == (75, 16)


def test_features_of_a_table_are_its_encoded_columns(tmp_path: Path) -> None:
    plan, x = ["a", "b", "b"] * 20, np.sin(np.arange(60))
    table = pa.table({"plan": plan, "x": x, "label": ["yes", "no"] * 30})
    pa.csv.write_csv(table, tmp_path / "data.csv")
    run = quick_train(tmp_path / "data.csv", tmp_path / "run", epochs=1)
    features = run.features()
    assert features is not None
    assert features.shape == (60, 3)
    np.testing.assert_array_equal(features[:, 0] == 1, np.array(plan) == "a")
    np.testing.assert_allclose(features[:, 2], (x - x.mean()) / x.std(), rtol=1e-5)
    (tmp_path / "data.csv").rename(tmp_path / "moved.csv")
    np.testing.assert_array_equal(run.features(str(tmp_path / "moved.csv")), features)
