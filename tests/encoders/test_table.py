"""Tables of all kinds of columns: what each is taken for, its features, and the same features from any file."""

import datetime as dt
import io
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unflip.encoders as text_package
from unflip.data.arrays import Array
from unflip.data.columns import Table
from unflip.data.dataset import Encoding
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.encoders import columns as columns_module
from unflip.encoders import encoders
from unflip.encoders.columns import Category, ColumnChoices, Measured
from unflip.encoders.table import TableEncoder, encode_raw
from unflip.encoders.text import TextEncoder
from unflip.errors import InputError, UnflipError, UnflipWarning
from unflip.registry import Entry, Registry


class Lengths(TextEncoder):
    """Two features: characters by the longest text, and words."""

    name: ClassVar[str] = "lengths"

    def __init__(self, longest: float, words: Array) -> None:
        self.longest, self.words = longest, words
        self.width = 2

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        return cls(float(max(map(len, texts))), np.array([max(len(text.split()) for text in texts)], np.float32))

    def encode_block(self, texts: list[str]) -> Array:
        counts = [(len(text) / self.longest, len(text.split()) / self.words[0]) for text in texts]
        return np.array(counts, np.float32).reshape(len(texts), 2)

    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        return {"longest": self.longest}, {"words": self.words}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        return cls(settings["longest"], arrays["words"])


@pytest.fixture(autouse=True)
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Make ``Lengths`` the only text encoder; return the names that were asked for."""
    asked: list[str | None] = []

    def choose(name: str | None) -> tuple[str, type[TextEncoder]]:
        asked.append(name)
        return "lengths", Lengths

    monkeypatch.setattr(columns_module, "choose_text_encoder", choose)
    registry = Registry("text encoder", [Entry("lengths", "", f"{__name__}:Lengths")])
    monkeypatch.setattr(registry, "load", {"lengths": Lengths}.__getitem__)
    monkeypatch.setattr(text_package, "text_encoders", registry)
    return asked


def cells(**columns: Any) -> Table:
    return Table(pa.table(columns))


def fit(columns: Mapping[str, Any], **choices: tuple[str, ...]) -> TableEncoder:
    return TableEncoder.fit(cells(**columns), ColumnChoices(**choices))


def kinds(encoder: TableEncoder) -> dict[str, str]:
    return {column.name: column.kind for column in encoder.columns}


def kind_of(values: Any, name: str = "x", **choices: tuple[str, ...]) -> str:
    return kinds(fit({"age": [3.5, 1.0] * (len(values) // 2) + [7.0] * (len(values) % 2), name: values}, **choices))[
        name
    ]


def features(encoder: TableEncoder, new: Table) -> Any:
    return encoder.encode(new).features.tolist()


def spread(values: Sequence[Any], times: int) -> list[Any]:
    return [value for value in values for _ in range(times)]


RANDOM = np.random.default_rng(0)
DISTINCT_INCOMES = [int(x) for x in RANDOM.permutation(np.arange(20_000, 90_000, 7))[:200]]


# What a column is


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("number", [1.5, 2.5, 3.5, None]),
        ("number", [1, 2, 3, 3]),  # few distinct integers
        ("number", [1, 2, 3]),  # consecutive, but by chance as likely as not
        ("number", DISTINCT_INCOMES),
        ("number", RANDOM.normal(size=1000)),  # all distinct floats
        ("number", np.arange(100) / 10),
        ("number", [Decimal("1.50"), Decimal("2.25"), Decimal("3.00")]),
        ("number", ["1", "2.5", " 1e3 ", "NA", ""]),
        ("number", pa.array([1, 60, 3600], pa.duration("s"))),
        ("boolean", [True, False, None]),
        ("boolean", ["True", "FALSE", "true"]),
        ("boolean", [0, 1, 1]),
        ("boolean", [0.0, 1.0, float("nan")]),
        ("boolean", ["0", "1", "1"]),
        ("date", [dt.date(2024, 1, 1), None, dt.date(2024, 2, 1)]),
        ("date", pa.array([1000, 2000, 3000], pa.timestamp("ns"))),
        ("date", pa.array([1, 2, 3], pa.timestamp("s", "Europe/Berlin"))),
        ("date", ["2024-01-01", "2024-02-01T10:00", "", "2024-02-01 10:00:00.123456789"]),
        ("date", ["2024-01-01T10:00:00Z", "2024-01-01 10:00:00+02:00", "2024-02-01"]),
        ("time", ["10:00", "23:59:59", "12:00:00.5"]),
        ("time", [dt.time(10), dt.time(11), None]),
        ("category", ["a", "b", "a", "b", "c"]),
        ("category", spread(["Bachelor of Science", "Master of Science", "none of these"], 5)),
        ("category", ["yes", None, "yes", None]),  # its gaps tell something
        ("category", pa.array(["a", "b", "a", "b"]).dictionary_encode()),
        ("text", [f"the {i}th customer wrote this" for i in range(30)]),
        ("text", ["这个产品非常好用", "我不喜欢这个东西", "质量很差不推荐"]),  # without spaces between words
        ("dropped", [f"customer-{i}" for i in range(30)]),
        ("dropped", [f"{first} {last}" for first in "abcdefghij" for last in "klmno"]),
        ("dropped", [f"name{i % 450}" for i in range(500)]),  # none frequent
        ("dropped", np.arange(30)),
        ("dropped", np.arange(1, 31)[::-1]),
        ("number", RANDOM.permutation(30) + 500),  # ranks, for all we know
        ("number", RANDOM.permutation(100)[:70]),
        ("dropped", np.sort(RANDOM.permutation(100)[:70])),  # the training part of an index
        ("dropped", np.arange(0, 300, 10)),
        ("dropped", [str(i) for i in range(30)]),
        ("dropped", [7, 7, 7]),
        ("dropped", ["same", "same"]),
        ("dropped", [None, None]),
        ("dropped", ["", " ", None]),
        ("dropped", [float("nan"), None]),
        ("dropped", pa.nulls(3)),
    ],
)
def test_kinds_are_decided_from_the_cells(kind: str, values: Any) -> None:
    assert kind_of(values) == kind


def test_ages_that_happen_to_differ_are_numbers() -> None:
    assert kind_of([18, 21, 25, 30, 31, 33, 40, 41, 45, 47, 52, 60]) == "number"
    assert kind_of(np.arange(0, 300, 10)[RANDOM.permutation(30)]) == "number"  # equal steps, in no order


@pytest.mark.parametrize(
    ("name", "kind"),
    [("customer_id", "dropped"), ("customerId", "dropped"), ("ID", "dropped"), ("paid", "number"), ("v", "number")],
)
def test_distinct_whole_numbers_are_identifiers_if_their_name_says_so(name: str, kind: str) -> None:
    assert kind_of(DISTINCT_INCOMES, name) == kind
    assert kind_of(DISTINCT_INCOMES[:-1] + DISTINCT_INCOMES[:1], name) == "number"  # one of them twice


def test_a_person_overrules() -> None:
    columns = {"n": list(range(40)), "b": [0, 1] * 20, "c": spread("ab", 20), "s": [f"s{i}" for i in range(40)]}
    assert kinds(fit(columns)) == {"n": "dropped", "b": "boolean", "c": "category", "s": "dropped"}
    chosen = fit(columns, numeric=("n",), categorical=("b", "s"), text_column=("c",))
    assert kinds(chosen) == {"n": "number", "b": "category", "c": "text", "s": "category"}
    assert chosen.columns[3].width == 41 - 1  # 40 names, each once


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"numeric": ("agee",)}, r"--numeric: unknown column 'agee', did you mean 'age'\?; choose from: age, plan"),
        (
            {"numeric": ("age",), "text_column": ("age",)},
            "column 'age' is named by --numeric and --text-column; name it once",
        ),
        ({"numeric": ("plan",)}, "column 'plan', row 0: 'a' is not a number; correct or empty the cell"),
    ],
)
def test_choices_that_cannot_be_are_refused(choices: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit({"age": [1.0, 2.0, 4.0], "plan": ["a", "a", "b"]}, **choices)


@pytest.mark.parametrize(
    "values",
    [[[1], [2]], [{"a": 1}, {"a": 2}], [b"\xff", b"\xfe"], pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval())],
)
def test_nested_cells_and_bytes_are_refused(values: Any) -> None:
    with pytest.raises(InputError, match=r"column 'tags': cannot encode .*; convert the column, or drop it"):
        fit({"age": [1.0, 2.0], "tags": values})


def test_a_table_without_anything_to_learn_from_is_refused() -> None:
    for table in (pa.table({}), pa.table({"x": pa.array([], pa.float64())}), pa.table({"x": [1.0, 1.0]})):
        with pytest.raises(InputError, match="no usable column"):
            TableEncoder.fit(Table(table))


@pytest.mark.parametrize("values", [[1.0, float("inf")], ["1", "-inf"], pa.array([1, float("inf")], pa.float32())])
def test_infinite_cells_are_refused(values: Any) -> None:
    with pytest.raises(InputError, match=r"column 'x', row 1: '-?inf' is not finite"):
        fit({"x": values})
    with pytest.raises(InputError, match=r"column 'x', row 1: '-?inf' is not finite"):
        fit({"x": [1.0, 2.0]}).encode(cells(x=values))


# Features


def test_numbers_are_standardized_and_gaps_get_the_median() -> None:
    encoder = fit({"b": [1, 2, 3, 10], "a": [5.0, None, 8.0, 6.0]})
    filled = np.array([5.0, 6.0, 8.0, 6.0])
    seen = np.array([5.0, 8.0, 6.0])
    b = np.array([1, 2, 3, 10])
    expected = np.column_stack([(b - b.mean()) / b.std(), (filled - seen.mean()) / seen.std(), [0, 1, 0, 0]])
    made = encoder.encode(cells(a=[5.0, None, 8.0, 6.0], b=[1, 2, 3, 10]))
    assert made.features.dtype == np.float32
    np.testing.assert_allclose(made.features, expected, rtol=1e-6)
    assert made.remarks == ()


def test_columns_far_from_zero_lose_little() -> None:
    small = np.array([0.0, 1.0, 3.0, 10.0, 4.0])
    encoder = fit({"x": small, "far": small + 1e12})
    x, far = encoder.encode(cells(x=small, far=small + 1e12)).features.T
    np.testing.assert_allclose(x, far, atol=1e-4)


@pytest.mark.parametrize("values", [[1e308, -1e308, 1.7e308], [5e-324, 0.0, 1e-320], [1e-200, 2e-200, 3e-200]])
def test_huge_and_tiny_numbers_stay_finite(values: list[float]) -> None:
    assert np.isfinite(fit({"x": values}).encode(cells(x=values)).features).all()
    assert np.isfinite(fit({"x": [0.0, 1e-30]}).encode(cells(x=[1e300])).features).all()


def test_booleans_stay_zero_and_one_and_gaps_get_the_more_frequent_value() -> None:
    encoder = fit({"ok": [True, None, True, False]})
    assert features(encoder, cells(ok=["true", "", "1", "False"])) == [[1, 0], [1, 1], [1, 0], [0, 0]]
    assert features(encoder, cells(ok=[2, 0, 1, None])) == [[2, 0], [0, 0], [1, 0], [1, 1]]  # a count, after all


def test_categories_have_a_feature_each_and_rare_ones_share_one() -> None:
    encoder = fit({"plan": ["pro", "free", " pro ", "free", "gold", "iron", None, ""]})
    assert features(encoder, cells(plan=["free", "pro", "iron", "new", "", "pro "])) == [
        [0, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
        [1, 0, 0, 0],
        [0, 0, 1, 0],
    ]
    strict = fit({"plan": ["pro", "free", "pro", "free"]})
    made = strict.encode(cells(plan=["pro", "new", "odd", None]))
    assert made.features.tolist() == [[0, 1], [0, 0], [0, 0], [0, 0]]
    assert made.remarks == ("plan: 1 empty cell", "plan: 2 unknown values")


def test_at_most_fifty_categories_the_most_frequent() -> None:
    names = [f"c{i:03d}" for i in range(80)]
    column = fit({"c": [name for i, name in enumerate(names) for _ in range(100 + i)]}).columns[0]
    assert isinstance(column, Category)
    assert column.values == names[30:]
    assert column.rare is not None
    tied = fit({"c": spread(names[::-1], 100)}).columns[0]
    assert isinstance(tied, Category)
    assert tied.values == names[30:]  # whatever the order of the rows


def test_too_many_names_say_too_little() -> None:
    column = fit({"x": np.arange(60_000) % 7 + 0.5, "zip": [f"z{i % 3000}" for i in range(60_000)]}).columns[1]
    assert (column.kind, column.why) == (
        "dropped",
        "3,000 distinct values, none of them frequent; to use it: --categorical zip",
    )


def test_numbers_and_dates_can_be_categories() -> None:
    encoder = fit({"zip": [7, 12, 7, 12], "day": ["2024-01-01", "2024-01-02"] * 2}, categorical=("zip", "day"))
    new = cells(zip=[7.0, 12.0, 8.0, None], day=[dt.date(2024, 1, 2)] * 4)
    assert features(encoder, new) == [[0, 1, 0, 1], [1, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]]
    assert [column.why for column in encoder.columns] == ["2 values: 12, 7", "2 values: 2024-01-01, 2024-01-02"]


def test_names_that_a_file_without_other_names_turns_into_another_type() -> None:
    encoder = fit({"c": ["True", "7", "maybe", "2024-01-01"] * 2})
    assert encoder.columns[0].kind == "category"
    for values, place in (([True, True], 2), ([7, 7], 1), ([7.0, 7.0], 1), ([dt.date(2024, 1, 1)] * 2, 0)):
        made = encoder.encode(cells(c=values))
        assert made.features.argmax(1).tolist() == [place] * 2
        assert made.remarks == ()


def test_texts_go_to_the_text_encoder(lengths: list[str | None]) -> None:
    texts = ["one two three four", "a b c", None, "some more words here"]
    table = cells(x=[1.0, 2.0, 3.0, 5.0], note=texts)
    encoder = TableEncoder.fit(table, text_encoder="lengths")
    assert lengths == ["lengths"]
    assert kinds(encoder) == {"x": "number", "note": "text"}
    made = encoder.encode(table)
    assert np.array_equal(
        made.features[:, 1:],
        Lengths.fit([text or "" for text in texts]).encode(["" if text is None else text for text in texts]),
    )
    assert encoder.columns[1].why == "4 words on average; 2 features from lengths; 1 empty cell"
    assert TableEncoder.fit(cells(note=["a b c d", "e f g h"])).encode(cells(note=[None, "x"])).remarks == (
        "note: 1 empty cell",
    )


def test_without_texts_no_text_encoder_is_asked_for(lengths: list[str | None]) -> None:
    fit({"x": [1.0, 2.0], "c": ["a", "a"]})
    assert lengths == []


# New examples


def test_columns_are_found_by_name() -> None:
    table = cells(a=[1.0, 2.0, 4.0], left=[1, 1, 1], b=["x", "x", "y"])
    encoder = TableEncoder.fit(table)
    other = cells(new=[[1], [2], [3]], b=["x", "x", "y"], a=[1.0, 2.0, 4.0])
    assert features(encoder, other) == features(encoder, table)
    with pytest.raises(InputError, match="no column 'b'; it has a, c"):
        encoder.encode(cells(a=[1.0], c=[2]))


@pytest.mark.parametrize(
    ("training", "new", "message"),
    [
        ([1.5, 2.5], ["1", "two"], "row 1: 'two' is not a number"),
        ([1.5, 2.5], [None, dt.date(2024, 1, 1)], "row 1: '2024-01-01' is not a number"),
        ([True, False], ["true", "no"], "row 1: 'no' is not true or false"),
        ([dt.date(2024, 1, 1), dt.date(2024, 1, 2)], [1, 2], "row 0: '1' is not a date"),
        ([dt.date(2024, 1, 1), dt.date(2024, 1, 2)], ["2024-01-01", "2024-02-30"], "row 1: '2024-02-30' is not a date"),
        (["10:00", "11:00"], ["2024-01-01", "10:00"], "row 0: '2024-01-01' is not a time"),
        ([1.5, 2.5], [[1], [2]], ": cannot encode list"),
        (["a", "a", "b", "b"], [[1], [2]], ": cannot encode list"),
    ],
)
def test_cells_of_another_kind_are_refused(training: Any, new: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"column 'x',? ?{message}"):
        fit({"x": training}).encode(cells(x=new))


def test_the_row_of_a_wrong_cell_is_found_in_any_block() -> None:
    encoder = fit({"x": [1.5, 2.5]})
    values = ["1"] * 100_000
    values[77_777] = "oops\nsecond line"
    with pytest.raises(UnflipError, match="column 'x', row 77777: 'oops second line' is not a number"):
        encoder.encode(cells(x=values))
    with pytest.raises(UnflipError, match="column 'x', row 77777"):
        fit({"x": values}, numeric=("x",))


def test_empty_cells_are_remarked_only_if_the_training_examples_had_none() -> None:
    encoder = fit({"age": [1.0, 2.0, 4.0], "sum": [1.0, None, 2.0]})
    made = encoder.encode(cells(age=[None, 1.0, None], sum=[None, None, 1.0]))
    assert made.remarks == ("age: 2 empty cells",)
    assert made.features[0, 2] == 1
    assert encoder.encode(cells(age=pa.nulls(3), sum=["", "NA", "1"])).remarks == ("age: 3 empty cells",)
    assert encoder.encode(Table(cells(age=[1.0], sum=[1.0]).table.slice(0, 0))).features.shape == (0, 3)


# The same content from any file

ROWS = 120


def content(rows: int = ROWS) -> dict[str, list[Any]]:
    """Every kind of column, each with gaps, as Python values."""
    draw = np.random.default_rng(1)

    def with_gaps(values: Sequence[Any]) -> list[Any]:
        return [None if draw.random() < 0.1 else value for value in values]

    start = dt.datetime(2020, 1, 1)
    return {
        "float": with_gaps(draw.normal(size=rows).tolist()),
        "int": with_gaps(draw.integers(0, 1000, rows).tolist()),
        "price": with_gaps((draw.integers(0, 10**6, rows) / 100).tolist()),
        "bool": with_gaps((draw.random(rows) < 0.4).tolist()),
        "plan": with_gaps(draw.choice(["free", "pro", "team", "big one"], rows).tolist()),
        "day": with_gaps([(start + dt.timedelta(days=int(d))).date() for d in draw.integers(0, 900, rows)]),
        "moment": with_gaps([start + dt.timedelta(seconds=int(s)) for s in draw.integers(0, 10**8, rows)]),
        "hour": with_gaps([dt.time(int(h), int(m)) for h, m in draw.integers(0, 24, (rows, 2))]),
        "text": with_gaps([" ".join(draw.choice(["good", "bad", "so so"], 9)) for _ in range(rows)]),
    }


def as_csv(columns: Mapping[str, list[Any]], true: str = "true", false: str = "false") -> pa.Table:
    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return true if value else false
        return "" if value is None else str(value)

    rows = [",".join(columns), *(",".join(map(cell, row)) for row in zip(*columns.values(), strict=True))]
    return pyarrow.csv.read_csv(io.BytesIO("\n".join(rows).encode()))


def as_jsonl(columns: Mapping[str, list[Any]]) -> pa.Table:
    rows = zip(*columns.values(), strict=True)
    lines = [json.dumps(dict(zip(columns, row, strict=True)), default=lambda value: value.isoformat()) for row in rows]
    return pyarrow.json.read_json(io.BytesIO("\n".join(lines).encode()))


def as_pandas_parquet(columns: Mapping[str, list[Any]], folder: Path) -> pa.Table:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns)
    frame["plan"] = frame["plan"].astype("category")
    frame["moment"] = pandas.to_datetime(frame["moment"])
    frame.to_parquet(folder / "t.parquet")
    return pyarrow.parquet.read_table(folder / "t.parquet")


def as_strings(columns: Mapping[str, list[Any]]) -> pa.Table:
    texts = {name: [None if cell is None else str(cell) for cell in column] for name, column in columns.items()}
    return pa.table(texts, pa.schema([(name, pa.large_string()) for name in texts]))


def in_other_types(columns: Mapping[str, list[Any]]) -> pa.Table:
    table = pa.table(columns)
    others = {
        "int": table["int"].cast(pa.float64()),
        "bool": table["bool"].cast(pa.int8()),
        "plan": table["plan"].cast(pa.string_view()),
        "day": table["day"].cast(pa.timestamp("ns")),
        "moment": table["moment"].cast(pa.timestamp("ms", "UTC")),
        "price": pa.array(
            [None if cell is None else Decimal(str(cell)) for cell in columns["price"]], pa.decimal128(20, 4)
        ),
        "text": table["text"].dictionary_encode(),
    }
    other = pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **others})
    return pa.concat_tables([other.slice(0, 7), other.slice(7, 50), other.slice(57)])  # in chunks


def test_the_same_content_from_any_file_has_the_same_features(tmp_path: Path) -> None:
    columns = content()
    tables = {
        "memory": pa.table(columns),
        "csv": as_csv(columns),
        "csv of pandas": as_csv(columns, "True", "False"),
        "csv with 0 and 1": as_csv(columns, "1", "0"),
        "jsonl": as_jsonl(columns),
        "pandas": as_pandas_parquet(columns, tmp_path),
        "strings": as_strings(columns),
        "others": in_other_types(columns),
    }
    encoders_of = {name: TableEncoder.fit(Table(table)) for name, table in tables.items()}
    expected = encoders_of["memory"].encode(Table(tables["memory"]))
    assert [column.kind for column in encoders_of["memory"].columns] == [
        *("number", "number", "number", "boolean", "category", "date", "date", "time", "text"),
    ]
    for fitted, encoder in encoders_of.items():
        assert encoder.describe() == encoders_of["memory"].describe(), fitted
        for source, table in tables.items():
            made = encoder.encode(Table(table))
            assert np.array_equal(made.features, expected.features), (fitted, source)
            assert made.remarks == ()


def test_dictionaries_that_differ_between_chunks() -> None:
    chunks = [pa.array(values).dictionary_encode() for values in (["a", "b", "a"], ["c", "b", "c"], [None, "a", "b"])]
    table = pa.table({"c": pa.chunked_array(chunks)})
    encoder = TableEncoder.fit(Table(table))
    assert encoder.encode(Table(table)).features.argmax(1).tolist() == [0, 1, 0, 2, 1, 2, 3, 0, 1]


# Against scikit-learn, and properties


def test_features_are_those_of_scikit_learn() -> None:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    pandas = pytest.importorskip("pandas")
    columns = content(400)
    frame = pandas.DataFrame({name: columns[name] for name in ("float", "int", "price", "plan")})
    frame.loc[:1, "plan"] = "rare"
    table = Table(pa.Table.from_pandas(frame))
    number = make_pipeline(StandardScaler(), SimpleImputer(strategy="median", add_indicator=True))
    reference = ColumnTransformer(
        [
            *((name, number, [name]) for name in ("float", "int", "price")),
            ("plan", OneHotEncoder(min_frequency=4, sparse_output=False), ["plan"]),
        ]
    )
    expected = reference.fit_transform(frame.assign(plan=frame["plan"].fillna("")))
    ours = TableEncoder.fit(table).encode(table).features
    assert ours.shape == (400, 12)
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_fifty_columns_of_all_kinds_with_gaps_in_each_need_no_option() -> None:
    columns = {f"{name} {i}": values for i in range(6) for name, values in content(300).items()}
    table = cells(**dict(list(columns.items())[:50]))
    assert all(column.null_count for column in table.table.columns)
    encoder = TableEncoder.fit(table)
    made = encoder.encode(table)
    assert len(encoder.describe()) == 50
    assert not any(column.kind == "dropped" for column in encoder.columns)
    assert made.features.shape == (300, encoder.width)
    assert np.isfinite(made.features).all()
    assert made.remarks == ()


CELLS = {
    "number": st.floats(allow_infinity=False, width=64) | st.none(),
    "int": st.integers(-(2**63), 2**63 - 1) | st.none(),
    "name": st.sampled_from(["a", "b", " a", "", "NA", "ü", "7"]) | st.none(),
    "any": st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.none(),
    "bool": st.booleans() | st.none(),
    "moment": st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2260, 1, 1)) | st.none(),
}
TYPES = {
    "number": pa.float64(),
    "int": pa.int64(),
    "name": pa.string(),
    "any": pa.string(),
    "bool": pa.bool_(),
    "moment": pa.timestamp("us"),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(2, 25))
    columns = {
        name: pa.array(draw(st.lists(cell, min_size=rows, max_size=rows)), TYPES[name]) for name, cell in CELLS.items()
    }
    return pa.table({**columns, "x": np.arange(rows) + 0.5})


@given(tables(), st.data())
@settings(max_examples=15)
def test_rows_are_encoded_by_themselves(table: pa.Table, data: st.DataObject) -> None:
    encoder = TableEncoder.fit(Table(table))
    made = encoder.encode(Table(table)).features
    assert np.isfinite(made).all()
    order = np.array(data.draw(st.permutations(range(len(table)))))
    assert np.array_equal(encoder.encode(Table(table)[order]).features, made[order])
    again = TableEncoder.fit(Table(table)[order])
    assert [column.kind for column in again.columns] == [column.kind for column in encoder.columns]
    extra = table.append_column("extra", pa.nulls(len(table))).select(["extra", *reversed(table.column_names)])
    assert np.array_equal(encoder.encode(Table(extra)).features, made)
    restored = TableEncoder.restore(encoder.encoding())
    assert np.array_equal(restored.encode(Table(table)).features, made)


# How it travels, and what it says


def test_an_encoder_travels_as_plain_data() -> None:
    table = Table(pa.table({**content(), "none": [1] * ROWS, "text.two": content()["text"]}))
    encoder = TableEncoder.fit(table)
    encoding = encoder.encoding()
    assert encoding.encoder == "table"
    assert encoders.load("table") is TableEncoder
    settings = json.loads(json.dumps(encoding.settings, allow_nan=False))
    assert settings == encoding.settings
    assert {*encoding.arrays} == {"8/words", "10/words"}
    restored = TableEncoder.restore(Encoding("table", settings, dict(encoding.arrays)))
    assert restored.describe() == encoder.describe()
    assert restored.encoding().settings == encoding.settings
    made, again = encoder.encode(table), restored.encode(table)
    assert made.features.tobytes() == again.features.tobytes()


def test_what_it_says() -> None:
    rows = 1000
    encoder = fit(
        {
            "customer": [f"c-{i}" for i in range(rows)],
            "age": [None if i % 30 == 0 else 20 + i % 43 for i in range(rows)],
            "plan": [["basic", "free", "pro", "team"][i % 4] for i in range(rows)],
            "city": [f"city {i % 7}" if i % 50 else f"rare\n{i}" for i in range(rows)],
            "paid": [None if i == 5 else i % 3 == 0 for i in range(rows)],
            "since": [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(rows)],
            "at": [dt.time(i % 24) for i in range(rows)],
            "row": list(range(1, rows + 1)),
            "const": ["x"] * rows,
            "empty": pa.nulls(rows),
            "income": [f"about {i * 17 % 997}" for i in range(rows)],
            "note": [f"the customer {i} said this" for i in range(rows)],
        },
    )
    assert encoder.describe() == [
        "customer  dropped    looks like an identifier: 1,000 distinct values",
        "age       number     34 empty cells filled with the median, 41",
        "plan      category   4 values: basic, free, pro, team",
        "city      category   27 values: city 0, city 1, city 2, city 3, ...; the 20 rarest share a feature",
        "paid      boolean    1 empty cell filled with 0",
        "since     date       2020-01-01 to 2022-09-26",
        "at        time       00:00:00 to 23:00:00",
        "row       dropped    looks like an index: increases by 1 in each row",
        "const     dropped    always x",
        "empty     dropped    all cells are empty",
        "income    dropped    997 distinct values, none of them frequent; to use it: --categorical income",
        "note      text       5 words on average; 2 features from lengths",
    ]


def test_a_measured_column_says_what_it_needs() -> None:
    column = fit({"x": [1.0, 2.0, 6.0]}).columns[0]
    assert isinstance(column, Measured)
    assert (column.center, column.fill, column.gaps, column.why) == (3.0, 2.0, False, "1 to 6")


# Columns as people write them


@pytest.mark.parametrize(
    ("values", "expected", "line"),
    [
        (["€7,877.51", "€12", "-€5.5", ""], [7877.51, 12, -5.5, None], "'€7,877.51' is 7877.51"),
        (["1.234,50 €", "12,5 €", "1.234 €"], [1234.5, 12.5, 1234], "'1.234,50 €' is 1234.5"),
        (["6 %", "7.5%", "NA", "-3 %"], [6, 7.5, None, -3], "'6 %' is 6"),
        (["(1,234.00)", "55.1", "\u22122"], [-1234, 55.1, -2], "'(1,234.00)' is -1234"),
        (["USD 5", "1,000.5 USD", "USD -3"], [5, 1000.5, -3], "'USD 5' is 5"),
        (["1'234.5", "15", "1'000'000"], [1234.5, 15, 1e6], "'1'234.5' is 1234.5"),
        (["1 234,5", "1\u202f000\u00a0000", "7"], [1234.5, 1e6, 7], "'1 234,5' is 1234.5"),
        (["1.234.567", "12"], [1234567, 12], "'1.234.567' is 1234567"),
        (["12", "1,234", "2,345"], [12, 1234, 2345], "'1,234' is 1234 (no cell rules out 1.234)"),
        (["1.234", "2.345"], [1.234, 2.345], "1.234 to 2.345"),  # plain, as ever
    ],
)
def test_numbers_in_local_forms(values: list[str], expected: list[float | None], line: str) -> None:
    encoder = fit({"x": values})
    column = TableEncoder.restore(encoder.encoding()).columns[0]
    assert (column.kind, column.why.split("; ")[-1]) == ("number", line)
    assert np.array_equal(encoder.encode(cells(x=values)).features, encoder.encode(cells(x=expected)).features)
    assert np.array_equal(encoder.encode(cells(x=values)).features[::2], encoder.encode(cells(x=values[::2])).features)


@pytest.mark.parametrize(
    ("values", "days", "line"),
    [
        (["08.02.2021", "31.12.2020", "1.3.2021"], ["2021-02-08", "2020-12-31", "2021-03-01"], ""),
        (["08.02.21", "31.12.99"], ["2021-02-08", "1999-12-31"], ""),
        (["28/02/2021", "2/3/2021"], ["2021-02-28", "2021-03-02"], ""),
        (
            ["2/2/2021", "2/3/2021"],
            ["2021-02-02", "2021-02-03"],
            "'2/3/2021' is 2021-02-03 (no cell rules out 2021-03-02)",
        ),
        (["Feb 8, 2021", "March 9, 2020", "-"], ["2021-02-08", "2020-03-09", None], "'Feb 8, 2021' is 2021-02-08"),
        (["8-Feb-21", "9-Mar-20"], ["2021-02-08", "2020-03-09"], ""),
        (["2/28/2021 3:05 PM", "2/8/2021 12:05 AM"], ["2021-02-28 15:05:00", "2021-02-08 00:05:00"], ""),
        (["08.02.2021 13:05", "9.2.2021 1:00"], ["2021-02-08 13:05:00", "2021-02-09 01:00:00"], ""),
    ],
)
def test_dates_in_local_forms(values: list[str], days: list[str | None], line: str) -> None:
    encoder = fit({"x": values})
    assert kinds(encoder) == {"x": "date"}
    assert encoder.columns[0].why.endswith(line or f"'{values[0]}' is {days[0]}")
    moments = pa.array([None if day is None else dt.datetime.fromisoformat(day) for day in days])
    assert np.array_equal(encoder.encode(cells(x=values)).features, encoder.encode(cells(x=moments)).features)


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        ("category", "x", ["01067", "10115", "80331", "10115"] * 5),
        ("category", "PLZ", [1067, 10115, 80331, 10115] * 5),
        ("category", "zip_code", pa.array([1067, None, 80331, 10115] * 5, pa.float64())),
        ("number", "x", [1067, 10115, 80331, 10115] * 5),
        ("number", "month", ["01", "02", "11", "12"] * 5),
        ("boolean", "phone", [0, 1, 1, 0] * 5),  # whether there is one
        ("dropped", "x", [f"+49 30 {100_000 + i}" for i in range(20)]),
        ("dropped", "x", [f"+4930{100_000 + i * i}" for i in range(20)]),
        ("dropped", "x", [f"030 12 34 {i + 10}" for i in range(20)]),  # no texts of four words
        ("dropped", "x", [f"(555) 123-{1000 + i}" for i in range(20)]),
        ("category", "x", ["1.2.3", "2.0.0", "10.0.0.1"] * 5),
        ("category", "x", ["$5", "€5", "$7"] * 5),  # of several currencies
        ("category", "x", ["31.02.2021", "01.02.2021"] * 5),  # no such day
        ("category", "x", ["01.02.2021", "01.02.21"] * 5),
        ("category", "x", ["SKU 1", "SKU 12", "SKU 7"] * 5),
        ("category", "x", ["10-20", "20-30", "30+"] * 5),
    ],
)
def test_codes_are_no_numbers(kind: str, name: str, values: Any) -> None:
    assert kind_of(values, name) == kind
    if kind in ("category", "dropped") and not isinstance(values, pa.Array) and name != "x":
        assert kind_of(values, name, numeric=(name,)) == "number"


@pytest.mark.parametrize(
    ("training", "new", "message"),
    [
        (["€7,877.51", "€2"], ["€1,234.50", "$5"], "row 1: '$5' is not a number such as 1,234.5 €"),
        (["1.234,5", "2"], ["7.5"], "row 0: '7.5' is not a number such as 1.234,5"),
        (["28.02.2021", "01.02.2021"], ["31.02.2021"], "row 0: '31.02.2021' is not a date such as 31.12.2024"),
        (["28.02.2021", "01.02.2021"], ["01.02.21"], "row 0: '01.02.21' is not a date such as 31.12.2024"),
    ],
)
def test_cells_in_another_form_are_refused(training: list[str], new: list[str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        fit({"x": training}).encode(cells(x=new))


def test_a_file_that_is_ambiguous_alone_is_read_as_the_training_file(tmp_path: Path) -> None:
    def load(*rows: str) -> Table:
        (tmp_path / "t.csv").write_text("\n".join(["zip,km,label", *rows]))
        inputs = load_raw(DataOptions(path=str(tmp_path / "t.csv"))).train.inputs
        assert isinstance(inputs, Table)
        return inputs

    encoder = TableEncoder.fit(load('01067,"1.234,5",a', "10115,1.234,b", '01067,"0,5",a', "10115,12,b"))
    assert encoder.describe() == [
        "zip  category   codes, not numbers; 2 values: 01067, 10115",
        "km   number     0.5 to 1,234.5; '1.234,5' is 1234.5",
    ]
    first, second = encoder.encode(load("01067,1.234,a", "10115,2.000,b")).features.tolist()
    expected = encoder.encode(cells(zip=["01067", "10115"], km=[1234.0, 2000.0])).features.tolist()
    assert [first, second] == expected
    assert load("1.234,2.5,a", "5.678,1.25,b").table.schema.types == [pa.string(), pa.float64()]


def test_mixed_forms_are_warned_of() -> None:
    cells = Table(pa.table({"x": [f"{i} %" if i % 2 else f"{i}.05.2024" for i in range(12)] * 5}))
    with pytest.warns(
        UnflipWarning, match="column 'x': 100% of the values look like numbers or dates; write them in one form"
    ):
        TableEncoder.fit(cells)
    TableEncoder.fit(cells, ColumnChoices(categorical=("x",)))  # as declared


def test_a_column_that_repeats_the_labels_is_warned_of(tmp_path: Path) -> None:
    labels = np.arange(60) % 3
    columns = {"x": np.random.default_rng(0).normal(size=60), "class_number": labels + 7, "half": labels > 0}
    table = pa.table(columns | {"label": np.array(["a", "b", "c"])[labels]})
    pa.csv.write_csv(table, tmp_path / "t.csv")
    options = DataOptions(path=str(tmp_path / "t.csv"))
    with pytest.warns(UnflipWarning, match="each value of the column 'class_number' occurs with one class") as caught:
        encode_raw(load_raw(options), options)
    assert len(caught) == 1
    labels[5] = 0
    pa.csv.write_csv(table.set_column(3, "label", pa.array(np.array(["a", "b", "c"])[labels])), tmp_path / "t.csv")
    encode_raw(load_raw(options), options)  # one label that differs is enough
