"""CIFAR in both official layouts: tiny folders of the same form."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import open_dataset, shrink_cifar
from unflip.data.dataset import Dataset
from unflip.data.loaders import load_raw
from unflip.data.loaders.cifar import CIFAR10, CIFAR100, Cifar
from unflip.data.options import DataOptions, NoiseOptions
from unflip.errors import InputError, UnflipError
from unflip.noise.transition import CIFAR100_SUPERCLASSES

Array = np.ndarray[Any, Any]
KINDS = [CIFAR10, CIFAR100]
LAYOUTS = ["binary", "python"]


def content(kind: Cifar, records: int = 4) -> dict[str, tuple[Array, Array]]:
    """Random images and labels for every file; the files together have every class twice or so."""
    random = np.random.default_rng(0)
    files = {}
    for number, name in enumerate((*kind.train, kind.test)):
        labels = (np.arange(records) + number * records) % len(kind.class_names)
        files[name] = (random.integers(0, 256, (records, 3072), dtype=np.uint8), labels.astype(np.uint8))
    return files


def write(folder: Path, kind: Cifar, layout: str, files: dict[str, tuple[Array, Array]] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    for name, (pixels, labels) in (files or content(kind)).items():
        if layout == "binary":
            columns = [labels] if kind is CIFAR10 else [np.array(CIFAR100_SUPERCLASSES, np.uint8)[labels], labels]
            records = np.concatenate([np.stack(columns, 1), pixels], 1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        else:
            batch = {b"data": pixels, kind.label_key.encode(): labels.tolist(), b"coarse_labels": [0] * len(labels)}
            (folder / name).write_bytes(pickle.dumps(batch, 4))
    return folder


@pytest.fixture(autouse=True)
def _four_records(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_cifar(monkeypatch, 4, 4)


def load(folder: Path) -> Dataset:
    return load_raw(DataOptions(path=str(folder)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_folder_is_recognized_and_read_in_the_official_order(tmp_path: Path, kind: Cifar, layout: str) -> None:
    files = content(kind)
    loaded = load(write(tmp_path / "any name", kind, layout, files))
    assert loaded.name == kind.name
    pixels, labels = (np.concatenate([files[file][i] for file in kind.train]) for i in (0, 1))
    np.testing.assert_array_equal(loaded.train.inputs, pixels.reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(loaded.train.labels, labels)
    test = loaded.tests["test"]
    np.testing.assert_array_equal(test.inputs, files[kind.test][0].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(test.labels, files[kind.test][1])
    assert (loaded.class_names, loaded.class_map) == (kind.class_names, kind.name)


def test_a_record_is_labels_then_rows_of_red_green_and_blue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_cifar(monkeypatch, 1, 1)
    pixels = np.zeros((1, 3072), np.uint8)
    pixels[0, 1024 + 32 * 5 + 7] = 9  # the second plane, row 5, column 7
    for kind in KINDS:
        files = {name: (pixels, np.array([6], np.uint8)) for name in (*kind.train, kind.test)}
        loaded = load(write(tmp_path / kind.name, kind, "binary", files))
        test = loaded.tests["test"]
        assert isinstance(test.inputs, np.ndarray)
        assert test.inputs[0, 1, 5, 7] == 9
        assert test.labels is not None
        assert test.class_numbers.tolist() == [6]


def test_classes_are_named_in_the_order_of_their_numbers() -> None:
    assert (CIFAR10.class_names[0], CIFAR10.class_names[9]) == ("airplane", "truck")
    assert len(CIFAR100.class_names) == 100
    assert [CIFAR100.class_names[i] for i in (0, 1, 47, 99)] == ["apple", "aquarium_fish", "maple_tree", "worm"]


@pytest.mark.filterwarnings("ignore:.*no training examples")  # of some of the 100 classes
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_images_become_a_normalized_data_set_that_augments(tmp_path: Path, kind: Cifar) -> None:
    folder = write(tmp_path / "a", kind, "binary")
    dataset = open_dataset(DataOptions(path=str(folder), val_fraction=0.0), seed=0)
    assert dataset.source.augments
    assert dataset.source.shape == (3, 32, 32)
    images = torch.from_numpy(np.concatenate([content(kind)[name][0] for name in kind.train])).view(-1, 3, 32, 32)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (kind.mean, kind.std))
    found = dataset.source.fetch(torch.arange(len(images)))
    torch.testing.assert_close(found, (images / 255 - mean) / std, atol=1e-5, rtol=1e-4)
    assert dataset.tests["test"].source.fetch(torch.arange(4)).dtype == torch.float32


def test_augmentation_can_be_switched_off(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", CIFAR10, "binary")
    assert not open_dataset(DataOptions(path=str(folder), augment=False), seed=0).source.augments


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_asymmetric_noise_uses_the_datas_own_map(tmp_path: Path, kind: Cifar, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_cifar(monkeypatch, 200, 200)
    folder = write(tmp_path / "a", kind, "binary", content(kind, records=200))
    dataset = open_dataset(DataOptions(path=str(folder)), 0, NoiseOptions(recipe="asym:0.9"))
    assert dataset.clean is not None
    changed = dataset.given != dataset.clean
    assert changed.any()
    if kind is CIFAR10:
        pairs = set(zip(dataset.clean[changed].tolist(), dataset.given[changed].tolist(), strict=True))
        assert pairs <= {(9, 1), (2, 0), (4, 7), (3, 5), (5, 3)}
    else:
        superclass = torch.tensor(CIFAR100_SUPERCLASSES)
        assert torch.equal(superclass[dataset.given], superclass[dataset.clean])


@pytest.mark.parametrize(
    ("kind", "name", "size"), [(CIFAR10, "data_batch_3", 3073), (CIFAR10, "test_batch", 3073), (CIFAR100, "test", 3074)]
)
@pytest.mark.parametrize("missing", [1, 3000, 3073, 3074, None])  # among them whole records
def test_a_truncated_file_says_expected_and_found_size(
    tmp_path: Path, kind: Cifar, name: str, size: int, missing: int | None
) -> None:
    folder = write(tmp_path / "a", kind, "binary")
    file = folder / f"{name}.bin"
    found = 0 if missing is None else 4 * size - missing
    file.write_bytes(file.read_bytes()[:found])
    message = rf"{name}\.bin: {found} bytes instead of {4 * size}; download it again"
    with pytest.raises(InputError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_batch_with_fewer_images_says_expected_and_found_number(tmp_path: Path, kind: Cifar) -> None:
    files = content(kind)
    files[kind.test] = (files[kind.test][0][:3], files[kind.test][1][:3])
    with pytest.raises(InputError, match=f"{kind.test}.*'data': not an array of 4 x 3072 bytes; download it again"):
        load(write(tmp_path / "a", kind, "python", files))


def test_the_official_files_hold_fifty_and_ten_thousand_images() -> None:
    assert [len(kind.train) * kind.records[0] for kind in KINDS] == [50_000, 50_000]
    assert [kind.records[1] for kind in KINDS] == [10_000, 10_000]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_missing_file_is_named(tmp_path: Path, kind: Cifar, layout: str) -> None:
    folder = write(tmp_path / "a", kind, layout)
    missing = folder / (f"{kind.test}.bin" if layout == "binary" else kind.test)
    missing.unlink()
    with pytest.raises(InputError, match=f"{missing.name}: No such file"):
        load(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_label_out_of_range_is_named(tmp_path: Path, layout: str) -> None:
    files = content(CIFAR10)
    files["data_batch_2"][1][3] = 77
    with pytest.raises(InputError, match="train_labels, row 7: label 77"):
        open_dataset(DataOptions(path=str(write(tmp_path / "a", CIFAR10, layout, files))))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": [1] * 4}, "'data': not an array of 4 x 3072 bytes"),
        ({"data": np.zeros((4, 3071), np.uint8), "labels": [1] * 4}, "'data': not an array of 4 x 3072 bytes"),
        ({"data": [1], "labels": [1] * 4}, "'data': not an array of 4 x 3072 bytes"),
        ({"data": np.zeros((4, 3072), np.uint8), "fine_labels": [1] * 4}, "'labels': not a list of 4 integers"),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": [1, 2]}, "'labels': not a list of 4 integers"),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": ["cat"] * 4}, "'labels': not a list of 4 integers"),
    ],
)
def test_a_python_batch_with_other_content_is_refused(tmp_path: Path, batch: dict[str, Any], message: str) -> None:
    folder = write(tmp_path / "a", CIFAR10, "python")
    (folder / "data_batch_4").write_bytes(pickle.dumps(batch, 4))
    with pytest.raises(InputError, match=f"data_batch_4.*{message}"):
        load(folder)


def test_folders_of_pictures_and_of_arrays_are_not_taken_for_cifar(tmp_path: Path) -> None:
    for name in ("train", "test", "data_batch_1"):
        (tmp_path / name).mkdir()
    assert not any(kind.recognizes(tmp_path, DataOptions(path=str(tmp_path))) for kind in KINDS)
    np.save(tmp_path / "train.npy", np.eye(2))
    assert load(tmp_path).name == tmp_path.name


def test_the_bare_name_is_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="No such file or folder: cifar10"):
        load(Path("cifar10"))
    assert load(write(tmp_path / "cifar10", CIFAR100, "binary").relative_to(tmp_path)).name == "cifar100"


def write_human(folder: Path, kind: Cifar, files: dict[str, tuple[Array, Array]], old: bool = False) -> Path:
    """Write labels by people as published: every label is one further than the class, the last ones right."""
    clean = np.concatenate([files[name][1] for name in kind.train]).astype(np.int64)
    labels = {key: (clean + 1) % len(kind.class_names) for key in kind.human_keys.values()}
    path = folder / kind.human
    torch.save({"clean_label": clean, **labels}, path, _use_new_zipfile_serialization=not old)
    return path


@pytest.mark.filterwarnings("ignore:.*no training examples")  # of most classes of CIFAR-100
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_labels_by_people_are_read_from_the_published_file(tmp_path: Path, kind: Cifar, old: bool) -> None:
    files = content(kind)
    folder = write(tmp_path / "data", kind, "binary", files)
    write_human(folder.parent if old else folder, kind, files, old)
    clean = np.concatenate([files[name][1] for name in kind.train])
    for name in kind.human_keys:
        dataset = open_dataset(DataOptions(path=str(folder), labels=name, val_fraction=0.0))
        assert dataset.given.tolist() == ((clean + 1) % len(kind.class_names)).tolist()
        assert dataset.clean is not None
        assert dataset.clean.tolist() == clean.tolist()


def test_a_limit_takes_the_first_of_them(tmp_path: Path) -> None:
    files = content(CIFAR10)
    folder = write(tmp_path, CIFAR10, "python", files)
    write_human(folder, CIFAR10, files)
    dataset = open_dataset(DataOptions(path=str(folder), labels="cifar-10n:worse", limit=6, val_fraction=0.0))
    assert dataset.given.tolist() == [1, 2, 3, 4, 5, 6]


class Harmful:
    """Refers to a function that a restricted reader must not call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exit, (1,))


def test_what_is_wrong_with_the_published_file_is_one_line(tmp_path: Path) -> None:
    files = content(CIFAR10)
    folder = write(tmp_path / "data", CIFAR10, "binary", files)

    def message(labels: str = "cifar-10n:worse") -> str:
        with pytest.raises(UnflipError) as caught:
            open_dataset(DataOptions(path=str(folder), labels=labels))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no file CIFAR-10_human.pt in it or beside it" in message()
    path = write_human(folder, CIFAR10, files)
    assert "did you mean 'cifar-10n:worse'?" in message("cifar-10n:worst")
    assert "labels cifar-100n:fine: cannot read" in message("cifar-100n:fine")
    whole = torch.load(path, weights_only=False)
    for changed, expected in (
        ({"worse_label": whole["worse_label"][:3]}, "'worse_label': not an array of 20 integers; download it again"),
        ({"worse_label": whole["worse_label"] + 9}, "row 0: label 10"),
        ({"clean_label": whole["clean_label"][::-1].copy()}, "'clean_label': not the classes in"),
        ({"worse_label": Harmful()}, "not a readable"),
    ):
        torch.save(whole | changed, path)
        assert expected in message()
    path.write_bytes(b"nothing")
    assert "not a readable" in message()
