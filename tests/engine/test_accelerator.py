"""A GPU's discipline without a GPU: nothing mixes devices, no training step waits for the device, an epoch seldom.

The accelerator is pretended (``accelerator.py``). Whatever runs on it here computes the numbers of the processor.
"""

import importlib.util
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from methods.test_contract import METHODS, SETTINGS

import tiny_backbone
from accelerator import DEVICE, Accelerator, accelerated
from helpers import Crash, assert_same_run, blobs, crash_at_save, quick_train, without_times, write_npz
from pictures import write_picture
from unflip import embed, predict
from unflip.engine.checkpoints import EpochProgress
from unflip.engine.trainer import Trainer
from unflip.estimator import UnflipClassifier
from unflip.nn import networks
from unflip.runs.folder import Run

SAMPLED = ("unflip", "mddc", "dividemix-c")
"""Methods that between them have every part; the soak test takes all."""
REST = [name for name in METHODS if name not in SAMPLED]
SMALL: dict[str, dict[str, Any]] = {
    "preact_resnet18": {"preact_resnet18.width": 4, "preact_resnet18.blocks": [1, 1]},
    "preact_resnet34": {"preact_resnet34.width": 4, "preact_resnet34.blocks": [1, 1]},
    "senet18": {"senet18.width": 16, "senet18.blocks": [1, 1]},
    "wrn_40_2": {"wrn_40_2.width": 16, "wrn_40_2.blocks": [1, 1, 1]},
    "timm:resnet10t": {"timm.pretrained": False},
    "efficientnet-lite0": {"efficientnet-lite0.min_size": 32},
}
"""Options with which a network takes little time."""
NETWORKS = [name for name in networks.names() if name not in ("mlp", "timm", "preact_resnet8")]
MOST_WAITS = 150
"""In an epoch of three classes, without what checkpoints and results take; twice that for two networks."""

all_methods = pytest.mark.parametrize(
    "method", [*SAMPLED, *(pytest.param(name, marks=pytest.mark.soak) for name in REST)]
)


one_method = pytest.mark.parametrize(
    "method", ["mddc", *(pytest.param(name, marks=pytest.mark.soak) for name in METHODS if name != "mddc")]
)


class Waits(NamedTuple):
    """How often the device was waited for."""

    steps: list[Counter[str]]
    """In each training step but a phase's first."""
    epochs: list[int]
    """In each epoch of training, its end included."""


@contextmanager
def watched(accelerator: Accelerator) -> Iterator[Waits]:
    waits, add, train_epoch = Waits([], []), EpochProgress.add, Trainer.train_epoch
    before: Counter[str] = Counter()

    def added(self: EpochProgress, *args: Any) -> None:
        nonlocal before
        add(self, *args)
        if self.steps > 1:
            waits.steps.append(accelerator.waits - before)
        before = accelerator.waits.copy()

    def ran(self: Trainer, *args: Any, **options: Any) -> Any:
        start = accelerator.waits.total()
        figures = train_epoch(self, *args, **options)
        waits.epochs.append(accelerator.waits.total() - start)
        return figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochProgress, "add", added)
        patch.setattr(Trainer, "train_epoch", ran)
        yield waits


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = blobs()
    content["train_labels"][::6] = (content["train_labels"][::6] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small images in one folder per class, in parts: they are kept in memory."""
    return _folder(tmp_path_factory.mktemp("images"), (32, 32))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Larger images: they are read when a batch asks for them."""
    return _folder(tmp_path_factory.mktemp("photos"), (90, 70))


def _folder(root: Path, size: tuple[int, int]) -> Path:
    for part, count in (("train", 24), ("val", 6), ("test", 6)):
        for i in range(count):
            write_picture(root / part / "abc"[i % 3] / f"{i:02}.png", i % 3, size)
    return root


def assert_same_numbers(one: Run, other: Run) -> None:
    """Two runs have the same figures, but for what another order of additions makes of them."""
    for here, there in zip(without_times(one.metrics), without_times(other.metrics), strict=True):
        assert list(here) == list(there)
        assert here["loss"] == pytest.approx(there["loss"], rel=1e-3)
        assert here["test_accuracy"] == pytest.approx(there["test_accuracy"], abs=0.04)
        assert here.get("changed", 0) == pytest.approx(there.get("changed", 0), abs=3)


def test_the_pretended_device_refuses_what_a_gpu_refuses() -> None:
    here = torch.arange(4.0)
    with Accelerator():
        there = here.to(DEVICE)
        assert (there * there).sum().item() == 14
        with pytest.raises(RuntimeError, match="two devices"):
            there + here
        with pytest.raises(RuntimeError, match="two devices"):
            here[torch.tensor([1, 2]).to(DEVICE)]
        with pytest.raises(RuntimeError, match="two devices"):
            there[:2] = here[:2] @ there[:2]
        with pytest.raises(RuntimeError, match="a generator of cpu"):
            torch.rand(3, device=DEVICE, generator=torch.Generator())
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()
        assert (there + torch.tensor(1.0)).tolist() == [1, 2, 3, 4]  # a plain number may be anywhere
        assert there[torch.tensor([1, 2])].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("count", "asked"),
    [
        (0, lambda tensor: tensor * 2 + tensor.sum()),
        (0, lambda tensor: tensor.masked_fill(tensor > 1, 0.0)),
        (0, lambda tensor: tensor.index_select(0, tensor.long())),
        (1, lambda tensor: tensor.sum().item()),
        (1, lambda tensor: bool((tensor > 1).any())),
        (1, lambda tensor: tensor.tolist()),
        (1, lambda tensor: tensor.cpu()),
        (1, lambda tensor: tensor.nonzero()),
        (1, lambda tensor: tensor[tensor > 1]),
        (1, lambda tensor: tensor.unique()),
        (1, lambda tensor: tensor.long().bincount()),
        (1, lambda tensor: tensor.repeat_interleave(tensor.long())),
        (1, lambda tensor: tensor.allclose(tensor)),
        (1, lambda tensor: torch.linalg.cholesky(tensor.add(1).diag())),
        (0, lambda tensor: torch.linalg.cholesky_ex(tensor.add(1).diag())),
        (1, lambda tensor: torch.linalg.inv(tensor.add(1).diag())),
        (1, lambda tensor: torch.linalg.solve(tensor.add(1).diag(), tensor)),
        (1, lambda tensor: torch.linalg.eigh(tensor.diag())),
        (1, lambda tensor: torch.linalg.svd(tensor.diag())),
    ],
)
def test_what_waits_for_the_device_is_counted(count: int, asked: Any) -> None:
    with Accelerator() as accelerator:
        asked(torch.arange(4.0).to(DEVICE))
        assert accelerator.waits.total() == count


@all_methods
def test_a_method_runs_there_without_a_wait_in_its_steps_and_few_in_its_epochs(
    method: str, noisy: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"method": method, "epochs": 5, "settings": SETTINGS.get(method, {})}
    with accelerated() as accelerator, watched(accelerator) as waits:
        there = quick_train(noisy, tmp_path / "there", **options)
    assert sum(waits.steps, Counter()) == Counter()
    assert len(waits.steps) >= 5 * 3
    assert max(waits.epochs) <= MOST_WAITS * (2 if method.startswith("dividemix") else 1)
    assert_same_numbers(quick_train(noisy, tmp_path / "here", **options), there)


@pytest.mark.soak
@pytest.mark.parametrize("method", SAMPLED)
def test_an_epochs_waits_do_not_grow_with_the_data(method: str, tmp_path: Path) -> None:
    max_waits = []
    for count in (150, 450):
        data = write_npz(tmp_path / f"{count}.npz", **blobs(train=count))
        settings = SETTINGS.get(method, {}) | {"unflip.steps": 1} if method == "unflip" else SETTINGS.get(method, {})
        with accelerated() as accelerator, watched(accelerator) as waits:
            quick_train(data, tmp_path / str(count), method=method, epochs=4, settings=settings)
        max_waits.append(max(waits.epochs))
    assert max_waits[1] <= max_waits[0] + 10  # how often a mixture or a weight is improved may differ


@one_method
def test_a_run_resumed_there_is_the_undisturbed_one(
    method: str, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"method": method, "epochs": 4, "settings": SETTINGS.get(method, {})}
    with accelerated():
        whole = quick_train(noisy, tmp_path / "whole", **options)
        crash_at_save(monkeypatch, 13)
        with pytest.raises(Crash):
            quick_train(noisy, tmp_path / "cut", checkpoint_minutes=0, **options)
        monkeypatch.undo()
        assert_same_run(whole, quick_train(noisy, tmp_path / "cut", resume=True, **options))


@one_method
def test_products_in_half_precision_are_no_trouble(method: str, noisy: Path, tmp_path: Path) -> None:
    settings = SETTINGS.get(method, {}) | {"precision": "bfloat16"}
    with accelerated(half=True) as accelerator, watched(accelerator) as waits:
        run = quick_train(noisy, tmp_path / "run", method=method, epochs=4, settings=settings)
    assert sum(waits.steps, Counter()) == Counter()
    assert run.result["test_accuracy"]["last"] > 0.6


@one_method
def test_a_method_runs_there_on_images(method: str, images: Path, tmp_path: Path) -> None:
    small = {"optimizer.batch_size": 8, "preact_resnet8.width": 4, "preact_resnet8.blocks": [1]}
    options: dict[str, Any] = {"method": method, "network": "preact_resnet8", "epochs": 4}
    settings = {key: value for key, value in SETTINGS.get(method, {}).items() if key != "data.jitter"} | small
    settings |= {"mlp.hidden": None}
    with accelerated() as accelerator, watched(accelerator) as waits:
        run = _train_images(images, tmp_path / "run", settings, **options)
    assert waits.steps
    assert sum(waits.steps, Counter()) == Counter()
    assert run.is_finished


@pytest.mark.parametrize(
    ("method", "precision"),
    [
        pytest.param("unflip", "float32", marks=pytest.mark.soak),
        pytest.param("mddc", "bfloat16", marks=pytest.mark.soak),
        pytest.param("dividemix", "float32", marks=pytest.mark.soak),
    ],
)
def test_a_network_is_fine_tuned_there_first_its_head(
    method: str, precision: str, images: Path, tmp_path: Path
) -> None:
    network = "efficientnet-lite0"
    settings = {"optimizer.batch_size": 8, f"{network}.min_size": 32, "precision": precision}
    options: dict[str, Any] = {"method": method, "network": network, "epochs": 3}
    with accelerated(half=precision == "bfloat16") as accelerator, watched(accelerator) as waits:
        run = _train_images(images, tmp_path / "run", settings, **options)
    assert waits.steps
    assert sum(waits.steps, Counter()) == Counter()
    assert run.is_finished


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=pytest.mark.soak) if name != "senet18" else name
        for name in [*NETWORKS, *(["timm:resnet10t"] if importlib.util.find_spec("timm") else [])]
    ],
)
def test_a_network_trains_there(network: str, images: Path, tmp_path: Path) -> None:
    settings = SMALL.get(network, {}) | {"optimizer.batch_size": 8}
    with accelerated() as accelerator, watched(accelerator) as waits:
        run = _train_images(images, tmp_path / "run", settings, method="standard", network=network, epochs=2)
        found = predict(tmp_path / "run", images / "test", device="cpu")
    assert waits.steps
    assert sum(waits.steps, Counter()) == Counter()
    assert run.is_finished
    assert found.probs.device.type == "cpu"


def _train_images(data: Path, out: Path, settings: dict[str, Any], **options: Any) -> Run:
    from unflip import train

    settings = {key: value for key, value in settings.items() if value is not None}
    return train(data, out, settings=settings, device="cpu", **options)


def test_files_that_are_read_when_needed_make_no_step_wait(photos: Path, tmp_path: Path) -> None:
    settings = {"optimizer.batch_size": 8, "preact_resnet8.width": 4, "data.image_size": 65, "dividemix.warmup": 1}
    options: dict[str, Any] = {"method": "dividemix", "network": "preact_resnet8", "epochs": 2}
    with accelerated() as accelerator, watched(accelerator) as waits:
        assert _train_images(photos, tmp_path / "run", settings, **options).is_finished
    assert sum(waits.steps, Counter()) == Counter()


def test_neither_do_arrays_that_stay_on_disk_or_come_in_parts(tmp_path: Path) -> None:
    content = blobs()
    np.save(tmp_path / "train.npy", content["train"])
    np.save(tmp_path / "labels.npy", content["train_labels"])
    parts = {"val": content["test"], "val_labels": content["test_labels"]}
    joined = write_npz(tmp_path / "joined.npz", **content, **parts)
    runs: dict[str, tuple[Path, dict[str, Any], dict[str, Any]]] = {
        "mapped": (tmp_path / "train.npy", {"labels": tmp_path / "labels.npy"}, {"data.mmap_threshold_mb": 0}),
        "joined": (joined, {}, {}),
    }
    for name, (data, options, settings) in runs.items():
        with accelerated() as accelerator, watched(accelerator) as waits:
            run = quick_train(data, tmp_path / name, method="plc", epochs=3, settings=settings, **options)
        assert run.is_finished
        assert sum(waits.steps, Counter()) == Counter(), name


@pytest.mark.soak
def test_images_are_embedded_and_predicted_there(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_backbone.register(monkeypatch)
    here = embed(photos, tmp_path / "here.npz", backbone="tiny", device="cpu")
    with accelerated():
        there = embed(photos, tmp_path / "there.npz", backbone="tiny", device="cpu")
        quick_train(tmp_path / "there.npz", tmp_path / "run", method="unflip", epochs=3)
        found = predict(tmp_path / "run", photos / "test", device="cpu")
    assert there.counts == here.counts
    with np.load(tmp_path / "here.npz") as one, np.load(tmp_path / "there.npz") as other:
        np.testing.assert_allclose(one["train"], other["train"], rtol=1e-3)
    torch.testing.assert_close(found.probs, predict(tmp_path / "run", photos / "test", device="cpu").probs)


def test_posteriors_for_noise_are_estimated_there(features: Path, tmp_path: Path) -> None:
    with accelerated():
        run = quick_train(features, tmp_path / "run", method="plc", epochs=2, noise="pmd1:0.35 + sym:0.1")
    assert run.is_finished


@pytest.mark.soak
def test_the_estimator_learns_there(noisy: Path) -> None:
    content = np.load(noisy)
    with accelerated():
        model = UnflipClassifier(method="unflip", epochs=3, device="cpu").fit(content["train"], content["train_labels"])
        probs = model.predict_proba(content["test"])
    assert isinstance(probs, np.ndarray)
    assert (probs.argmax(1) == content["test_labels"]).mean() > 0.9
