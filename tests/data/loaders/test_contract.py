"""What every loader must do: a new one is tested by being registered, with an example of its data below."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import blobs, shrink_cifar, write_npz
from pictures import write_picture
from unflip.data import datasets
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Split
from unflip.data.files import ImageFiles
from unflip.data.labeling import label_data
from unflip.data.loaders import FOR_ALL, Loader, check_used, find_loader, load_raw
from unflip.data.loaders.cifar import CIFAR10, CIFAR100, Cifar
from unflip.data.options import DataOptions
from unflip.data.split import split
from unflip.encoders.table import encode_raw
from unflip.errors import ConfigError, UnflipError

RECORDS = 20


def write_pictures(folder: Path) -> Path:
    for part, count in (("train", 4), ("test", 1)):
        for label in range(3):
            for i in range(count):
                write_picture(folder / part / f"class {label}" / f"{i}.png", label, (20, 20))
    return folder


def write_manifest(folder: Path) -> Path:
    paths = [path.relative_to(folder) for path in sorted(write_pictures(folder).rglob("*.png"))]
    rows = [f"{path},{path.parts[1]},{path.parts[0]}" for path in paths]
    (folder / "images.csv").write_text("\n".join(["path,label,split", *rows]) + "\n")
    return folder / "images.csv"


def write_table(folder: Path) -> Path:
    content = blobs(train=30)
    rows = zip(content["train"].tolist(), content["train_labels"].tolist(), strict=True)
    lines = [",".join(map(str, [*values, label])) for values, label in rows]
    (folder / "table.csv").write_text("\n".join(["a,b,c,d,e,f,label", *lines]) + "\n")
    return folder / "table.csv"


def write_texts(folder: Path) -> Path:
    """Texts of three classes, each with words of its own."""
    words = {"fruit": "apple pear plum fig", "metal": "iron lead zinc tin", "beast": "fox bear wolf hare"}
    for part, count in (("train", 8), ("test", 2)):
        for label, own in words.items():
            for i in range(count):
                path = folder / part / label / f"{i}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                chosen = own.split()
                path.write_text(f"{part} {chosen[i % 4]} {chosen[(i + 1) % 4]} and {chosen[(i + 3) % 4]}, number {i}")
    return folder


def write_cifar(kind: Cifar) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        random = np.random.default_rng(0)
        for name in (*kind.train, kind.test):
            labels = np.arange(RECORDS, dtype=np.uint8) % 5
            columns = np.repeat(labels[:, None], kind.label_bytes, axis=1)
            pixels = random.integers(0, 255, (RECORDS, 3072), np.uint8)
            (folder / f"{name}.bin").write_bytes(np.concatenate([columns, pixels], 1).tobytes())
        return folder

    return write


EXAMPLES: dict[str, Callable[[Path], Path]] = {
    "texts": write_texts,
    "images": write_pictures,
    "manifest": write_manifest,
    "table": write_table,
    "arrays": lambda folder: write_npz(folder / "features.npz", **blobs(train=30)),
    "cifar10": write_cifar(CIFAR10),
    "cifar100": write_cifar(CIFAR100),
    "digits": lambda folder: Path("digits"),
}
"""Writes a small data set into a folder, and returns what `--data` would name."""


@pytest.fixture(params=datasets.names())
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    assert chosen in EXAMPLES, f"the loader '{chosen}' is registered: add an example of its data to EXAMPLES"
    return chosen


@pytest.fixture
def path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shrink_cifar(monkeypatch, RECORDS, RECORDS)
    folder = tmp_path / "data"
    folder.mkdir()
    return EXAMPLES[name](folder)


def load(path: Path) -> Dataset:
    return load_raw(DataOptions(path=str(path)))


def count(part: Split) -> int:
    return len(part.inputs)


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_it_is_a_loader_with_options_that_have_defaults(name: str) -> None:
    loader = datasets.load(name)
    assert isinstance(loader, Loader)


def test_it_alone_is_found_for_its_data(name: str, path: Path) -> None:
    assert find_loader(DataOptions(path=str(path))) == name
    loader: Loader = datasets.load(name)
    assert loader.built_in or loader.recognizes(path, DataOptions(path=str(path)))


def test_it_recognizes_neither_nothing_nor_what_is_not_there(name: str, tmp_path: Path) -> None:
    loader: Loader = datasets.load(name)
    (tmp_path / "notes.txt").write_text("no data")
    for path in (tmp_path / "notes.txt", tmp_path / "missing.csv"):
        assert not loader.recognizes(path, DataOptions(path=str(path)))


def test_its_parts_fit_together(name: str, path: Path) -> None:
    raw = load(path)
    loader: Loader = datasets.load(name)
    assert raw.name == (path.name if loader.general else name)
    assert set(raw.parts()) == {"train", *raw.tests} | ({"val"} if raw.val else set())
    for part in raw.parts().values():
        assert count(part) > 0
        for column in (part.labels, part.ids, part.digests, part.groups):
            assert column is None or len(column) == count(part)
        assert part.truth is None  # what is known to be true goes another way
    if raw.train.ids is not None:
        assert len(set(raw.train.ids.tolist())) == count(raw.train)
    assert raw.holds_images or not isinstance(raw.train.inputs, ImageFiles)


def test_it_reads_the_same_twice_and_writes_nothing(path: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    one, other = load(path), load(path)
    assert list(one.parts()) == list(other.parts())
    for first, second in zip(one.parts().values(), other.parts().values(), strict=True):
        for a, b in ((first.inputs, second.inputs), (first.labels, second.labels), (first.ids, second.ids)):
            if isinstance(a, ImageFiles) and isinstance(b, ImageFiles):
                a, b = a.names, b.names
            assert (a is None) == (b is None)
            if isinstance(a, Table) and isinstance(b, Table):
                assert a.table.equals(b.table)
            else:
                assert a is None or np.array_equal(a, b)  # type: ignore[arg-type]
    assert snapshot(tmp_path) == before


def test_it_goes_through_all_steps(path: Path) -> None:
    options = DataOptions(path=str(path), image_size=None, text_encoder="tfidf")
    data = label_data(encode_raw(load(path), options), options)
    assert len(data.source) == len(data.given)
    assert int(data.given.min()) >= 0
    assert int(data.given.max()) < data.num_classes
    dataset = split(data, 0.3, seed=0)
    assert dataset.is_val.any()
    assert not dataset.is_val.all()
    inputs = dataset.source.fetch(torch.arange(2))
    assert inputs.dtype == torch.float32
    assert inputs.shape == (2, *dataset.source.shape)
    assert inputs.isfinite().all()


def files_to_break(folder: Path) -> list[Path]:
    """Return every list or table, and one image of each kind."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    images = {path.suffix: path for path in found if path.suffix.lower() in (".png", ".jpg", ".jpeg")}
    return [path for path in found if path.suffix not in images] + list(images.values())


def test_a_broken_file_is_one_line_and_never_another_error(path: Path, tmp_path: Path) -> None:
    """Missing, empty, cut in half or garbage: an image that nobody looks at may stay unnoticed."""
    options = DataOptions(path=str(path), text_encoder="tfidf")
    messages: list[str] = []
    for file in files_to_break(tmp_path / "data"):
        content = file.read_bytes()
        for broken in (None, b"", content[: len(content) // 2], b"\x00\xff" * 50):
            if broken is None:
                file.unlink()
            else:
                file.write_bytes(broken)
            try:
                label_data(encode_raw(load(path), options), options)
            except UnflipError as error:
                messages.append(str(error))
        file.write_bytes(content)
    assert not any("\n" in message for message in messages)
    assert messages or path == Path("digits")


class Recorder(DataOptions):
    """Options that keep in mind which of them were asked for."""

    def __getattribute__(self, name: str) -> object:
        if name in DataOptions.model_fields:
            asked.add(name)
        return super().__getattribute__(name)


asked: set[str] = set()


def test_it_declares_the_options_that_it_reads(name: str, path: Path) -> None:
    options = Recorder(path=str(path))
    loader: Loader = datasets.load(name)
    asked.clear()
    loader.load(path, options)
    assert asked <= FOR_ALL | loader.uses
    assert loader.uses <= {*DataOptions.model_fields}


def test_options_that_nothing_uses_are_refused_if_they_were_typed(name: str, path: Path) -> None:
    options, loader = DataOptions(path=str(path)), datasets.load(name)
    for key in DataOptions.model_fields:
        if key in FOR_ALL | loader.uses:
            check_used(options, [key])
        else:
            with pytest.raises(
                ConfigError, match=rf"^data\.{key} is not used: data .* is read as '{name}'; leave it out"
            ):
                check_used(options, ["limit", key])
            check_used(options, [key], also=[key])
    check_used(options, [])


def test_every_option_of_data_is_for_some_kind_of_it() -> None:
    used = FOR_ALL.union(*(datasets.load(name).uses for name in datasets.names()))
    assert used == {*DataOptions.model_fields}
