"""Images in files through the whole of a run: trained, resumed, skipped where broken, and predicted."""

import csv
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import web_images
from helpers import Crash, Outcome, assert_same_run, capture_trainers, crash_after
from pictures import write_clothing, write_picture, write_webvision
from unflip import predict, train
from unflip.data.files import ResizeCrop
from unflip.engine.checkpoints import EpochProgress
from unflip.errors import ConfigError, InputError
from unflip.runs.folder import Run
from unflip.runs.model_file import load_model

needs_timm = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="the extra `timm` is not installed")
SIZE: dict[str, Any] = {"data.image_size": 72, "optimizer.batch_size": 8}
SMALL: dict[str, Any] = {"preact_resnet8.width": 16, "preact_resnet8.blocks": [1, 1]}


def run(data: Path, out: Path, settings: dict[str, Any] | None = None, **options: Any) -> Run:
    chosen: dict[str, Any] = {"method": "standard", "network": "preact_resnet8", "epochs": 2, **options}
    own = SMALL if chosen["network"] == "preact_resnet8" else {"timm.pretrained": False}
    return train(data, out, settings=SIZE | own | (settings or {}), device="cpu", **chosen)


def clothes(root: Path) -> Path:
    return web_images.clothing1m(write_clothing(root), clean_val=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of large images: 24 to train, 6 to test."""
    root = tmp_path_factory.mktemp("folder")
    for part, count in (("train", 24), ("test", 6)):
        for i in range(count):
            write_picture(root / part / "abc"[i % 3] / f"{part}{i:02}.jpg", i % 3, (90 + i, 120 - i))
    return root


@needs_timm
def test_webvision_mini_is_trained_and_tested_on_both_test_sets(tmp_path: Path) -> None:
    root = web_images.webvision(write_webvision(tmp_path / "w"))
    done = run(root, tmp_path / "run", {"data.val_fraction": 0.25}, network="timm:resnet18", epochs=1)
    assert done.result["data"] == "webvision.parquet"
    assert list(done.result["tests"]) == ["test", "test-imagenet"]
    for figures in done.result["tests"].values():
        assert 0 <= figures["top1"] <= figures["top5"] <= 1
        assert len(figures["per_class"]) == 50
    found = predict(done, root, part="test-imagenet")
    right = torch.tensor([label for label in range(6) for _ in range(2)])
    top5 = found.probs.topk(5).indices.eq(right[:, None]).any(1)
    assert done.result["tests"]["test-imagenet"]["top1"] == pytest.approx(float((found.labels == right).float().mean()))
    assert done.result["tests"]["test-imagenet"]["top5"] == pytest.approx(float(top5.float().mean()))
    assert found.ids[0].endswith("n01440764/ILSVRC2012_val_00.JPEG")


@pytest.mark.soak
@needs_timm
def test_clothing1m_is_trained_with_timm_and_says_that_its_validation_labels_are_clean(tmp_path: Path) -> None:
    done = run(clothes(tmp_path / "c"), tmp_path / "run", {"data.crop": "random"}, network="timm:resnet18")
    assert done.result["protocol"] == "clean-val (uses the truth: clean validation labels)"
    assert list(done.result["tests"]) == ["test"]
    assert done.result["tests"]["test"]["top5"] >= done.result["tests"]["test"]["top1"]


def test_clean_validation_labels_can_be_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = capture_trainers(monkeypatch)
    done = run(clothes(tmp_path / "c"), tmp_path / "run", epochs=1, select="clean-val")
    assert done.metrics[0]["clean_val_accuracy"] == done.metrics[0]["val_accuracy"]
    assert made[0].method.context.clean_val


def test_dividemix_sees_two_views_of_each_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = capture_trainers(monkeypatch)
    root = clothes(tmp_path / "c")
    run(root, tmp_path / "run", {"dividemix.warmup": 1}, method="dividemix")
    (trainer,) = made
    (phase, *_) = trainer.method.phases(1, trainer.observe(EpochProgress()), trainer.labels)
    batch = next(iter(trainer.batches(1, 0, replace(phase, views=2))))
    assert len(batch.views) == 2
    assert batch.views[0].shape[1:] == (3, 72, 72)
    assert not torch.equal(*batch.views)


def test_a_run_learns_and_its_model_predicts_what_it_was_tested_with(folder: Path, tmp_path: Path) -> None:
    done = run(folder, tmp_path / "run", {"optimizer.lr": 0.05}, epochs=4)
    assert done.result["test_accuracy"]["selected"] == 1.0
    model = load_model(done.folder / "model.safetensors")
    assert (model.input_shape, model.frame) == ((3, 72, 72), ResizeCrop(72, 82))
    found = predict(done, folder)
    assert found.ids == [f"test/{'abc'[i // 2]}/test{i % 2 * 3 + i // 2:02}.jpg" for i in range(6)]
    assert [found.class_names[label] for label in found.labels] == list("aabbcc")
    with (done.folder / "labels.csv").open() as file:
        assert next(csv.DictReader(file))["id"] == "train/a/train00.jpg"


def test_images_without_labels_get_the_same_predictions(folder: Path, tmp_path: Path) -> None:
    done = run(folder, tmp_path / "run", epochs=1)
    whole = predict(done, folder)
    flat = tmp_path / "flat"
    flat.mkdir()
    for name in whole.ids:
        (flat / Path(name).name).symlink_to(folder / name)
    manifest = tmp_path / "m.csv"
    manifest.write_text("path\n" + "".join(f"{folder / name}\n" for name in whole.ids))
    torch.testing.assert_close(predict(done, manifest).probs, whole.probs)
    loose = predict(done, flat)
    order = [loose.ids.index(Path(name).name) for name in whole.ids]
    torch.testing.assert_close(loose.probs[order], whole.probs)


def test_neither_workers_nor_a_stop_in_between_change_a_run(folder: Path, tmp_path: Path) -> None:
    whole = run(folder, tmp_path / "whole", {"data.workers": 1}, method="plc", epochs=3)
    with pytest.MonkeyPatch.context() as crashing:
        crash_after(crashing, 2)
        with pytest.raises(Crash):
            run(folder, tmp_path / "cut", {"data.workers": 4}, method="plc", epochs=3)
    assert_same_run(whole, run(folder, tmp_path / "cut", {"data.workers": 4}, method="plc", epochs=3, resume=True))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder with three broken images, one of them cut short."""
    root = tmp_path / "broken"
    for i in range(18):
        write_picture(root / "train" / "abc"[i % 3] / f"{i:02}.jpg", i % 3)
    for i in range(3):
        write_picture(root / "test" / "abc"[i] / f"{i}.jpg", i)
    cut = root / "train" / "b" / "01.jpg"
    cut.write_bytes(cut.read_bytes()[:700])
    (root / "train" / "c" / "x.png").write_text("no picture")
    (root / "test" / "a" / "0.jpg").write_bytes(b"")
    return root


def test_a_broken_image_stops_the_run_in_its_first_epoch(broken: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/(b/01\.jpg|c/x\.png): .*; to leave such images out: --skip-broken"):
        run(broken, tmp_path / "run")


def test_broken_images_can_be_left_out_and_are_listed(
    broken: Path, tmp_path: Path, cli: Callable[..., Outcome]
) -> None:
    out = tmp_path / "run"
    settings = [f"--set={key}={value}" for key, value in (SIZE | SMALL).items()]
    told = cli(
        "train", "--data", broken, "--out", out, "--method", "standard", "--network", "preact_resnet8",
        "--epochs", 1, "--skip-broken", "--set", "data.max_broken=0.5", *settings,
    )  # fmt: skip
    assert told.code == 0, told.err
    assert f"broken images skipped: 3 ({out / 'skipped.csv'})" in told.out
    with (out / "skipped.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["part"], row["id"]) for row in rows] == [
        ("train", "train/b/01.jpg"),
        ("train", "train/c/x.png"),
        ("test", "test/a/0.jpg"),
    ]
    with (out / "labels.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 17
    refused = cli("predict", out, "--data", broken)
    assert refused.code == 2
    assert "test/a/0.jpg: not an image; to leave such images out: --skip-broken" in refused.err
    told = cli("predict", out, "--data", broken, "--skip-broken")
    assert told.code == 0
    assert told.err == "skipped test/a/0.jpg: not an image\n"
    assert [row["id"] for row in csv.DictReader(told.out.splitlines())] == ["test/b/1.jpg", "test/c/2.jpg"]


def test_small_images_are_trained_on_in_their_own_size(tmp_path: Path) -> None:
    for i in range(30):
        write_picture(tmp_path / "data" / "abc"[i % 3] / f"{i}.png", i % 3, (24, 24))
    done = run(tmp_path / "data", tmp_path / "run", {"data.image_size": 24}, epochs=1)
    assert load_model(done.folder / "model.safetensors").input_shape == (3, 24, 24)
    one = predict(done, tmp_path / "data", part="train")
    for i in range(3):
        write_picture(tmp_path / "larger" / f"{i}.png", i, (48, 48))
    assert len(one.ids) == 30
    assert len(predict(done, tmp_path / "larger").ids) == 3


def small_run(root: Path, size: tuple[int, int]) -> Run:
    """Train on small images as they are, PNG and JPEG, one of them gray."""
    for i in range(30):
        write_picture(root / "data" / "abc"[i % 3] / f"{i}.{('png', 'jpg')[i % 2]}", i % 3, size)
    gray = root / "data" / "a" / "3.jpg"
    PIL.Image.open(gray).convert("L").save(gray)
    own = SMALL | {"optimizer.batch_size": 8}
    return train(
        root / "data", root / "run", settings=own, method="standard", network="preact_resnet8", epochs=1, device="cpu"
    )


def test_new_images_are_brought_to_the_size_of_small_ones_and_those_that_have_it_stay_as_they_are(
    tmp_path: Path,
) -> None:
    done = small_run(tmp_path, (24, 24))
    model = load_model(done.folder / "model.safetensors")
    assert (model.input_shape, model.frame) == ((3, 24, 24), None)
    found = predict(done, tmp_path / "data", device="cpu")
    pixels = np.stack([np.asarray(PIL.Image.open(tmp_path / "data" / name).convert("RGB")) for name in found.ids])
    np.save(tmp_path / "a.npy", pixels.transpose(0, 3, 1, 2))
    assert torch.equal(found.probs, predict(done, tmp_path / "a.npy", device="cpu").probs)
    for i, size in enumerate([(300, 200), (24, 24), (20, 31)]):
        write_picture(tmp_path / "new" / f"{i}.png", i, size)
    assert predict(done, tmp_path / "new").ids == ["0.png", "1.png", "2.png"]


@pytest.mark.soak
def test_what_images_a_model_takes_that_are_no_square_is_said(tmp_path: Path) -> None:
    done = small_run(tmp_path, (32, 24))
    assert len(predict(done, tmp_path / "data").ids) == 30
    remedy = r"the model takes \(3, 24, 32\)$"
    sizes = {r"examples of shape \(3, 30, 30\)": [(30, 30)], "images of several sizes": [(32, 24), (30, 24)]}
    for came, new in sizes.items():
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for i, size in enumerate(new):
            write_picture(folder / f"{i}.png", i, size)
        with pytest.raises(InputError, match=rf"'train': {came}; {remedy}"):
            predict(done, folder)


@pytest.mark.parametrize(
    ("side", "settings", "message"),
    [
        (24, {"data.shift": 24}, r"data\.shift = 24: must be below the images' side, 24$"),
        (24, {"data.shift": 100_000}, r"data\.shift = 100000: must be below the images' side, 24"),
    ],
)
def test_a_shift_beyond_the_images_is_refused(
    tmp_path: Path, side: int, settings: dict[str, Any], message: str
) -> None:
    for i in range(6):
        write_picture(tmp_path / "data" / "ab"[i % 2] / f"{i}.png", i % 2, (side, side))
    with pytest.raises(ConfigError, match=f"^{message}"):
        train(tmp_path / "data", tmp_path / "run", network="preact_resnet8", epochs=1, settings=settings, device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("side", "settings"),
    [
        (24, {"data.image_size": 20, "data.image_resize": 22, "data.resample": "bicubic", "data.shift": 1}),
        (90, {"data.image_size": 70, "data.image_resize": 80, "data.resample": "bicubic", "data.crop": "random"}),
    ],
)
def test_what_is_read_for_images_of_this_size_is_taken_and_a_file_may_say_more(
    tmp_path: Path, side: int, settings: dict[str, Any]
) -> None:
    for i in range(12):
        write_picture(tmp_path / "data" / "ab"[i % 2] / f"{i}.png", i % 2, (side, side))
    (tmp_path / "c.toml").write_text('[data]\nshift = 2\ncrop = "random"\n')
    own: dict[str, Any] = {"method": "standard", "network": "preact_resnet8", "epochs": 1, "device": "cpu"}
    done = train(tmp_path / "data", tmp_path / "run", config=tmp_path / "c.toml", settings=SMALL | settings, **own)
    assert done.is_finished
