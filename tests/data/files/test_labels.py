"""Labels from files, and from numbers or names to classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unflip.data.files.labels import find_classes, read_labels, to_class_numbers
from unflip.errors import InputError


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content, encoding="utf-8")
    return path


def classes_of(path: Path) -> tuple[list[int], list[str] | None]:
    """Read a file as a run does."""
    raw = read_labels(path)
    number, names = find_classes(raw, None, "labels")
    return to_class_numbers(raw, number, names, "labels").tolist(), names


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", np.array([2, 0, 1])),
        ("a.npy", np.array([2, 0, 1], np.uint8)),
        ("a.npy", np.array([2.0, 0.0, 1.0], np.float32)),
        ("a.txt", "2\n0\n1\n"),
        ("a.txt", "2\n0\n1"),
        ("a.txt", "\n 2 \r\n0\r\n\n1\n\n"),
        ("a.txt", "2.0\n0.0\n1.0\n"),
        ("a.csv", "2\n0\n1\n"),
        ("a.csv", "label\n2\n0\n1\n"),
        ("a.csv", "id,Label\nx,2\ny,0\nz,1\n"),
        ("a.csv", 'id, label ,note\n"x,y",2,\ny,"0",\nz,1,n\n\n'),
        ("a.csv", b"\xef\xbb\xbflabel\r\n2\r\n0\r\n1\r\n"),  # as spreadsheets write it
        ("a.txt", b"\xef\xbb\xbf2\r\n0\r\n1\r\n"),
        ("A.TXT", "2\n0\n1\n"),
    ],
)
def test_numbers_are_read_from_every_kind_of_file(tmp_path: Path, name: str, content: Any) -> None:
    assert classes_of(write(tmp_path, name, content)) == ([2, 0, 1], None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", np.array(["dog", "cat", "été"])),
        ("a.txt", "dog\ncat\nété\n"),
        ("a.csv", "dog\ncat\nété\n"),
        ("a.csv", "label,id\ndog,1\ncat,2\nété,3\n"),
    ],
)
def test_names_are_numbered_in_alphabetical_order(tmp_path: Path, name: str, content: Any) -> None:
    assert classes_of(write(tmp_path, name, content)) == ([1, 0, 2], ["cat", "dog", "été"])


def test_a_number_among_names_is_a_name(tmp_path: Path) -> None:
    assert classes_of(write(tmp_path, "a.txt", "7\ncat\n7\n")) == ([0, 1, 0], ["7", "cat"])


def test_truth_values_are_two_classes(tmp_path: Path) -> None:
    assert classes_of(write(tmp_path, "a.npy", np.array([True, False]))) == ([1, 0], None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[1]", r"cannot read '\.json'; give \.npy, \.csv or \.txt"),
        ("a.npy", b"", "not a readable .npy file"),
        ("a.npy", b"garbage that is no array", "not a readable .npy file"),
        ("a.npy", np.array([{"a": 1}, None]), "not a readable .npy file .*allow_pickle=False"),
        ("a.txt", b"\xff\xfe\x00", "not a text file in UTF-8"),
        ("a.csv", b"\xff\xfe\x00", "not a text file in UTF-8"),
        ("a.csv", "id,class\n1,2\n", "no column 'label' among id, class; rename one to 'label'"),
        ("a.csv", "id,label\n1,2\n3\n", "row 1: has 1 columns, 'label' is number 2"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as error:
        read_labels(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.npy", "a.csv", "a.txt"])
def test_a_file_that_is_missing_or_a_folder_says_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: No such file or directory"):
        read_labels(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{name}: Is a directory"):
        read_labels(tmp_path / name)


@pytest.mark.parametrize(
    ("labels", "row", "value"),
    [
        (np.array([0, 1, 3]), 2, "3"),
        (np.array([0, -1, -2]), 1, "-1"),
        (np.array([np.nan, 1.0, 2.0]), 0, "nan"),
        (np.array([0.0, np.inf, 2.0]), 1, "inf"),
        (np.array([0.0, 1.5, 7.0]), 1, "1.5"),
        (np.array([0, 2**64 - 1], np.uint64), 1, str(2**64 - 1)),
        (np.array([0, 1e300]), 1, r"1e\+300"),
    ],
)
def test_a_label_that_is_no_class_is_named_by_row_and_value(labels: np.ndarray, row: int, value: str) -> None:
    with pytest.raises(InputError, match=rf"^x, row {row}: label {value} is not an integer from 0 to 2$"):
        to_class_numbers(labels, 3, None, "x")


def test_an_unknown_name_is_told_its_row_and_the_closest_class() -> None:
    with pytest.raises(InputError, match=r"^x, row 1: unknown class 'dgo', did you mean 'dog'\?"):
        to_class_numbers(np.array(["cat", "dgo"]), 2, ["cat", "dog"], "x")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros((3, 1)), r"^x: shape \(3, 1\); labels must be \(n,\)"),
        (np.array(1), r"^x: shape \(\); labels must be \(n,\)"),
        (np.array([1j, 2]), "cannot read labels of type complex128; give integers or class names"),
        (np.array([b"a"]), "cannot read labels of type"),
    ],
)
def test_labels_of_a_wrong_kind_are_refused(labels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_class_numbers(labels, 3, None, "x")


def test_declared_classes_win_over_those_in_the_labels() -> None:
    assert find_classes(np.array([0, 1]), 5, "x") == (5, None)
    assert find_classes(np.array(["b"]), ("b", "a"), "x") == (2, ["b", "a"])
    assert to_class_numbers(np.array(["b", "a"]), 2, ["b", "a"], "x").tolist() == [0, 1]
    assert to_class_numbers(np.array([1, 0]), 2, ["b", "a"], "x").tolist() == [1, 0]


@given(st.lists(st.integers(0, 30), min_size=1))
def test_integers_are_their_own_class_numbers(labels: list[int]) -> None:
    number, names = find_classes(np.array(labels), None, "x")
    assert (number, names) == (max(labels) + 1, None)
    assert to_class_numbers(np.array(labels), number, names, "x").tolist() == labels


@given(st.lists(st.text("abcxyz ", min_size=1, max_size=4), min_size=1))
def test_names_come_back_from_their_numbers(labels: list[str]) -> None:
    number, names = find_classes(np.array(labels), None, "x")
    assert names is not None
    assert number == len(names) == len(set(labels))
    numbers = to_class_numbers(np.array(labels), number, names, "x").tolist()
    assert [names[label] for label in numbers] == labels
