"""Whatever stands in a file or a flag, what comes out is a value or one of our own errors."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import blobs
from unflip.data.arrays import read_npz
from unflip.data.labels import find_classes, read_labels, to_class_numbers
from unflip.data.loaders.table import manifest, table
from unflip.data.options import DataOptions
from unflip.errors import UnflipError
from unflip.noise.recipe import parse
from unflip.runs.config import RunConfig, check_section, parse_setting, read_toml
from unflip.runs.options import Execution

FUZZ = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
CELLS = st.one_of(
    st.text(max_size=6),
    st.integers(-3, 9).map(str),
    st.sampled_from(["", "nan", "inf", "1e400", "-0", "1.5", "ape", '"', "\x00", "1" * 30]),
)
TABLES = st.lists(st.lists(CELLS, max_size=4), max_size=6).map(lambda rows: "\n".join(",".join(row) for row in rows))
HEADERS = st.sampled_from(
    ["", "label\n", "path,label\n", "path,label,split\n", "id,label\n", "path\n", "\ufefflabel\n"]
)
TEXTS = st.builds(lambda header, table: (header + table).encode("utf-8", "surrogatepass"), HEADERS, TABLES)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


def ours(action: Callable[[], Any]) -> None:
    """Do it; the only exceptions are ours."""
    with contextlib.suppress(UnflipError):
        action()


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def spoilt(content: bytes, places: list[tuple[float, int]], length: float) -> bytes:
    """Change some bytes and cut the rest."""
    changed = bytearray(content)
    for place, value in places:
        changed[int(place * len(changed))] = value
    return bytes(changed[: int(length * len(changed)) + 1])


PLACES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4)
LENGTHS = st.one_of(st.just(1.0), st.floats(0, 1))
ARRAYS = st.sampled_from(
    [
        np.arange(5),
        np.array(["ape", "bee"]),
        np.array([1.5, np.nan]),
        np.zeros((2, 2)),
        np.array(3),
        np.array([], dtype=np.uint8),
        np.array([1 + 2j]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.array([2**63], dtype=np.uint64),
        np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        np.array([b"ape"]),
        np.array([True, False]),
    ]
)


def read_as_labels(path: Path) -> None:
    labels = read_labels(path)
    count, names = find_classes(labels, None, str(path))
    to_class_numbers(labels, count, names, str(path))


@FUZZ
@given(content=st.one_of(TEXTS, st.binary(max_size=60)), suffix=st.sampled_from([".csv", ".txt", ".npy", ".xml", ""]))
def test_label_files(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(content)
    ours(lambda: read_as_labels(path))


@FUZZ
@given(array=ARRAYS, places=PLACES, length=LENGTHS)
@pytest.mark.filterwarnings("ignore")  # numpy warns of the strangest headers
def test_label_arrays(tmp_path: Path, array: Any, places: list[tuple[float, int]], length: float) -> None:
    path = tmp_path / "labels.npy"
    path.write_bytes(spoilt(npy(array), places, length))
    ours(lambda: read_as_labels(path))


@FUZZ
@given(places=PLACES, length=LENGTHS)
@pytest.mark.filterwarnings("ignore")
def test_feature_archives(tmp_path: Path, places: list[tuple[float, int]], length: float) -> None:
    path = tmp_path / "features.npz"
    stream = io.BytesIO()
    content: dict[str, Any] = dict(blobs(train=4, test=2))
    np.savez_compressed(stream, **content)
    path.write_bytes(spoilt(stream.getvalue(), places, length))
    ours(lambda: read_npz(path))


@FUZZ
@given(content=st.one_of(TEXTS, st.binary(max_size=60)))
def test_manifests(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "manifest.csv"
    path.write_bytes(content)
    ours(lambda: manifest.load(path, DataOptions(path=str(path))))
    ours(lambda: table.load(path, DataOptions(path=str(path))))


COLUMNS = st.sampled_from(
    [["a.png", "b.png"], [1, 2], [None, "a"], [b"a", b"b"], [[1], [2]], [1.5, float("nan")], [True, False], ["", "a"]]
)


@FUZZ
@given(
    columns=st.dictionaries(st.sampled_from(["path", "label", "split", "other"]), COLUMNS, max_size=4),
    places=PLACES,
    length=LENGTHS,
)
def test_parquet_manifests(
    tmp_path: Path, columns: dict[str, Any], places: list[tuple[float, int]], length: float
) -> None:
    path = tmp_path / "manifest.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    path.write_bytes(spoilt(path.read_bytes(), places, length))
    ours(lambda: manifest.load(path, DataOptions(path=str(path))))
    ours(lambda: table.load(path, DataOptions(path=str(path))))


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["sym", "pmd1", "asym", "matrix", ":", "+", " ", "0.3", "1e-3", "-1", "nan", "30", "0.0"]),
        st.text(max_size=3),
    ),
    max_size=7,
).map("".join)


@FUZZ
@given(text=STEPS)
def test_noise_recipes(text: str) -> None:
    ours(lambda: parse(text))


KEYS = [
    "epochs",
    "method",
    "network",
    "data",
    "noise",
    "optimizer",
    "plc",
    "mlp",
    "seed",
    "select",
    "precision",
    "timm",
]
TREES = st.dictionaries(
    st.one_of(st.sampled_from(KEYS), st.text(max_size=4)),
    st.one_of(
        VALUES, st.dictionaries(st.sampled_from(["path", "lr", "warmup", "hidden", "recipe", "classes"]), VALUES)
    ),
    max_size=4,
)


@FUZZ
@given(tree=TREES)
def test_configurations(tree: dict[str, Any]) -> None:
    ours(lambda: RunConfig.resolve([{"data": {"path": "digits"}}, tree]).to_toml())


@FUZZ
@given(
    content=st.one_of(st.binary(max_size=40), st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")))
)
def test_configuration_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    ours(lambda: RunConfig.resolve([read_toml(path)]))


@FUZZ
@given(key=st.one_of(st.sampled_from(["epochs", "optimizer.lr", "mlp.hidden"]), st.text(max_size=6)), value=VALUES)
def test_settings(key: str, value: Any) -> None:
    try:
        text = tomli_w.dumps({"v": value}).partition("=")[2].strip()
    except (TypeError, ValueError):
        text = str(value)
    ours(lambda: RunConfig.resolve([{"data": {"path": "digits"}}, parse_setting(f"{key}={text}")]))


@FUZZ
@given(minutes=VALUES, keep=VALUES)
def test_safety(minutes: Any, keep: Any) -> None:
    ours(lambda: check_section(Execution, {"checkpoint_minutes": minutes, "keep": keep}))
