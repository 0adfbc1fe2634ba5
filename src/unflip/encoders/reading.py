"""Reading cells: the same content as numbers, moments or names, whatever type a file gave its column."""

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from unflip.data.arrays import Array
from unflip.errors import InputError, one_line

# Empty cells among numbers and dates: pyarrow's list for .csv files, Python's and pandas' words, what people type
_EMPTY = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?", "-", "--"),
)
_ZONE = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_WANTED = {"number": "a number", "boolean": "true or false", "date": "a date such as 2024-12-31", "time": "a time"}
_SHOWN = 30  # most characters of a cell in an error
_FEW = 100  # cells that tell most columns from another kind


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array of plain values: strings are trimmed, and null where nothing is left of them.

    Extension types become what they store, dictionaries (pandas calls them categories) what they name.
    """
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_string(column.type) or str(column.type) == "string_view":
        column = column.cast(pa.large_string())
    cells = column.combine_chunks()
    return _emptied(pc.utf8_trim_whitespace(cells), ("",)) if types.is_large_string(cells.type) else cells


def kind_of(kind: pa.DataType, name: str) -> str:
    """Return what the cells of a type are: text, number, date or time; refuse lists, structs, bytes and the like.

    Booleans and durations are numbers, and so are empty cells.
    """
    numbers = (
        types.is_integer,
        types.is_floating,
        types.is_decimal,
        types.is_boolean,
        types.is_duration,
        types.is_null,
    )
    if any(test(kind) for test in numbers):
        return "number"
    if types.is_large_string(kind):
        return "text"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    if types.is_time(kind):
        return "time"
    arrays = "; save embeddings as arrays, .npz with `train` and `train_labels`" if "list<" in str(kind) else ""
    raise InputError(
        f"column '{name}' holds {kind}, which cannot be encoded; leave it out with --ignore {name}{arrays}"
    )


def measures(cells: pa.Array, kind: str, name: str) -> Array:
    """Return cells as float64, NaN where they are empty; refuse a cell that cannot be read, and infinite ones.

    Args:
        cells: from :func:`plain`.
        kind: `date` for microseconds since 1970 (in UTC), `time` for those since midnight, else numbers (n,).
        name: the column's name, for errors.
    """
    wanted = _WANTED[kind]
    if parses(cells, kind):
        values: Array = _parse(cells, kind).to_numpy(zero_copy_only=False)
        infinite = np.isinf(values)
        if not infinite.any():
            return values
        row, wanted = int(infinite.argmax()), "finite"
    else:
        row, end = 0, len(cells)
        while end - row > 1:
            middle = (row + end) // 2
            row, end = (middle, end) if parses(cells.slice(row, middle - row), kind) else (row, middle)
    cell = one_line(str(cells.slice(row, 1).cast("string")[0]))[:_SHOWN]
    raise InputError(
        f"column '{name}', row {row}: '{cell}' is not {wanted}; correct or empty the cell, or leave the column out "
        f"with --ignore {name}"
    )


def parses(cells: pa.Array, kind: str) -> bool:
    """Whether all cells can be read as a kind."""
    try:
        _parse(cells.slice(0, _FEW), kind)
        _parse(cells, kind)
    except pa.ArrowException:
        return False
    return True


def names(cells: pa.Array) -> pa.Array:
    """Return cells as text, null where they are empty; whole numbers without a point, dates without an empty time."""
    kind = cells.type
    if types.is_floating(kind):
        cells = pc.if_else(pc.is_nan(cells), None, cells)
        with suppress(pa.ArrowInvalid):  # some are not whole
            cells = cells.cast(pa.int64())
    elif types.is_decimal(kind) or types.is_duration(kind):
        return names(_parse(cells, "number"))
    elif types.is_date(kind) or types.is_timestamp(kind):
        return _moment_names(_parse(cells, "date"), "date")
    elif types.is_time(kind):
        return _moment_names(_parse(cells, "time"), "time")
    return cells.cast(pa.large_string())


def words(texts: pa.Array) -> float:
    """Return how many words texts have on average; where words are not separated, two characters are one."""
    separated = pc.count_substring_regex(texts, r"\S+")
    others = pc.count_substring_regex(texts, r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
    return float(np.add(separated.to_numpy(), others.to_numpy() / 2).mean()) if len(texts) else 0.0


def shown_moment(measure: float, kind: str) -> str:
    """Return a measure of a `date` or `time` as people write it."""
    return str(_moment_names(pa.array([measure]), kind)[0])


def _parse(cells: pa.Array, kind: str) -> pa.Array:
    """Return cells as float64, null where they are empty; raises pyarrow's exceptions at another kind."""
    if cells.null_count == len(cells):
        return pa.nulls(len(cells), pa.float64())
    if types.is_large_string(cells.type):
        cells = _emptied(cells, _EMPTY)
    parse = {"date": _parse_dates, "time": _parse_times}.get(kind, _parse_numbers)
    return parse(cells).cast(pa.float64(), safe=False)


def _parse_numbers(cells: pa.Array) -> pa.Array:
    """Return numbers, 1 for true and 0 for false, seconds for durations."""
    if types.is_decimal(cells.type):  # by way of text, so that 0.1 is what it is in a .csv, to the last bit
        cells = cells.cast(pa.large_string())
    if types.is_duration(cells.type):
        return pc.divide(cells.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)
    if types.is_large_string(cells.type):
        cells = pc.replace_substring_regex(pc.replace_substring_regex(cells, "(?i)^true$", "1"), "(?i)^false$", "0")
    return cells.cast(pa.float64(), safe=False)


def _parse_dates(cells: pa.Array) -> pa.Array:
    """Return microseconds since 1970; what names no time zone is taken as UTC."""
    naive = pa.timestamp("us")
    if types.is_timestamp(cells.type):
        exact = cells.type.unit != "ns"  # then safe: dates beyond the years that microseconds can hold are refused
        return cells.cast(pa.timestamp("us", cells.type.tz), safe=exact).cast(pa.int64())
    if types.is_date(cells.type):
        return cells.cast(naive).cast(pa.int64())
    cells = pc.replace_substring_regex(cells, r"(\.\d{6})\d{1,3}", r"\1")  # refuses other cells than texts
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
    moments = pc.binary_join_element_wise(day, cells, space)  # other cells than texts are refused
    return moments.cast(pa.timestamp("us")).cast(pa.int64())


def _emptied(texts: pa.Array, empty: tuple[str, ...]) -> pa.Array:
    """Return texts with null in the place of ``empty`` ones."""
    gaps = pc.is_in(texts, value_set=pa.array(empty, texts.type))
    return pc.if_else(gaps, pa.scalar(None, texts.type), texts) if pc.any(gaps).as_py() else texts


def _moment_names(microseconds: pa.Array, kind: str) -> pa.Array:
    """Return dates or times as text, without a fraction that is zero, dates also without a time that is."""
    whole = pc.round(microseconds).cast(pa.int64())
    texts = whole.cast(pa.time64("us") if kind == "time" else pa.timestamp("us")).cast(pa.large_string())
    return pc.replace_substring_regex(texts, r"( 00:00:00)?\.0+$", "")
