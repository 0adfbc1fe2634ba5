"""Every preset with every method, end to end on a batch or two: whoever has the GPU and the data types one command."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import web_images
from helpers import blobs, shrink_cifar, write_npz
from pictures import write_clothing, write_webvision
from unflip import predict, train
from unflip.methods import methods
from unflip.presets import preset_names
from unflip.runs.config import read_preset

COUNT = 30  # images to train and validate
SOON: dict[str, dict[str, Any]] = {
    "unflip": {"unflip.warmup": 1},
    "coteaching+": {"coteaching+.warmup": 1},
    "lrt": {"lrt.warmup": 1},
    **{name: {"plc.warmup": 1} for name in ("plc", "mddc", "cddc")},
    **{name: {"dividemix.warmup": 1} for name in ("dividemix", "dividemix-m", "dividemix-c")},
}
"""What brings a method to its last stage in the second epoch."""
has_timm = importlib.util.find_spec("timm") is not None


def methods_of(preset: str) -> list[str]:
    """Return the methods that a preset is for."""
    own = str(read_preset(preset).get("method", ""))
    if not own or preset == "demo":
        return methods.names()
    return {"plc": ["plc", "mddc", "cddc"]}.get(own, [own, f"{own}-m", f"{own}-c"])


PAIRS = [(preset, method) for preset in preset_names() for method in methods_of(preset)]


@pytest.fixture
def data(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | str:
    """Data in the layout that the preset is for; images in their own size, but few."""
    kind = preset.partition("-")[0]
    if kind == "demo":
        return "digits"
    if kind == "features":
        return write_npz(tmp_path / "features.npz", **blobs())
    if kind in ("webvision", "clothing1m") and not has_timm:
        pytest.skip("the extra `timm` is not installed")
    if kind == "webvision":
        return web_images.webvision(write_webvision(tmp_path / "data", classes=3, size=(60, 50)))
    if kind == "clothing1m":
        return web_images.clothing1m(write_clothing(tmp_path / "data", size=(60, 50)), clean_val=preset != "clothing1m")
    return _cifar(tmp_path / "data", monkeypatch, fine=kind == "cifar100")


def _cifar(folder: Path, monkeypatch: pytest.MonkeyPatch, *, fine: bool) -> Path:
    """Write the official binary files; CIFAR-100 has one for training, and two labels in each record."""
    folder.mkdir()
    names = ["train", "test"] if fine else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    size = COUNT // (len(names) - 1)
    shrink_cifar(monkeypatch, size, size)
    random = np.random.default_rng(0)
    for name in names:
        labels = np.arange(size) % (3 if fine else 10)
        columns = [np.zeros(size, int), labels] if fine else [labels]
        pixels = random.integers(0, 256, (size, 3072))
        (folder / f"{name}.bin").write_bytes(np.column_stack([*columns, pixels]).astype(np.uint8).tobytes())
    return folder


def settings_of(preset: str, method: str) -> dict[str, Any]:
    """What differs from the preset: the epochs; and no weights are fetched."""
    small: dict[str, Any] = {"epochs": 2} | SOON.get(method, {})
    if read_preset(preset).get("network", "").startswith("timm:"):
        size = {"data.image_size": 80, "data.image_resize": 90, "data.val_fraction": 0.5}  # of two in a class
        small |= {"timm.pretrained": False, "optimizer.batch_size": 8} | size
    return small


def run_whole(preset: str, method: str, data: Path | str, out: Path, settings: dict[str, Any]) -> None:
    """Train for two epochs, and predict."""
    options: dict[str, Any] = {} if preset.startswith(("webvision", "clothing")) else {"noise": "sym:0.3"}
    done = train(data, out, preset=preset, method=method, settings=settings, device="cpu", **options)
    assert done.is_finished
    assert len(done.metrics) == 2
    assert all(np.isfinite(value) for line in done.metrics for value in line["loss"].values())
    assert predict(done, data).probs.isfinite().all()
    shutil.rmtree(out)  # large networks, many runs: together they would fill a disk


@pytest.mark.parametrize("preset", ["cifar10"])
@pytest.mark.parametrize("method", ["standard", "lrt", "mddc", "unflip", "dividemix", "elr+"])
def test_the_papers_preset_runs(preset: str, method: str, data: Path, tmp_path: Path) -> None:
    """All 34 layers, with an eighth of the channels; the other methods are in the soak tests."""
    run_whole(preset, method, data, tmp_path / "run", settings_of(preset, method) | {"preact_resnet34.width": 8})


@pytest.mark.soak
@pytest.mark.parametrize(("preset", "method"), PAIRS)
def test_a_preset_runs_from_its_data_to_predictions(preset: str, method: str, data: Path | str, tmp_path: Path) -> None:
    run_whole(preset, method, data, tmp_path / "run", settings_of(preset, method))
