"""Pickled batches: read as Python 2 wrote them, and nothing in them is ever run."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unflip.data.loaders.cifar import read_batch
from unflip.errors import InputError


def official(data: np.ndarray[Any, Any], labels: list[int], key: bytes = b"labels") -> bytes:
    """Write a batch byte for byte as Python 2's cPickle and numpy 1 did in the official files."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    dtype = (
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03" + text(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    )  # fmt: skip
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + number(data.shape[0]) + number(data.shape[1]) + b"\x86" + dtype + b"\x89" + text(data.tobytes())
        + b"tb"
    )  # fmt: skip
    items = [
        text(b"batch_label") + text(b"training batch 1 of 5"),
        text(key) + b"](" + b"".join(map(number, labels)) + b"e",
        text(b"data") + array,
        text(b"filenames") + b"](" + b"".join(text(b"a.png") for _ in labels) + b"e",
    ]
    return b"\x80\x02}(" + b"".join(items) + b"u."


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


DATA = np.random.default_rng(0).integers(0, 256, (3, 300), dtype=np.uint8)


def test_the_official_bytes_are_what_pythons_own_pickle_reads_too() -> None:
    content = official(DATA, [1, 2, 3])
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in content
    plain = content.replace(official(DATA, [1, 2, 3]).split(b"data", 1)[1], b"Nu.")  # without what needs an old numpy
    assert pickle.loads(plain, encoding="bytes")[b"labels"] == [1, 2, 3]


def test_a_batch_of_python_2_is_read(tmp_path: Path) -> None:
    batch = read_batch(written(tmp_path / "data_batch_1", official(DATA, [4, 0, 9])))
    assert batch["labels"] == [4, 0, 9]
    np.testing.assert_array_equal(batch["data"], DATA)
    assert batch["data"].dtype == np.uint8
    assert batch["data"].flags.writeable


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_batch_of_python_3_is_read(tmp_path: Path, protocol: int, order: Any) -> None:
    content = {"data": np.asarray(DATA, order=order), b"labels": [1, 2, 3]}
    batch = read_batch(written(tmp_path / "a", pickle.dumps(content, protocol)))
    np.testing.assert_array_equal(batch["data"], DATA)
    assert batch["labels"] == [1, 2, 3]


class Runs:
    """Pickles to a call."""

    def __init__(self, function: Any, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("function", [os.system, os.mkdir, eval, exec, getattr, np.load, np.frombuffer, print])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_anything_is_refused_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    argument = "touch made" if function is os.system else "open('made', 'w')" if function in (eval, exec) else "made"
    path = written(tmp_path / "a", pickle.dumps({"data": Runs(function, argument)}, protocol))
    with pytest.raises(
        InputError, match=r"a: not a readable batch \(refused: it refers to \S+\.\S+, a batch holds arrays only"
    ):
        read_batch(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a"]


def test_a_name_reached_through_an_allowed_one_is_refused(tmp_path: Path) -> None:
    content = b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93."
    with pytest.raises(InputError, match=r"refused: it refers to numpy\.ndarray\.__class__"):
        read_batch(written(tmp_path / "a", content))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cnumpy\nndarray\n}b.",  # set the state of a class
        b"\x80\x02cnumpy\nndarray\n(}U\x05stateK\x01s}tb.",
        b"\x80\x02cnumpy\ndtype\n)R(N}U\x08__init__K\x01stb.",
    ],
)
def test_a_pickle_cannot_change_what_reads_the_next(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError):
        read_batch(written(tmp_path / "a", content))
    assert read_batch(written(tmp_path / "b", official(DATA, [1, 2, 3])))["data"].shape == (3, 300)


@pytest.mark.parametrize("length", [0, 1, 40, 500, -1])
def test_a_cut_pickle_is_refused_in_one_line(tmp_path: Path, length: int) -> None:
    path = written(tmp_path / "a", official(DATA, [1, 2, 3])[:length])
    with pytest.raises(InputError, match=r"a: not a readable batch") as error:
        read_batch(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps([1, 2]),
        official(DATA, [1]).replace(b"M\x2c\x01", b"M\x2d\x01"),  # a shape of more bytes than there are
        b"\x80\x02}U\x04datacnumpy\nndarray\n)Rs.",
    ],
)
def test_what_is_no_batch_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match="a: not a readable batch"):
        read_batch(written(tmp_path / "a", content))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data_batch_2: No such file"):
        read_batch(tmp_path / "data_batch_2")
