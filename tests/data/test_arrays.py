"""Array files: what is read, what is refused."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unflip.data.arrays import Pieces, read_array, read_npz, write_array, write_npz
from unflip.errors import InputError


class Trap:
    """Unpickling this would leave a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.trace,))


def test_an_array_comes_back_and_can_be_mapped(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    write_array(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), array)
    assert isinstance(read_array(tmp_path / "a.npy", mmap_mode="r"), np.memmap)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_all_arrays_of_an_npz_come_back(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.eye(2), y=np.array(["a"]))
    arrays = read_npz(tmp_path / "a.npz")
    assert sorted(arrays) == ["x", "y"]
    np.testing.assert_array_equal(arrays["x"], np.eye(2))


@pytest.mark.parametrize(("read", "name"), [(read_array, "a.npy"), (read_npz, "a.npz")])
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, read: Callable[[Path], object], name: str) -> None:
    trap = np.array([Trap(tmp_path / "trace")], dtype=object)
    if name == "a.npz":
        np.savez(tmp_path / name, train=trap)
    else:
        np.save(tmp_path / name, trap)
    with pytest.raises(InputError, match="not a readable"):
        read(tmp_path / name)
    (tmp_path / name).write_bytes(pickle.dumps(Trap(tmp_path / "trace")))
    with pytest.raises(InputError, match="not a readable"):
        read(tmp_path / name)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("kept", [0, 1, 10, 60, 100, -1])
@pytest.mark.parametrize("mmap_mode", [None, "r"])
def test_a_cut_array_file_is_refused(tmp_path: Path, kept: int, mmap_mode: str | None) -> None:
    np.save(tmp_path / "a.npy", np.zeros((10, 10)))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:kept])
    with pytest.raises(InputError, match=r"a\.npy: not a readable \.npy file") as error:
        read_array(tmp_path / "a.npy", mmap_mode)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kept", [0, 1, 10, 300, -1])
def test_a_cut_npz_file_is_refused(tmp_path: Path, kept: int) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((10, 10)), y=np.arange(10))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[:kept])
    with pytest.raises(InputError, match=r"a\.npz: not a readable \.npz file") as error:
        read_npz(tmp_path / "a.npz")
    assert "\n" not in str(error.value)


def test_a_byte_changed_in_an_npz_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(1000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"not a readable \.npz file"):
        read_npz(tmp_path / "a.npz")


def test_one_array_and_several_are_not_mixed_up(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"not an \.npy file, but an \.npz file; rename it"):
        read_array(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(InputError, match=r"not a readable \.npz file"):
        read_npz(tmp_path / "b.npz")


def test_large_arrays_of_an_npz_are_mapped_where_they_lie_uncompressed(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "a": np.arange(1000.0).reshape(100, 10),
        "b": np.asfortranarray(np.ones((300, 7))),
        "s": np.array("x"),
    }
    np.savez(tmp_path / "plain.npz", **content)
    np.savez_compressed(tmp_path / "packed.npz", **content)
    for name, mapped in (("plain", True), ("packed", False)):
        found = read_npz(tmp_path / f"{name}.npz", mmap_threshold_mb=1e-3)
        assert [isinstance(found[key], np.memmap) for key in "abs"] == [mapped, mapped, False]
        for key in content:
            np.testing.assert_array_equal(found[key], content[key])
    assert not isinstance(read_npz(tmp_path / "plain.npz")["a"], np.memmap)


def test_objects_within_an_npz_are_refused_whether_mapped_or_not(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.array([{}] * 100, object))
    for limit in (0.0, 1.0):
        with pytest.raises(InputError, match="not a readable"):
            read_npz(tmp_path / "x.npz", mmap_threshold_mb=limit)


def test_what_is_written_in_pieces_is_read_as_one_and_the_same_bytes_come_again(tmp_path: Path) -> None:
    whole = np.arange(60, dtype=np.float16).reshape(20, 3)
    pieces = Pieces(whole.shape, whole.dtype, lambda: iter(np.array_split(whole, 7)))
    for name in ("one.npz", "two.npz"):
        write_npz(tmp_path / name, {"a": pieces, "b": np.array(["x", "yz"])})
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    found = read_npz(tmp_path / "one.npz")
    np.testing.assert_array_equal(found["a"], whole)
    assert found["b"].tolist() == ["x", "yz"]
    write_array(tmp_path / "a.npy", pieces)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), whole)
