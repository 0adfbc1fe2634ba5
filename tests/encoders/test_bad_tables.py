"""Tables as clumsy and hostile people give them: refused in one line that says where, or read as they are meant."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from unflip.data.dataset import Dataset
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.encoders.base import restore
from unflip.encoders.table import encode_raw
from unflip.errors import InputError, UnflipWarning

ROWS = range(40)
LABELS = ["ab"[i % 2] for i in ROWS]


def encoded(path: Path, **options: Any) -> Dataset:
    chosen = DataOptions(path=str(path), **options)
    return encode_raw(load_raw(chosen), chosen)


def described(path: Path, **options: Any) -> str:
    encoding = encoded(path, **options).encoding
    assert encoding is not None
    return "\n".join(restore(encoding).describe())


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        encoded(path, **options)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value).replace(str(path), "FILE")


def csv(folder: Path, cells: Any, name: str = "x") -> Path:
    path = folder / "t.csv"
    rows = "".join(f'"{cell}",{i % 7}.5,{LABELS[i % 2]}\n' for i, cell in enumerate(cells))
    path.write_bytes(f"{name},y,label\n{rows}".encode())
    return path


def jsonl(folder: Path, rows: Any) -> Path:
    path = folder / "t.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def parquet(folder: Path, **cells: Any) -> Path:
    path = folder / "t.parquet"
    pa.parquet.write_table(pa.table({"label": LABELS, "y": [i % 7 + 0.5 for i in ROWS]} | cells), path)
    return path


def test_a_column_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"x,label\nplain,a\ncaf\xe9,b\n")
    assert refused(path).startswith("FILE, column 'x': not text in UTF-8")
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"x": "plain", "label": "a"}\n{"x": "caf\xe9", "label": "b"}\n')
    assert refused(path).startswith("FILE, column 'x': not text in UTF-8")
    raw = pa.array([b"plain"] * 39 + [b"caf\xe9"])
    broken = pa.StringArray.from_buffers(40, *raw.buffers()[1:])
    assert refused(parquet(tmp_path, x=broken)).startswith("FILE, column 'x': not text in UTF-8")


def test_a_long_text_and_line_breaks_anywhere(tmp_path: Path) -> None:
    texts = [f"word{i} " * (30_000 if i == 3 else 5) for i in ROWS]
    assert "text" in described(csv(tmp_path, texts), text_encoder="tfidf")
    assert "text" in described(
        jsonl(tmp_path, [{"x": text, "label": label} for text, label in zip(texts, LABELS, strict=True)]),
        text_encoder="tfidf",
    )
    assert len(load_raw(DataOptions(path=str(csv(tmp_path, [f"text {i}\nof lines" for i in range(60_000)])))).train.inputs) == 60_000  # fmt: skip # noqa: E501


def test_a_quote_that_is_never_closed_swallows_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('x,label\n1,a\n2,"b\n3,a\n4,b\n')
    assert refused(path) == "FILE: a quote in row 1 is never closed; close it, or double it"


def test_the_row_of_a_broken_line_is_that_of_the_file(tmp_path: Path) -> None:
    rows: list[Any] = [{"x": i, "label": LABELS[i % 2]} for i in range(100_000)]
    assert "in row 90000" in refused(jsonl(tmp_path, [*rows[:90_000], "oops"]))
    assert "Column(/x)" in (found := refused(jsonl(tmp_path, [*rows[:90_000], {"x": "w", "label": "a"}])))
    assert "in row 90000" in found


def test_labels_that_are_missing_or_all_differ(tmp_path: Path) -> None:
    path = parquet(tmp_path, label=[float(i % 2) if i != 4 else float("nan") for i in ROWS])
    from unflip.data.labeling import choose_labels

    options = DataOptions(path=str(path))
    assert choose_labels(load_raw(options), options)[0].given.tolist() == [i % 2 if i != 4 else -1 for i in ROWS]
    path = tmp_path / "t.csv"
    path.write_text("x,label\n" + "".join(f"{i % 7},name{i}\n" for i in range(200)))
    options = DataOptions(path=str(path))
    with pytest.raises(InputError, match="all 200 labels differ, so they are not classes"):
        choose_labels(load_raw(options), options)


def test_a_column_called_split_can_be_something_else(tmp_path: Path) -> None:
    path = csv(tmp_path, ["left", "right", "right", "left"] * 10, "Split")
    assert "must be train, val, clean-val or test" in refused(path)
    assert "category" in described(path, categorical=("Split",))
    assert "Split" not in described(path, ignore=("Split",))


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ([i * 1.3 if i % 5 else "?" for i in ROWS], "number     8 empty cells filled with the median"),
        ([i * 1.3 if i % 5 else "-" for i in ROWS], "number     8 empty cells filled with the median"),
        ([2**70 + i * 10**18 for i in ROWS], "number     1.18059e+21 to"),
        (["yes", "no", "no", "yes"] * 10, "category   2 values: no, yes"),
    ],
)
def test_how_unusual_cells_are_described(tmp_path: Path, cells: list[Any], line: str) -> None:
    assert line in described(csv(tmp_path, cells))


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([f"{i * i + 1000:,}" for i in ROWS], "number"),
        ([f"{i * 1.7:.1f}%" for i in ROWS], "number"),
        ([f"{i * 1.7:.1f}".replace(".", ",") for i in ROWS], "number"),
        ([f"${i * 1.7:.2f}" for i in ROWS], "number"),
        ([f"{i % 12 + 1}/{i % 28 + 1:02}/{i + 1980}" for i in ROWS], "date"),
        ([f"{i % 28 + 1}.{i % 12 + 1}.{i + 1980}" for i in ROWS], "date"),
    ],
)
def test_numbers_and_dates_in_local_forms_are_read(tmp_path: Path, cells: list[Any], kind: str) -> None:
    assert f"  {kind}  " in described(csv(tmp_path, cells))


def test_names_among_numbers_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(
        UnflipWarning, match=r"column 'x': \d+% of the values look like numbers or dates; write them in one form"
    ):
        described(csv(tmp_path, [i * 1.3 if i % 5 else "none" for i in ROWS]))


def test_dates_beyond_microseconds_do_not_wrap(tmp_path: Path) -> None:
    far = pa.array([2**62, 1, 2, 3] * 10, pa.int64()).cast(pa.timestamp("ms"))
    assert "column 'x', row 0:" in refused(parquet(tmp_path, x=far))
    assert "column 'x'" in refused(parquet(tmp_path, x=pa.array([2**31 - 1, 1] * 20, pa.int32()).cast(pa.date32())))


def test_long_names_do_not_fill_the_screen(tmp_path: Path) -> None:
    assert max(map(len, described(csv(tmp_path, [1.5, 2, 7, 9] * 10, "n" * 5000)).splitlines())) < 100
