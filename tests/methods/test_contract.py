"""What every method must do: a new one is tested by being registered. Where it is slow to start, add a line below."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from helpers import (
    QUICK,
    Crash,
    assert_same_run,
    assert_same_tree,
    blobs,
    capture_trainers,
    crash_at_save,
    quick_train,
    spawn_python,
    write_npz,
)
from unflip.engine.checkpoints import load_tree, save_tree
from unflip.methods import methods
from unflip.methods.base import Method
from unflip.runs.folder import Run
from unflip.runs.model_file import load_model

METHODS = [*methods.names(), "gce-m", "standard-c"]  # calibration wraps any method
MAIN = {"standard", "plc", "mddc", "unflip", "dividemix"}
"""Methods that run every check; the others run the essential ones, and the rest in `make soak`."""
ESSENTIAL = {
    "test_it_learns_a_separable_problem",
    "test_a_resumed_run_is_the_undisturbed_one",
    "test_it_never_sees_the_truth",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "lrt": {"lrt.warmup": 3, "lrt.retro_lead": 1},
    "unflip": {"unflip.warmup": 2, "unflip.steps": 60},
    "plc": {"plc.warmup": 2},
    "mddc": {"plc.warmup": 2},
    "cddc": {"plc.warmup": 2},
    "coteaching+": {"coteaching+.warmup": 2, "coteaching+.ramp_epochs": 3},
    "dividemix": {"dividemix.warmup": 2, "data.jitter": 0.1},
    "dividemix-m": {"dividemix.warmup": 2},
    "dividemix-c": {"dividemix.warmup": 2},
}
"""Options with which a method reaches each of its stages within six epochs, in few steps; none by default."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each check with every method, most checks of less common methods only in soak runs."""
    if "method" in metafunc.fixturenames:
        every = metafunc.function.__name__ in ESSENTIAL
        names = [name if every or name in MAIN else pytest.param(name, marks=pytest.mark.soak) for name in METHODS]
        metafunc.parametrize("method", names)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every sixth label wrong, so that a method that changes labels has some to change."""
    content = blobs()
    content["train_labels"][::6] = (content["train_labels"][::6] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


def settings_of(method: str, **more: Any) -> dict[str, Any]:
    return SETTINGS.get(method, {}) | {key.replace("__", "."): value for key, value in more.items()}


def model_bytes(run: Run) -> bytes:
    return (run.folder / "model.safetensors").read_bytes()


def assert_sound(run: Run, num_examples: int) -> None:
    """A run came to its end, with finite weights and a probability for every example."""
    assert run.is_finished
    state = load_model(run.folder / "model.safetensors").state
    assert all(bool(value.isfinite().all()) for value in state.values())
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet")
    assert len(table) == num_examples
    for name in ("prob_current", "prob_given", "label_quality"):
        values = table[name].drop_null().to_numpy()
        assert ((values >= 0) & (values <= 1 + 1e-6)).all()


def test_it_learns_a_separable_problem(method: str, features: Path, tmp_path: Path) -> None:
    run = quick_train(features, tmp_path / "run", method=method, epochs=10, settings=settings_of(method))
    assert run.result["test_accuracy"]["selected"] > 0.9
    assert run.result["test_accuracy"]["last"] > 0.9
    assert_sound(run, 150)
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet")
    assert np.mean(table["changed"].to_numpy()) < 0.05  # right labels stay


def test_the_same_seed_gives_the_same_run_and_another_does_not(method: str, noisy: Path, tmp_path: Path) -> None:
    first, second, other = (
        quick_train(noisy, tmp_path / str(i), method=method, epochs=4, seed=seed, settings=settings_of(method))
        for i, seed in enumerate((0, 0, 1))
    )
    assert_same_run(first, second)
    assert model_bytes(first) != model_bytes(other)


def test_a_resumed_run_is_the_undisturbed_one(
    method: str, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "method": method,
        "epochs": 6,
        "settings": settings_of(method, mlp__dropout=0.1),
    }
    undisturbed = quick_train(noisy, tmp_path / "undisturbed", **options)
    again = False
    for saves in (13, 9):  # at an epoch's end or in its middle, whatever it is for the method
        crash_at_save(monkeypatch, saves)
        with pytest.raises(Crash):
            quick_train(noisy, tmp_path / "resumed", resume=again, checkpoint_minutes=0, **options)
        monkeypatch.undo()
        again = True
    assert_same_run(undisturbed, quick_train(noisy, tmp_path / "resumed", resume=True, **options))


def test_its_state_goes_through_a_checkpoint(
    method: str, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = capture_trainers(monkeypatch)
    quick_train(noisy, tmp_path / "trained", method=method, epochs=4, settings=settings_of(method))
    crash_at_save(monkeypatch, 1)
    with pytest.raises(Crash):
        quick_train(noisy, tmp_path / "fresh", method=method, epochs=4, settings=settings_of(method))
    trained, fresh = (trainer.method for trainer in trainers)
    save_tree(tmp_path / "state.safetensors", trained.state_dict())
    fresh.load_state_dict(load_tree(tmp_path / "state.safetensors"))
    assert_same_tree(trained.state_dict(), fresh.state_dict())
    train_probs, restored = trained.train_probs(), fresh.train_probs()
    assert (train_probs is None) == (restored is None)
    if train_probs is not None and restored is not None:
        assert torch.equal(train_probs, restored)


@pytest.mark.parametrize("count", [33, 65, 3])
def test_a_last_batch_of_one_example_is_no_trouble(method: str, tmp_path: Path, count: int) -> None:
    content = {key: value[:count] for key, value in blobs().items() if key.startswith("train")}
    data = write_npz(tmp_path / "a.npz", **content)
    settings = settings_of(method, data__val_fraction=0.0)
    run = quick_train(data, tmp_path / "run", method=method, epochs=4, select="last", settings=settings)
    assert_sound(run, count)


def test_two_classes_are_enough(method: str, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", **blobs(classes=2))
    run = quick_train(data, tmp_path / "run", method=method, epochs=10, settings=settings_of(method))
    assert run.result["test_accuracy"]["last"] > 0.9
    assert_sound(run, 150)


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 1, 3], [1, 2, 3]])
def test_a_class_may_have_no_example(method: str, tmp_path: Path, labels: list[int]) -> None:
    content = {key: np.array(labels)[value] if key.endswith("_labels") else value for key, value in blobs().items()}
    data = write_npz(tmp_path / "a.npz", **content)
    settings = settings_of(method, data__classes=4)
    run = quick_train(data, tmp_path / "run", method=method, epochs=8, settings=settings)
    assert_sound(run, 150)
    assert run.result["test_accuracy"]["last"] > 0.9
    (empty,) = {0, 1, 2, 3} - set(labels)
    assert run.result["tests"]["test"]["per_class"][empty] is None
    current = pyarrow.parquet.read_table(run.folder / "labels.parquet")["current_label"].to_numpy()
    assert set(current) <= set(labels)


def test_given_labels_stay_and_every_change_is_on_record(method: str, noisy: Path, tmp_path: Path) -> None:
    run = quick_train(noisy, tmp_path / "run", method=method, epochs=6, settings=settings_of(method))
    table = pyarrow.parquet.read_table(run.folder / "labels.parquet")
    labels = np.load(noisy)["train_labels"].copy()
    assert table["given_label"].to_pylist() == labels.tolist()
    for change in pyarrow.parquet.read_table(run.folder / "history.parquet").to_pylist():
        assert labels[change["index"]] == change["old"] != change["new"]
        assert 0 <= change["confidence"] <= 1 + 1e-6
        assert 1 <= change["epoch"] <= 6
        labels[change["index"]] = change["new"]
    assert table["current_label"].to_pylist() == labels.tolist()


def test_it_never_sees_the_truth(method: str, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clean labels, and other test labels, change figures and nothing that was learned."""
    runs = []
    for shift in (0, 1):
        content = dict(np.load(noisy))
        np.save(tmp_path / "given.npy", content["train_labels"])
        for key in ("train_labels", "test_labels"):
            content[key] = (content[key] + shift) % 3
        data = write_npz(tmp_path / f"{shift}.npz", **content)
        runs.append(
            quick_train(
                data,
                tmp_path / f"run{shift}",
                labels=tmp_path / "given.npy",
                method=method,
                epochs=4,
                settings=settings_of(method),
            )
        )
    assert model_bytes(runs[0]) == model_bytes(runs[1])
    one, other = (pyarrow.parquet.read_table(run.folder / "labels.parquet") for run in runs)
    assert one.equals(other)
    assert runs[0].result["noise_rate"] != runs[1].result["noise_rate"]


@pytest.mark.parametrize("names", [("unflip", "dividemix-m"), pytest.param(METHODS, marks=pytest.mark.soak)])
def test_two_processes_end_with_the_same_labels_and_weights(names: Sequence[str], noisy: Path, tmp_path: Path) -> None:
    """All methods in one launch, since a launch costs more than they do; unflip learns from images in another way."""
    content = dict(np.load(noisy))
    images = {name: value[..., None, None] if value.ndim == 2 else value for name, value in content.items()}
    plain = QUICK | {"mlp.batch_norm": False, "data.val_fraction": 0.0, "select": "last"}
    jobs: list[dict[str, Any]] = [
        {"name": name, "method": name, "settings": QUICK | settings_of(name)} for name in names
    ]
    of_images = {"network": "mlp", "data": str(write_npz(tmp_path / "images.npz", **images))}
    jobs.append({"name": "of images", "method": "unflip", "settings": QUICK | settings_of("unflip")} | of_images)
    jobs.append({"name": "as one", "method": "standard", "settings": plain})
    jobs.append({"name": "records", "method": "plc", "settings": plain | {"plc.warmup": 3}})
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).parents[1] / "support" / "two_processes.py"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = spawn_python(*launch, script, noisy, tmp_path / "jobs.json", tmp_path / "out", timeout=300)
    assert done.code == 0, done.err
    verdicts = json.loads((tmp_path / "out" / "verdicts.json").read_text())
    assert verdicts == {job["name"]: {"processes": 2, "weights": True, "labels": True, "history": True} for job in jobs}
    for job in jobs:
        assert_sound(Run(tmp_path / "out" / job["name"]), 150)

    # Without batch normalization the mean of two halves' gradients is that of the whole: one process gets the same.
    for job in jobs[-2:]:
        alone = quick_train(noisy, tmp_path / job["name"], method=job["method"], epochs=4, settings=job["settings"])
        assert_close_runs(alone, Run(tmp_path / "out" / job["name"]))


def assert_close_runs(alone: Run, shared: Run) -> None:
    for one, other in zip(alone.metrics, shared.metrics, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    weights, same = (load_model(run.folder / "model.safetensors").state for run in (alone, shared))
    for name, value in weights.items():
        torch.testing.assert_close(same[name], value, rtol=1e-3, atol=1e-4)
    first, second = (pyarrow.parquet.read_table(run.folder / "labels.parquet") for run in (alone, shared))
    np.testing.assert_allclose(first["prob_given"].to_numpy(), second["prob_given"].to_numpy(), atol=1e-3)


def test_the_shortest_method_is_the_contract_itself() -> None:
    from unflip.methods.base import Standard

    assert issubclass(Standard, Method)
    hooks = [name for name in vars(Standard) if not name.startswith("__")]
    assert hooks == []
