"""Final scores: tables in half precision, as for many examples, give the same results."""

from pathlib import Path

import numpy as np
import pytest

from helpers import blobs, quick_train, write_npz
from unflip.methods import base as row_tables

SOAKED = [pytest.param(name, marks=pytest.mark.soak) for name in ("lrt", "mddc", "coteaching+")]


@pytest.mark.parametrize("method", ["unflip", "plc", *SOAKED])
def test_a_run_on_many_examples_says_the_same(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = blobs()
    content["train_labels"][::5] = (content["train_labels"][::5] + 1) % 3
    data, settings = write_npz(tmp_path / "data.npz", **content), {"data.val_fraction": 0.2}
    runs = []
    for above in (row_tables.HALF_ABOVE, 1):
        monkeypatch.setattr(row_tables, "HALF_ABOVE", above)
        runs.append(quick_train(data, tmp_path / f"run-{above}", method=method, epochs=6, settings=settings))
    tables = [run.labels() for run in runs]
    for name in tables[0].column_names:
        mine, large = (table[name].to_numpy() for table in tables)
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(large, mine, atol=0.02)
        else:
            assert (large == mine).mean() > 0.98
    few, many = (run.hidden_features for run in runs)
    assert few is not None
    assert many is not None
    np.testing.assert_allclose(many, few, atol=0.05)
    assert runs[1].result["test_accuracy"]["last"] == pytest.approx(runs[0].result["test_accuracy"]["last"], abs=0.02)


@pytest.mark.parametrize("method", ["unflip", "plc"])
def test_the_two_most_likely_classes_are_out_of_sample(method: str, tmp_path: Path) -> None:
    content = blobs()
    clean = content["train_labels"].copy()
    content["train_labels"][::5] = (clean[::5] + 1) % 3
    data = write_npz(tmp_path / "data.npz", **content)
    table = quick_train(data, tmp_path / "run", method=method, epochs=6, settings={"data.val_fraction": 0.2}).labels()
    first, second = table["prob_top1"].to_numpy(), table["prob_top2"].to_numpy()
    assert (first >= second).all()
    assert (second >= 0).all()
    assert (first + second <= 1 + 1e-5).all()
    assert (table["top1"].to_numpy() != table["top2"].to_numpy()).all()
    assert (table["top1"].to_numpy() == clean).mean() > 0.9  # although a fifth of the given labels are wrong
    if method == "unflip":
        kept = table["top1"].to_numpy() == table["current_label"].to_numpy()
        np.testing.assert_allclose(first[kept], table["prob_current"].to_numpy()[kept], atol=1e-5)
