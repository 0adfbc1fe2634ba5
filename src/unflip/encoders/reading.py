"""Cells as floats or strings: equal content gives equal values, whatever the column type of the file."""

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from unflip.data.arrays import Array
from unflip.errors import InputError, one_line

# Empty cells of numbers and dates: pyarrow's list for .csv files, and what pandas, Python and people write
_EMPTY = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?", "-", "--"),
)
_ZONE = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_EXPECTED = {"number": "a number", "boolean": "true or false", "date": "a date such as 2024-12-31", "time": "a time"}
_FIRST_CELLS = 100  # parsed first, since most columns of another kind fail there
_NUMBERS = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_duration, types.is_null)


def normalize_cells(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array of plain values: strings are stripped, and null if empty.

    Extension types are replaced by their storage, dictionaries (pandas' categoricals) by their values.
    """
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_string(column.type) or str(column.type) == "string_view":
        column = column.cast(pa.large_string())
    cells = column.combine_chunks()
    return _nullify(pc.utf8_trim_whitespace(cells), ("",)) if types.is_large_string(cells.type) else cells


def kind_of(kind: pa.DataType, name: str) -> str:
    """Return the kind of a column type: text, number, date or time; raise InputError for lists, structs and bytes.

    Booleans, durations and columns without values are numbers.
    """
    if any(test(kind) for test in _NUMBERS):
        return "number"
    if types.is_large_string(kind):
        return "text"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    if types.is_time(kind):
        return "time"
    raise InputError(f"column '{name}': cannot encode {kind}; convert the column, or drop it")


def to_floats(cells: pa.Array, kind: str, name: str) -> Array:
    """Return cells (n,) as float64, NaN where they are empty; raise InputError at invalid or infinite cells.

    Args:
        cells: from :func:`normalize_cells`.
        kind: ``date`` for microseconds since 1970 (UTC), ``time`` for microseconds since midnight, else numbers.
        name: column name, for errors.
    """
    expected = _EXPECTED[kind]
    if can_parse(cells, kind):
        values: Array = _parse(cells, kind).to_numpy(zero_copy_only=False)
        infinite = np.isinf(values)
        if not infinite.any():
            return values
        row, expected = int(infinite.argmax()), "finite"
    else:
        row, end = 0, len(cells)
        while end - row > 1:
            middle = (row + end) // 2
            row, end = (middle, end) if can_parse(cells.slice(row, middle - row), kind) else (row, middle)
    cell = one_line(str(cells.slice(row, 1).cast("string")[0]))[:30]
    raise InputError(f"column '{name}', row {row}: '{cell}' is not {expected}; correct or empty the cell")


def can_parse(cells: pa.Array, kind: str) -> bool:
    """Whether all cells can be parsed as a kind."""
    try:
        _parse(cells.slice(0, _FIRST_CELLS), kind)
        _parse(cells, kind)
    except pa.ArrowException:
        return False
    return True


def to_strings(cells: pa.Array) -> pa.Array:
    """Return cells as strings, null where they are empty; integral floats as integers, dates without a zero time."""
    kind = cells.type
    if types.is_floating(kind):
        cells = pc.if_else(pc.is_nan(cells), None, cells)
        with suppress(pa.ArrowInvalid):  # not all are integers
            cells = cells.cast(pa.int64())
    elif types.is_decimal(kind) or types.is_duration(kind):
        return to_strings(_parse(cells, "number"))
    elif types.is_date(kind) or types.is_timestamp(kind):
        return _moment_strings(_parse(cells, "date"), "date")
    elif types.is_time(kind):
        return _moment_strings(_parse(cells, "time"), "time")
    return cells.cast(pa.large_string())


def average_words(texts: pa.Array) -> float:
    """Return the mean number of words; in scripts without spaces, two characters count as a word."""
    separated = pc.count_substring_regex(texts, r"\S+")
    others = pc.count_substring_regex(texts, r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
    return float(np.add(separated.to_numpy(), others.to_numpy() / 2).mean()) if len(texts) else 0.0


def format_moment(microseconds: float, kind: str) -> str:
    """Format a date or time from :func:`to_floats`."""
    return str(_moment_strings(pa.array([microseconds]), kind)[0])


def _parse(cells: pa.Array, kind: str) -> pa.Array:
    """Return cells as float64, null where they are empty; raise pyarrow's exceptions for cells of another kind."""
    if cells.null_count == len(cells):
        return pa.nulls(len(cells), pa.float64())
    if types.is_large_string(cells.type):
        cells = _nullify(cells, _EMPTY)
    parse = {"date": _parse_dates, "time": _parse_times}.get(kind, _parse_numbers)
    return parse(cells).cast(pa.float64(), safe=False)


def _parse_numbers(cells: pa.Array) -> pa.Array:
    """Return numbers, 1 for true and 0 for false, seconds for durations."""
    if types.is_decimal(cells.type):  # by way of text, so that 0.1 equals the 0.1 of a .csv file
        cells = cells.cast(pa.large_string())
    if types.is_duration(cells.type):
        return pc.divide(cells.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)
    if types.is_large_string(cells.type):
        cells = pc.replace_substring_regex(pc.replace_substring_regex(cells, "(?i)^true$", "1"), "(?i)^false$", "0")
    return cells.cast(pa.float64(), safe=False)


def _parse_dates(cells: pa.Array) -> pa.Array:
    """Return microseconds since 1970; dates without a time zone are in UTC."""
    naive = pa.timestamp("us")
    if types.is_timestamp(cells.type):
        exact = cells.type.unit != "ns"  # then safe: dates out of range are errors
        return cells.cast(pa.timestamp("us", cells.type.tz), safe=exact).cast(pa.int64())
    if types.is_date(cells.type):
        return cells.cast(naive).cast(pa.int64())
    cells = pc.replace_substring_regex(cells, r"(\.\d{6})\d{1,3}", r"\1")  # raises for other types than strings
    zoned, nothing = pc.match_substring_regex(cells, _ZONE), pa.scalar(None, cells.type)
    return pc.coalesce(
        pc.if_else(zoned, cells, nothing).cast(pa.timestamp("us", "UTC")).cast(pa.int64()),
        pc.if_else(zoned, nothing, cells).cast(naive).cast(pa.int64()),
    )


def _parse_times(cells: pa.Array) -> pa.Array:
    """Return microseconds since midnight."""
    if types.is_time(cells.type):
        return cells.cast(pa.time64("us"), safe=False).cast(pa.int64())
    day, space = (pa.scalar(text, pa.large_string()) for text in ("1970-01-01", " "))
    moments = pc.binary_join_element_wise(day, cells, space)  # raises for other types than strings
    return moments.cast(pa.timestamp("us")).cast(pa.int64())


def _nullify(texts: pa.Array, empty: tuple[str, ...]) -> pa.Array:
    """Replace texts that are in ``empty`` by null."""
    gaps = pc.is_in(texts, value_set=pa.array(empty, texts.type))
    return pc.if_else(gaps, pa.scalar(None, texts.type), texts) if pc.any(gaps).as_py() else texts


def _moment_strings(microseconds: pa.Array, kind: str) -> pa.Array:
    """Format dates or times without a fraction of zero, and dates without a time of zero."""
    whole = pc.round(microseconds).cast(pa.int64())
    texts = whole.cast(pa.time64("us") if kind == "time" else pa.timestamp("us")).cast(pa.large_string())
    return pc.replace_substring_regex(texts, r"( 00:00:00)?\.0+$", "")
