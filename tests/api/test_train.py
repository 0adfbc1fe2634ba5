"""A whole run through the public function: what it writes, and that it writes what is true."""

import gc
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score

import unflip
from helpers import blobs, quick_train, write_npz
from unflip.engine import run as engine_run
from unflip.engine import scoring
from unflip.engine.run import Session
from unflip.engine.trainer import Trainer
from unflip.errors import ConfigError, DivergedError, RunFolderError
from unflip.runs.folder import Run

ISSUE_KEYS = {
    "method", "data", "seed", "epochs", "selection", "selected_epoch", "noise_rate", "noise_rate_estimate",
    "test_accuracy", "tests", "val_accuracy", "label_accuracy", "label_accuracy_all", "seconds", "seconds_per_epoch",
    "versions",
}  # fmt: skip
ADDED_KEYS = {
    "classes",
    "label_summary",
    "pictures_path",
    "data_path",
    "skipped",
    "reviewed",
    "removed",
    "protocol",
    "noise",
    "error_pairs",
    "other_issues",
    "since_last",
    "errors_by_class",
    "transition_error",
    "quality_auroc",
    "score_auroc",
    "out_of_sample",
}
"""Later work adds keys and renames none."""
LEAVES = {
    "test_accuracy": ["selected", "last", "best"],
    "label_accuracy": ["given", "current"],
    "label_accuracy_all": ["given", "current"],
}


@pytest.fixture(scope="module")
def noisy_labels(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fifth of the labels wrong."""
    labels = np.load(features)["train_labels"].copy()
    wrong = np.random.default_rng(0).permutation(150)[:30]
    labels[wrong] = (labels[wrong] + 1) % 3
    path = tmp_path_factory.mktemp("noisy") / "noisy.npy"
    np.save(path, labels)
    return path


@pytest.fixture(scope="module")
def run(features: Path, noisy_labels: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One finished run that several tests look at."""
    folder = tmp_path_factory.mktemp("run") / "run"
    return quick_train(features, folder, labels=noisy_labels, method="gce", epochs=5, seed=2)


def test_the_result_has_exactly_the_promised_keys(run: Run) -> None:
    assert set(run.result) == ISSUE_KEYS | ADDED_KEYS
    for key, leaves in LEAVES.items():
        assert list(run.result[key]) == leaves
    assert list(run.result["tests"]) == ["test"]
    assert list(run.result["tests"]["test"]) == ["top1", "top5", "balanced", "per_class"]


def test_the_result_says_what_was_run(run: Run) -> None:
    result = run.result
    assert {key: result[key] for key in ("method", "data", "seed", "epochs", "selection", "protocol")} == {
        "method": "gce", "data": "blobs.npz", "seed": 2, "epochs": 5, "selection": "noisy-val",
        "protocol": "noisy-val",
    }  # fmt: skip
    assert result["versions"]["unflip"] == unflip.__version__
    assert result["versions"]["torch"] == torch.__version__
    assert result["seconds"] == pytest.approx(sum(line["seconds"] for line in run.metrics), rel=0.2)
    assert result["seconds_per_epoch"] == pytest.approx(result["seconds"] / 5)


def test_accuracies_of_labels_are_those_against_the_truth(run: Run, features: Path, noisy_labels: Path) -> None:
    truth, given = np.load(features)["train_labels"], np.load(noisy_labels)
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet")
    assert table["given_label"].to_pylist() == given.tolist()
    current, train = table["current_label"].to_numpy(), np.array(table["split"].to_pylist()) == "train"
    result = run.result
    assert result["noise_rate"] == pytest.approx(0.2)
    assert result["label_accuracy_all"]["given"] == pytest.approx(accuracy_score(truth, given))
    assert result["label_accuracy_all"]["current"] == pytest.approx(accuracy_score(truth, current))
    assert result["label_accuracy"]["given"] == pytest.approx(accuracy_score(truth[train], given[train]))
    assert result["label_accuracy"]["current"] == pytest.approx(accuracy_score(truth[train], current[train]))


def test_every_example_has_a_row_with_the_selected_models_confidence(run: Run, features: Path) -> None:
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet").to_pydict()
    assert table["index"] == list(range(150))
    counts = np.bincount(table["given_label"])
    assert table["split"].count("val") == np.floor(counts * 0.1 + 0.5).sum()
    probs = unflip.predict(run, features, part="train", device="cpu").probs
    expected = probs[range(150), table["given_label"]]
    np.testing.assert_allclose(table["prob_given"], expected, atol=1e-5)


def test_quality_is_the_vote_of_those_that_have_not_learned_the_label(run: Run, features: Path) -> None:
    """The network has learned the labels of training examples, so it has a say about validation examples alone."""
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet")
    given, quality = table["given_label"].to_numpy(), table["label_quality"].to_numpy()
    vote = table["gaussian_prob_given"].to_numpy().astype(np.float64)
    train = np.array(table["split"].to_pylist()) == "train"
    said, odds = np.log(vote) - np.log1p(-vote), table["log_odds"].to_numpy()
    sure = np.abs(said) > 12  # rounded too far to compare
    order = np.argsort(said)
    of_train = order[(train & ~sure)[order]]
    assert (np.diff(odds[of_train]) > -1e-3).all()  # an increasing function of what the Gaussians say
    expected = np.interp(said, said[of_train], odds[of_train])
    assert np.abs(odds - expected)[~train & ~sure].max() > 0.001
    np.testing.assert_allclose(quality, 1 / (1 + np.exp(-odds)), rtol=1e-6)
    assert set(table["out_of_sample"].to_pylist()) == {True}
    assert set(table["fold"].to_pylist()) == {-1}
    wrong = given != np.load(features)["train_labels"]
    assert quality[wrong].max() < quality[~wrong].mean()
    assert run.result["out_of_sample"] == 1
    assert run.result["quality_auroc"] == pytest.approx(roc_auc_score(~wrong[train], odds[train]))
    assert run.result["quality_auroc"] > 0.95


def test_a_methods_own_score_is_that_of_what_it_has_learned(
    features: Path, noisy_labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It pools the network's word with that of class Gaussians of its own features; a committee has one score."""
    outcomes = []
    score_examples = scoring.score_examples

    def watched(*arguments: Any, **options: Any) -> Any:
        outcomes.append(score_examples(*arguments, **options))
        return outcomes[-1]

    monkeypatch.setattr(engine_run, "score_examples", watched)
    truth = np.load(features)["train_labels"]
    for method in ("standard", "unflip"):
        done = quick_train(features, tmp_path / method, labels=noisy_labels, method=method, epochs=4)
        table, score = done.labels(), outcomes[-1][0].score.numpy()
        train = np.array(table["split"].to_pylist()) == "train"
        right = table["given_label"].to_numpy() == truth
        assert done.result["score_auroc"] == pytest.approx(roc_auc_score(right[train], score[train]))
        assert np.array_equal(score, table["log_odds"].to_numpy()) == (method == "unflip")


def test_metrics_have_a_line_an_epoch_and_the_selected_one_is_the_first_best(run: Run) -> None:
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]
    scores = [line["val_accuracy"] for line in lines]
    result = run.result
    assert result["selected_epoch"] == scores.index(max(scores)) + 1
    assert result["val_accuracy"] == max(scores)
    tests = [line["test_accuracy"] for line in lines]
    assert result["test_accuracy"] == {
        "selected": tests[result["selected_epoch"] - 1], "last": tests[-1], "best": max(tests)
    }  # fmt: skip
    assert all(math.isfinite(line["loss"]["loss"]) for line in lines)


def test_the_model_is_that_of_the_selected_epoch(run: Run, features: Path) -> None:
    predicted = unflip.predict(run, features, device="cpu").labels.numpy()
    accuracy = accuracy_score(np.load(features)["test_labels"], predicted)
    assert accuracy == pytest.approx(run.result["test_accuracy"]["selected"])
    assert accuracy == pytest.approx(run.result["tests"]["test"]["top1"])


def test_the_folder_holds_what_the_design_says(run: Run) -> None:
    names = {path.name for path in run.folder.iterdir()}
    assert names >= {
        "config.toml", "result.json", "metrics.jsonl", "labels.parquet", "labels.csv", "history.parquet",
        "model.safetensors", "checkpoints",
    }  # fmt: skip
    assert [name for name in names if name.startswith(".")] == [".unflip-lock"]  # no temporary file
    config = tomllib.loads((run.folder / "config.toml").read_text())
    assert config["gce"]["q"] == 0.7
    assert config["optimizer"]["batch_size"] == 32


def test_what_nobody_knows_is_null(tmp_path: Path) -> None:
    content = {key: value for key, value in blobs().items() if not key.startswith("test")}
    data = write_npz(tmp_path / "a.npz", **content)
    result = quick_train(data, tmp_path / "run", epochs=2, select="last", settings={"data.val_fraction": 0.0}).result
    for key in ("noise_rate", "val_accuracy", "transition_error"):
        assert result[key] is None, key
    summary = result["label_summary"]
    assert 0 <= summary["low"] <= summary["wrong"] <= summary["high"] < 5  # no label of these is wrong
    assert result["noise_rate_estimate"] == pytest.approx(summary["wrong"] / 150)
    assert result["test_accuracy"] == {"selected": None, "last": None, "best": None}
    assert result["label_accuracy"] == result["label_accuracy_all"] == {"given": None, "current": None}
    assert result["tests"] == {}


@pytest.mark.parametrize(
    ("rule", "key"), [("clean-val", "clean_val_accuracy"), ("best-test", "test_accuracy"), ("last", "epoch")]
)
def test_other_rules_choose_by_their_figure_and_say_so(
    tmp_path: Path, features: Path, noisy_labels: Path, rule: str, key: str
) -> None:
    settings = {"data.val_fraction": 0.1}
    run = quick_train(features, tmp_path / "run", labels=noisy_labels, epochs=4, select=rule, settings=settings)
    scores = [line[key] for line in run.metrics]
    assert run.result["selected_epoch"] == scores.index(max(scores)) + 1
    assert ("uses the truth" in run.result["protocol"]) is (rule != "last")


def test_the_first_test_set_is_the_one_that_counts_and_all_are_reported(tmp_path: Path) -> None:
    content = blobs()
    wrong = (content["test_labels"] + 1) % 3
    data = write_npz(tmp_path / "a.npz", **content, test_wrong=content["test"], test_wrong_labels=wrong)
    result = quick_train(data, tmp_path / "run", epochs=4).result
    assert list(result["tests"]) == ["test", "test_wrong"]
    assert result["test_accuracy"]["selected"] == result["tests"]["test"]["top1"] > 0.8
    assert result["tests"]["test_wrong"]["top1"] < 0.2


def test_names_of_classes_are_in_the_labels_and_predictions(tmp_path: Path) -> None:
    names = np.array(["ape", "bee", "cat"])
    content = {key: names[value] if key.endswith("_labels") else value for key, value in blobs().items()}
    data = write_npz(tmp_path / "a.npz", **content)
    run = quick_train(data, tmp_path / "run", epochs=6)
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet")
    assert table["given_label_name"].to_pylist() == content["train_labels"].tolist()
    predicted = unflip.predict(run, data, device="cpu").table()
    assert predicted.column_names == ["id", "label", "probability", "p_ape", "p_bee", "p_cat"]
    assert accuracy_score(content["test_labels"], predicted["label"].to_pylist()) > 0.9


def test_mapped_files_train_the_same_model(tmp_path: Path, features: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, array in np.load(features).items():
        np.save(tmp_path / "data" / f"{name}.npy", array)
    runs = [
        quick_train(tmp_path / "data", tmp_path / f"run{limit}", epochs=3, settings={"data.mmap_threshold_mb": limit})
        for limit in (0, 100)
    ]
    one, other = ((run.folder / "model.safetensors").read_bytes() for run in runs)
    assert one == other


def test_a_run_of_settings_as_text_or_as_a_mapping_is_the_same(tmp_path: Path, features: Path) -> None:
    texts = ["optimizer.lr=0.05", "mlp.hidden=[7]", "epochs=2"]
    mapping: dict[str, Any] = {"optimizer.lr": 0.05, "mlp.hidden": [7], "epochs": 2}
    given: list[Sequence[str] | Mapping[str, Any]] = [texts, mapping]
    folders = [unflip.train(features, tmp_path / str(i), settings=s).folder for i, s in enumerate(given)]
    one, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == other


def test_training_that_diverges_says_epoch_and_batch(tmp_path: Path, features: Path) -> None:
    with pytest.raises(DivergedError, match=r"in epoch 1, batch \d+; try a smaller learning rate"):
        quick_train(features, tmp_path / "run", epochs=3, method="standard", settings={"optimizer.lr": 1e12})
    assert not Run(tmp_path / "run").is_finished


def test_a_run_in_the_way_is_kept_unless_forced(tmp_path: Path, features: Path) -> None:
    first = quick_train(features, tmp_path / "run", epochs=1)
    (first.folder / "notes.txt").write_text("mine")
    model = (first.folder / "model.safetensors").read_bytes()
    with pytest.raises(RunFolderError, match=r"already contains a run.*--force.*--resume"):
        quick_train(features, tmp_path / "run", epochs=1, seed=1)
    assert (first.folder / "model.safetensors").read_bytes() == model
    second = quick_train(features, tmp_path / "run", epochs=2, seed=1, force=True)
    assert (first.folder / "model.safetensors").read_bytes() != model
    assert (second.result["seed"], second.result["epochs"], len(second.metrics)) == (1, 2, 2)
    assert (first.folder / "notes.txt").read_text() == "mine"


def test_nothing_is_written_when_the_arguments_are_wrong(tmp_path: Path, features: Path) -> None:
    for options in ({"method": "gcee"}, {"select": "clean-val"}, {"device": "cuda-7"}, {"limit": 0}):
        with pytest.raises(ConfigError):
            unflip.train(features, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["unflip", "dividemix-m"])
def test_a_finished_run_frees_its_memory_at_once(features: Path, tmp_path: Path, method: str) -> None:
    def alive() -> dict[int, object]:
        return {id(thing): thing for thing in gc.get_objects() if type(thing) in (Session, Trainer)}

    gc.collect()
    before = alive()  # what other tests hold on to
    gc.disable()  # who trains again and again would wait long for it
    try:
        quick_train(features, tmp_path / "run", method=method)
        left = [type(thing).__name__ for key, thing in alive().items() if key not in before]
    finally:
        gc.enable()
    assert left == []
