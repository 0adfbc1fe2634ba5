"""Pictures of a run's examples: the right one for each row, from every kind of data, and nothing else."""

from io import BytesIO
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from helpers import open_dataset, shrink_cifar
from pictures import COLORS, write_picture
from unflip.data.images import Pictures
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.noise.transition import CIFAR100_SUPERCLASSES
from unflip.runs.folder import open_pictures


def opened(path: Path | str, **options: object) -> tuple[Pictures, list[int]]:
    """The pictures of a data set as a run sees it, and the given labels."""
    checked = DataOptions(path=str(path), **options)
    dataset = open_dataset(checked, seed=0)
    ids = dataset.ids or tuple(map(str, range(len(dataset.given))))
    pictures = open_pictures(checked, ids)
    assert pictures is not None
    assert len(pictures) == len(dataset.given)
    return pictures, dataset.given.tolist()


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(PIL.Image.open(BytesIO(content)).convert("RGB")).astype(int)


def assert_colored(pictures: Pictures, labels: list[int]) -> None:
    """Every example's picture has the color of its class."""
    for index, label in enumerate(labels):
        mean = pixels(pictures.thumbnail(index, 48)).mean((0, 1))
        assert np.abs(mean - COLORS[label % len(COLORS)]).max() < 30, index


def folder(root: Path, size: tuple[int, int] = (90, 70)) -> Path:
    for part, count in (("train", 4), ("val", 2), ("test", 1)):
        for label in range(3):
            for i in range(count):
                write_picture(root / part / f"class {label}" / f"{i}.png", label, size)
    return root


def test_a_folder_of_large_images_with_a_broken_one_left_out(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos")
    (root / "train" / "class 0" / "1.png").write_bytes(b"no image")
    pictures, labels = opened(root, skip_broken=True)
    assert len(labels) == 17
    assert_colored(pictures, labels)
    assert pictures.media_type == "image/jpeg"
    assert PIL.Image.open(BytesIO(pictures.thumbnail(0, 48))).size == (48, 37)
    assert PIL.Image.open(BytesIO(pictures.thumbnail(0, 900))).size == (90, 70)


def test_a_folder_of_small_images(tmp_path: Path) -> None:
    assert_colored(*opened(folder(tmp_path / "icons", (20, 20)), per_class=2))


def test_a_manifest(tmp_path: Path) -> None:
    lines = ["path,label,split"]
    for i in range(12):
        write_picture(tmp_path / "any" / f"{i}.jpg", i % 3)
        lines.append(f"any/{i}.jpg,{'abc'[i % 3]},{'val' if i > 8 else 'train'}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    assert_colored(*opened(tmp_path / "list.csv"))


def test_cifar_also_with_some_examples_of_each_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_cifar(monkeypatch, 40, 4)
    random = np.random.default_rng(0)
    for name, count in (("train", 40), ("test", 4)):
        fine = random.integers(0, 5, count).astype(np.uint8)
        images = random.integers(0, 256, (count, 3072), dtype=np.uint8)
        images[:, 0] = fine  # so that a picture tells its class
        coarse = np.array(CIFAR100_SUPERCLASSES, np.uint8)[fine]
        (tmp_path / f"{name}.bin").write_bytes(np.concatenate([coarse[:, None], fine[:, None], images], 1).tobytes())
    for options in ({}, {"per_class": 3}, {"limit": 30}):
        pictures, labels = opened(tmp_path, **options)
        assert [pixels(pictures.thumbnail(i, 64))[0, 0, 0] for i in range(len(pictures))] == labels
    assert pixels(pictures.thumbnail(0, 64)).shape == (32, 32, 3)
    assert pixels(pictures.thumbnail(0, 16)).shape == (16, 16, 3)
    assert pictures.media_type == "image/png"


def test_digits_are_ink_on_paper() -> None:
    pictures, _ = opened("digits", limit=50)
    images = np.asarray(load_raw(DataOptions(path="digits")).train.inputs).reshape(-1, 8, 8)
    for index in (0, 17, 49):
        shown = pixels(pictures.thumbnail(index, 64))[:, :, 0]
        assert np.abs(shown - (255 - images[index] * 255 / 16)).max() <= 1


def test_features_have_no_pictures(features: Path) -> None:
    assert open_pictures(DataOptions(path=str(features)), ["0"]) is None


def test_data_that_has_moved_or_changed_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"No such file or folder: .*gone; if the data was moved, name its location with --data"
    ) as e:
        open_pictures(DataOptions(path=str(tmp_path / "gone")), ["0"])
    assert "\n" not in str(e.value)
    root = folder(tmp_path / "photos")
    with pytest.raises(InputError, match=r"no image train/class 9/0\.png, which the run had"):
        open_pictures(DataOptions(path=str(root)), ["train/class 0/0.png", "train/class 9/0.png"])
    with pytest.raises(InputError, match="data digits: 1347 examples, the run had 12; is it another data set"):
        open_pictures(DataOptions(path="digits"), [str(i) for i in range(12)])


def test_a_name_that_the_data_does_not_list_is_not_opened(tmp_path: Path) -> None:
    write_picture(tmp_path / "secret.png")
    root = folder(tmp_path / "photos")
    for name in ("../secret.png", str(tmp_path / "secret.png"), "train/../../secret.png"):
        with pytest.raises(InputError, match=r"no image .*, which the run had"):
            open_pictures(DataOptions(path=str(root)), [name])


def test_a_picture_that_broke_or_is_not_there_is_told(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos")
    pictures, _ = opened(root)
    (root / "train" / "class 0" / "0.png").write_bytes(b"no image any more")
    with pytest.raises(InputError, match=r"0\.png: not an image$"):
        pictures.thumbnail(0, 48)
    (root / "train" / "class 0" / "0.png").unlink()
    with pytest.raises(InputError, match=r"0\.png: No such file or directory$"):
        pictures.thumbnail(0, 48)
    for index in (-1, 18):
        with pytest.raises(InputError, match=rf"picture {index}: there are 18, counted from 0"):
            pictures.thumbnail(index, 48)


def test_a_photo_taken_upright_stands_upright(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos")
    turned = PIL.Image.Exif()
    turned[0x0112] = 6
    write_picture(root / "train" / "class 0" / "9.jpg", 0, exif=turned)
    pictures, _ = opened(root)
    assert PIL.Image.open(BytesIO(pictures.thumbnail(4, 200))).size == (70, 90)
