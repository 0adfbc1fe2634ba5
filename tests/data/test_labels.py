"""Labels from files, and from numbers or names to classes."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unflip.data.labels import find_classes, missing_labels, read_labels, to_class_numbers
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


def classes_of(path: Path) -> tuple[list[int], tuple[str, ...] | None]:
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
        ("a.txt", " 2 \r\n0\r\n1\n\n\n"),
        ("a.txt", "2.0\n0.0\n1.0\n"),
        ("a.csv", "2\n0\n1\n"),
        ("a.csv", "label\n2\n0\n1\n"),
        ("a.csv", "id,Label\nx,2\ny,0\nz,1\n"),
        ("a.csv", 'id, label ,note\n"x,y",2,\ny,"0",\nz,1,n\n\n'),
        ("a.csv", b"\xef\xbb\xbflabel\r\n2\r\n0\r\n1\r\n"),  # as spreadsheets write it
        ("a.txt", b"\xef\xbb\xbf2\r\n0\r\n1\r\n"),
        ("A.TXT", "2\n0\n1\n"),
        ("a.csv", "index,label\n2,1\n0,2\n1,0\n"),
        ("a.csv", "label,Index,path\n1,2,x\n2,0.0,y\n0,1,z\n"),
        ("a.csv", ",label\n2,1\n0,2\n1,0\n"),  # as pandas writes an index
        ("a.csv", "Unnamed: 0,label,path\n2,1,x\n0,2,y\n1,0,z\n"),
        ("a.csv", ",label\nx,2\ny,0\nz,1\n"),
    ],
)
def test_numbers_are_read_from_every_kind_of_file(tmp_path: Path, name: str, content: Any) -> None:
    assert classes_of(write(tmp_path, name, content)) == ([2, 0, 1], None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", np.array(["dog", "cat", "été"])),
        ("a.npy", np.char.encode(np.array(["dog", "cat", "été"]), "utf-8")),
        ("a.txt", "dog\ncat\nété\n"),
        ("a.csv", "dog\ncat\nété\n"),
        ("a.csv", "label,id\ndog,1\ncat,2\nété,3\n"),
    ],
)
def test_names_are_numbered_in_alphabetical_order(tmp_path: Path, name: str, content: Any) -> None:
    assert classes_of(write(tmp_path, name, content)) == ([1, 0, 2], ("cat", "dog", "été"))


def test_a_number_among_names_is_a_name(tmp_path: Path) -> None:
    assert classes_of(write(tmp_path, "a.txt", "7\ncat\n7\n")) == ([0, 1, 0], ("7", "cat"))


def test_truth_values_are_two_classes(tmp_path: Path) -> None:
    assert classes_of(write(tmp_path, "a.npy", np.array([True, False]))) == ([1, 0], None)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "id,label\n1,a\n3, \n", ["a", ""]),
        ("a.txt", "1\n\n2\n", [1, np.nan, 2]),
        ("a.txt", "\n1\n2\n", [np.nan, 1, 2]),
        ("a.txt", "a\n\nb\n", ["a", "", "b"]),
        ("a.csv", "1\n\n2\n", [1, np.nan, 2]),
        ("a.csv", "label\n1\n\n2\n\n", [1, np.nan, 2]),
        ("a.csv", "index,label\n2,\n0,b\n1,a\n", ["b", "a", ""]),
    ],
)
def test_an_empty_line_is_no_label(tmp_path: Path, name: str, content: str, expected: list[Any]) -> None:
    labels = read_labels(write(tmp_path, name, content))
    np.testing.assert_array_equal(labels, expected)
    assert missing_labels(labels).tolist() == [cell in ("", np.nan) for cell in expected]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", np.array([b"a", b"\xff"]), "not text in UTF-8"),
        ("a.json", "[1]", r"cannot read '\.json'; must be \.npy, \.csv or \.txt"),
        ("a.npy", b"", "not a readable .npy file"),
        ("a.npy", b"garbage that is no array", "not a readable .npy file"),
        ("a.npy", np.array([{"a": 1}, None]), "not a readable .npy file .*allow_pickle=False"),
        ("a.txt", b"\xff\xfe\x00", "not a text file in UTF-8"),
        ("a.csv", b"\xff\xfe\x00", "not a text file in UTF-8"),
        ("a.csv", "id,class\n1,2\n", "no column 'label' among id, class"),
        ("a.csv", "id,label\n1,2\n3\n", "Expected 2 columns, got 1"),
        ("a.csv", "label,index\n1,0\n3\n", "Expected 2 columns, got 1"),
        ("a.csv", "id;label\n1;2\n", "columns are separated by ';'; separate them by commas"),
        ("a.csv", "label,id,Label\n1,2,3\n", "two columns 'label'; rename one of them"),
        ("a.csv", "index,label\n1,5\n2,5\n", "row 1: index '2' is not an integer from 0 to 1"),
        ("a.csv", "index,label\n0,5\n0,6\n", "row 1: the same example as in row 0; keep one of them"),
        ("a.csv", "index,label\nx,5\n0,6\n", "row 0: index 'x' is not an integer"),
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
        (np.zeros((3, 1)), r"^x: shape \(3, 1\), type float64; labels must be \(n,\)"),
        (np.array(1), r"^x: shape \(\), type int64; labels must be \(n,\)"),
        (np.array([1j, 2]), r"type complex128; labels must be \(n,\), integers or names"),
        (np.array([b"a"]), "labels must be"),
    ],
)
def test_labels_of_a_wrong_kind_are_refused(labels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_class_numbers(labels, 3, None, "x")


def test_declared_classes_win_over_those_in_the_labels() -> None:
    assert find_classes(np.array([0, 1]), 5, "x") == (5, None)
    assert find_classes(np.array(["b"]), ("b", "a"), "x") == (2, ("b", "a"))
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


def test_rows_are_matched_by_name_where_examples_have_one(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "path,label\nc,3\na,1\nb,2\n")
    assert read_labels(path).tolist() == [3, 1, 2]  # nothing to match them with
    assert read_labels(path, ["a", "b", "c"]).tolist() == [1, 2, 3]
    assert read_labels(path, ["a", "b", "c", "d"]).tolist() == [1, 2, 3]  # the first ones, for --limit


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "x"], "row 0: no example, or several, called 'c'"),
        (["a", "b", "a", "c"], "row 1: no example, or several, called 'a'"),
        (["a", "d", "b", "c"], "no label for 1 example such as 'd'; every example needs one"),
    ],
)
def test_names_that_do_not_fit_the_examples_are_refused(tmp_path: Path, ids: list[str], message: str) -> None:
    path = write(tmp_path, "a.csv", "id,label\nc,3\na,1\nb,2\n")
    with pytest.raises(InputError, match=f"a.csv.*{message}"):
        read_labels(path, ids)


def test_an_example_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 1: the same example as in row 0"):
        read_labels(write(tmp_path, "a.csv", "id,label\na,3\na,1\n"), ["a", "b"])
    both = write(tmp_path, "b.csv", "index,id,label\n0,a,3\n1,c,1\n")
    assert read_labels(both, ["a", "c"]).tolist() == [3, 1]
    assert read_labels(both, ["c", "a"]).tolist() == [1, 3]
    with pytest.raises(InputError, match="row 1: no example, or several, called 'c'"):
        read_labels(both, ["a", "b"])


def test_text_that_is_the_name_of_a_class_is_a_name_also_if_it_looks_like_a_number(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "10\n2\n")
    assert read_labels(path).tolist() == [10, 2]
    names = ["0", "1", "10", "2"]  # as folders are sorted
    assert to_class_numbers(read_labels(path, names=names), 4, names, "x").tolist() == [2, 3]
    assert read_labels(path, names=["a", "b"]).tolist() == [10, 2]


def test_an_underscore_makes_a_name(tmp_path: Path) -> None:
    assert classes_of(write(tmp_path, "a.txt", "1_1\n1_2\n")) == ([0, 1], ("1_1", "1_2"))


def test_accents_are_the_same_however_they_are_encoded() -> None:
    composed, decomposed = "\u00e9t\u00e9", "e\u0301te\u0301"
    assert to_class_numbers(np.array([decomposed, "cat"]), 2, ["cat", composed], "x").tolist() == [1, 0]
    apart = [composed, decomposed]  # two classes, if somebody wants them
    assert to_class_numbers(np.array(apart), 2, apart, "x").tolist() == [0, 1]


def test_an_empty_name_is_no_class() -> None:
    with pytest.raises(InputError, match="x, row 1: the label is empty"):
        to_class_numbers(np.array(["cat", ""]), 2, ["", "cat"], "x")


def test_a_name_is_declared_once() -> None:
    with pytest.raises(InputError, match="x: class name 'b'; class names must be unique and not empty"):
        find_classes(np.array([0, 1]), ("a", "b", "b"), "x")
    with pytest.raises(InputError, match="x: class name ''"):
        find_classes(np.array([0, 1]), ("a", ""), "x")


@pytest.mark.parametrize("ids", [None, [f"p{i}" for i in range(120)]])
def test_examples_without_a_label_are_named(tmp_path: Path, ids: list[str] | None) -> None:
    def of(places: list[int]) -> Path:
        return write(tmp_path, "a.csv", "index,label\n" + "".join(f"{place},{place % 3}\n" for place in places))

    one = [place for place in range(120) if place != 57]
    with pytest.raises(InputError, match=r"no label for 1 example such as .?p?57"):
        read_labels(of(one), ids, count=120)
    with pytest.raises(InputError, match=r"no label for 60 examples such as .*0.*, .*8.*; every example needs one"):
        read_labels(of([*range(1, 120, 2)]), ids, count=120)
    assert len(read_labels(of([*range(119)]), ids, count=120)) == 119


def test_a_column_without_a_name_is_not_needed_where_examples_have_names(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", ",path,label\n0,y,1\n1,x,2\n")
    assert read_labels(path, ["x", "y"]).tolist() == [2, 1]
    assert read_labels(write(tmp_path, "b.csv", ",label\ny,1\nx,2\n"), ["x", "y"]).tolist() == [2, 1]


@pytest.mark.parametrize("name", ["a.npy", "a.csv", "a.txt"])
def test_numbers_are_names_in_every_kind_of_file_where_classes_are_called_so(tmp_path: Path, name: str) -> None:
    content = np.array([3, 1, 2]) if name == "a.npy" else "3\n1\n2\n"
    assert read_labels(write(tmp_path, name, content), names=["1", "2", "3"]).tolist() == ["3", "1", "2"]


def test_the_time_to_number_classes_grows_with_their_number_and_not_its_square() -> None:
    names = tuple(f"class {i}" for i in range(100_000))
    started = time.process_time()
    assert find_classes(np.array(names), names, "labels") == (100_000, names)
    assert time.process_time() - started < 10  # a hundredth of a second; compared with each other, minutes
