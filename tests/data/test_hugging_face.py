"""Data sets of Hugging Face, with the real library where it is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import unflip
from helpers import QUICK, blobs, quick_train
from unflip.data.labeling import choose_labels
from unflip.data.loaders import load_raw
from unflip.data.memory import InMemory, write_data
from unflip.data.options import DataOptions
from unflip.errors import InputError, UnflipWarning

hf = pytest.importorskip("datasets", reason="the library `datasets` is not installed: nothing of it is tested")


@pytest.fixture(autouse=True)
def _quiet_and_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def of_blobs(split: str = "train", **more: Any) -> Any:
    content = blobs()
    columns = {"embedding": content[split].tolist(), "label": content[f"{split}_labels"].tolist()} | more
    types = hf.Dataset.from_dict({name: cells[:1] for name, cells in columns.items()}).features.copy()
    types["label"] = hf.ClassLabel(names=["cat", "ape", "bee"])
    return hf.Dataset.from_dict(columns, features=types)


def write_dataset(data: Any, folder: Path, **options: Any) -> Path:
    return write_data(InMemory(data, **options), folder)


def train_on(data: Any, out: Path, settings: dict[str, Any] | None = None, **options: Any) -> unflip.Result:
    return unflip.train(data, out, settings=QUICK | (settings or {}), device="cpu", **options)


def test_vectors_train_as_a_file_of_features_does(tmp_path: Path, features: Path) -> None:
    data = hf.DatasetDict({"train": of_blobs(), "test": of_blobs("test")})
    run = train_on(data, tmp_path / "run", epochs=3)
    plain = quick_train(features, tmp_path / "plain", epochs=3)
    assert run.result["test_accuracy"] == plain.result["test_accuracy"]
    labels = run.labels()
    assert labels["given_label"].to_pylist() == blobs()["train_labels"].tolist()
    assert labels["given_label_name"].to_pylist()[0] == ["cat", "ape", "bee"][blobs()["train_labels"][0]]
    assert (run.folder / "data" / "data.npz").exists()
    again = train_on(None, run.folder, resume=True, epochs=4)
    assert again.result["epochs"] == 4


def test_splits_in_any_order_are_corrected_each_by_its_own_labels(tmp_path: Path) -> None:
    parts = {"train": of_blobs(), "validation": of_blobs("test").select(range(30)), "test": of_blobs("test")}
    labels = parts["train"]["label"][:]
    wrong = [(label + 1) % 3 if row in (4, 9) else label for row, label in enumerate(labels)]
    parts["train"] = of_blobs(label=wrong)
    for order in (("train", "validation", "test"), ("test", "validation", "train")):
        data = hf.DatasetDict({name: parts[name] for name in order})
        fixed = unflip.clean(data, tmp_path / order[0], quiet=True, device="cpu").apply().data
        assert tuple(fixed) == order
        assert fixed["train"]["label"][:] == labels
        for name in ("validation", "test"):
            assert fixed[name]["label"][:] == parts[name]["label"][:]


def test_images_become_files_with_a_manifest(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 255, (8, 8 + i % 2, 3), np.uint8)) for i in range(12)]
    data = hf.Dataset.from_dict(
        {"image": pictures, "number": list(range(12)), "label": [i % 2 for i in range(12)]},
        features=hf.Features(
            {"image": hf.Image(), "number": hf.Value("int64"), "label": hf.ClassLabel(names=["b", "a"])}
        ),
    )
    run = train_on(data, tmp_path / "run", epochs=1, network="mlp", settings={"data.image_size": 8})
    labels = run.labels()
    names = labels["id"].to_pylist()
    assert len({*names}) == 12
    more: dict[str, Any] = {"epochs": 1, "network": "mlp", "settings": {"data.image_size": 8}}
    turned = train_on(data.select(range(11, -1, -1)), tmp_path / "turned", **more)
    assert turned.labels()["id"].to_pylist() == names[::-1]  # named by their content
    assert labels["given_label_name"].to_pylist()[:2] == ["b", "a"]
    kept = np.asarray(Image.open(run.folder / "data" / names[3]))
    np.testing.assert_array_equal(kept, np.asarray(pictures[3]))


def test_columns_become_a_table_as_they_are(tmp_path: Path) -> None:
    columns = {"a": [1.0, 2.0], "b": [3, 4], "note": ["x", "y"], "topic": ["u", "v"]}
    data = hf.Dataset.from_dict(columns)
    with pytest.raises(InputError, match="no column 'label' among a, b, note, topic; choose one with label_column"):
        write_dataset(data, tmp_path / "data")
    written = pyarrow.parquet.read_table(write_dataset(data, tmp_path / "data", label_column="topic", ignore=["b"]))
    assert written.to_pydict() == {"a": [1.0, 2.0], "note": ["x", "y"], "label": ["u", "v"]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda: of_blobs().to_iterable_dataset(), "a streamed data set; load it without streaming"),
        (lambda: hf.DatasetDict({"test": of_blobs()}), "no split 'train' among test"),
        (lambda: hf.DatasetDict({"train": of_blobs(), "extra": of_blobs()}), "split 'extra' is not train"),
        (
            lambda: of_blobs(other=blobs()["train"].tolist()),
            r"several columns of images or vectors \(embedding, other\)",
        ),
        (lambda: hf.Dataset.from_dict({"label": [0, 1]}), "no column of features besides 'label'"),
        (lambda: hf.Dataset.from_dict({"v": [[1.0], [1.0, 2.0]], "label": [0, 1]}), "vectors of different lengths"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, data: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        write_dataset(data(), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_its_columns_go_into_the_estimator(tmp_path: Path) -> None:
    from unflip import UnflipClassifier

    data = of_blobs().with_format("numpy")
    model = UnflipClassifier(epochs=3, random_state=0).fit(data["embedding"][:], data["label"][:])
    assert model.score(blobs()["test"], blobs()["test_labels"]) > 0.8


NAMES = ["gamma", "alpha", "beta"]
MORE = ["beta", "delta", "alpha", "gamma"]  # in another order, and one that does not train
KINDS: dict[str, tuple[Callable[[int], Any], Callable[[], Any]]] = {
    "vectors": (lambda i: [float(i), 1.0, float(i % 7)], lambda: hf.List(hf.Value("float32"))),
    "numbers": (lambda i: i / 7, lambda: hf.Value("float32")),
    "texts": (lambda i: f"text number {i} of a few words", lambda: hf.Value("string")),
    "images": (lambda i: Image.new("RGB", (8, 8), (i, 255 - i, 2 * i)), lambda: hf.Image()),
}


def of_kind(kind: str, numbers: list[int], names: list[str]) -> Any:
    example, form = KINDS[kind]
    columns = {"example": [example(i) for i in range(len(numbers))], "label": numbers}
    types = hf.Features({"example": form(), "label": hf.ClassLabel(names=names) if names else hf.Value("int64")})
    return hf.Dataset.from_dict(columns, features=types)


@pytest.mark.parametrize("kind", KINDS)
def test_class_numbers_there_and_back_are_those_of_the_data_set(kind: str, tmp_path: Path) -> None:
    numbers = [i % 3 for i in range(60)]
    test = of_kind(kind, [0, 2, 3, 1], MORE)
    options: dict[str, Any] = {"network": "mlp", "settings": {"data.image_size": 8}} if kind == "images" else {}
    data = hf.DatasetDict({"test": test, "train": of_kind(kind, numbers, NAMES)})
    with pytest.warns(UnflipWarning, match="no training examples of 'delta'"):
        run = train_on(data, tmp_path / "run", epochs=1, method="standard", **options)
    assert run.class_names == [*NAMES, "delta"]
    assert run.labels()["given_label"].to_pylist() == numbers
    assert len(run.result["tests"]["test"]["per_class"]) == 4
    back = hf.Dataset.from_parquet(str(run.folder / "labels.parquet"), cache_dir=str(tmp_path))
    for column in ("given_label", "current_label", "suggested_label", "top1", "top2"):
        assert back.features[column].names == run.class_names
    assert back["given_label"][:] == numbers
    assert back["top1_name"][0] == run.class_names[back["top1"][0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_without_class_names_has_the_numbers_of_the_others(kind: str, tmp_path: Path) -> None:
    data = hf.DatasetDict({"train": of_kind(kind, [0, 1, 2], NAMES), "test": of_kind(kind, [2, 0], [])})
    raw = load_raw(DataOptions(path=str(write_dataset(data, tmp_path / "data"))))
    assert raw.class_names == tuple(NAMES)
    labels = raw.tests["test"].labels
    assert labels is not None
    assert labels.tolist() == ["beta", "gamma"]


def test_a_file_of_the_library_itself_has_its_classes(tmp_path: Path) -> None:
    of_kind("numbers", [2, 0, 1, 1], NAMES).to_parquet(str(tmp_path / "train.parquet"))
    raw = load_raw(DataOptions(path=str(tmp_path / "train.parquet")))
    assert raw.class_names == tuple(NAMES)
    assert raw.train.labels is not None
    assert raw.train.labels.tolist() == ["beta", "gamma", "alpha", "alpha"]


def test_a_missing_image_is_named_by_its_row(tmp_path: Path) -> None:
    types = hf.Features({"image": hf.Image(), "label": hf.Value("int64")})
    data = hf.Dataset.from_dict({"image": [Image.new("RGB", (8, 8)), None], "label": [0, 1]}, features=types)
    with pytest.raises(InputError, match="data, row 1: no image; drop that row"):
        write_dataset(data, tmp_path / "data")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([0, None, 1], hf.Value("int64")),
        (["a", None, "b"], hf.Value("string")),
        ([0, None, 1], hf.ClassLabel(names=["a", "b"])),
        ([0, -1, 1], hf.ClassLabel(names=["a", "b"])),
    ],
)
def test_none_is_no_label_nor_is_minus_one_of_a_class(tmp_path: Path, column: list[Any], kind: Any) -> None:
    types = hf.Features({"size": hf.Value("float64"), "label": kind})
    data = hf.Dataset.from_dict({"size": [1.0, 2.0, 3.0], "label": column}, features=types)
    options = DataOptions(path=str(write_dataset(data, tmp_path / "data")))
    assert choose_labels(load_raw(options), options)[0].given.tolist() == [0, -1, 1]


def test_the_test_set_needs_every_label(tmp_path: Path) -> None:
    test = hf.Dataset.from_dict({"size": [1.0, 2.0], "label": ["a", None]})
    data = hf.DatasetDict({"train": hf.Dataset.from_dict({"size": [1.0, 2.0], "label": ["a", "b"]}), "test": test})
    options = DataOptions(path=str(write_dataset(data, tmp_path / "data")))
    with pytest.raises(InputError, match="'test_labels', row 1: the label is empty; every example needs one"):
        choose_labels(load_raw(options), options)


@pytest.mark.parametrize("gap", [None, -1])
def test_examples_without_a_label_get_suggestions(tmp_path: Path, gap: int | None) -> None:
    truth = blobs()["train_labels"].tolist()
    data = of_blobs(label=[gap if row % 5 == 0 else label for row, label in enumerate(truth)])
    result = unflip.clean(data, tmp_path / "run", settings=QUICK, device="cpu", epochs=6)
    given = result.labels()["given_label"].to_pylist()
    assert given == [-1 if row % 5 == 0 else label for row, label in enumerate(truth)]
    assert [name for row, name in enumerate(result.labels()["given_label_name"].to_pylist()) if row % 5 == 0] == [
        None
    ] * 30
    assert [*result.apply(fill_above=0.5).data["label"]] == truth
    assert [*result.apply().data["label"]] == [gap if number < 0 else number for number in given]
