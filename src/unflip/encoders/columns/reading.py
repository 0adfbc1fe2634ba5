"""Reading cells: the same content as numbers, moments or names, whatever type a file gave its column."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from unflip.data.arrays import Array
from unflip.errors import one_line

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 1 << 15  # rows that are worked on at a time; memory beyond input and output goes with it
_EMPTY = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?", "-", "--"),
)
"""Empty cells among numbers and dates: pyarrow's list for .csv files, Python's and pandas' words, what people type."""
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_WHOLE_NUMBER = r"^[+-]?\d{1,18}$"
_WHOLE = 2.0**53  # whole numbers up to here are exact in float64
_ZONE = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_SHOWN = 30  # most characters of a cell in an error


class Misfit(Exception):  # noqa: N818 - never leaves the encoder
    """A cell cannot be read as what its column should hold."""

    def __init__(self, row: int, cell: object) -> None:
        super().__init__(row, cell)
        try:
            shown = str(cell)
        except (OverflowError, ValueError):  # Python's dates end with the year 9999
            shown = "beyond the year 9999"
        self.row, self.cell = row, one_line(shown)[:_SHOWN]


def plain(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Return a column with its extension types and views as the types that they hold."""
    import pyarrow as pa

    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    return column.cast(pa.large_string()) if str(column.type) == "string_view" else column


def value_type(kind: "pa.DataType") -> "pa.DataType":
    """Return the type of the cells, also of a column that numbers them (pandas calls it a category)."""
    import pyarrow.types as types

    return kind.value_type if types.is_dictionary(kind) else kind


def is_text(kind: "pa.DataType") -> bool:
    """Whether cells are strings."""
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_moment(kind: "pa.DataType") -> bool:
    """Whether cells are dates or timestamps."""
    import pyarrow.types as types

    return bool(types.is_date(kind) or types.is_timestamp(kind))


def is_numeric(kind: "pa.DataType") -> bool:
    """Whether cells are numbers, 0 and 1 for false and true, or durations; empty cells may be numbers too."""
    import pyarrow.types as types

    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_duration, types.is_null)
    return any(test(kind) for test in tests)


def is_whole(kind: "pa.DataType") -> bool:
    """Whether cells are whole numbers by their type."""
    import pyarrow.types as types

    return bool(types.is_integer(kind) or (types.is_decimal(kind) and kind.scale <= 0))


def can_be_read(kind: "pa.DataType") -> bool:
    """Whether a column of this type can be encoded: neither nested nor bytes."""
    import pyarrow.types as types

    kind = value_type(kind)
    return is_text(kind) or is_moment(kind) or is_numeric(kind) or bool(types.is_time(kind))


def blocks(column: "pa.ChunkedArray") -> Iterator[tuple[int, "pa.Array"]]:
    """Yield the first row and the cells of each block of rows."""
    for start in range(0, len(column), BLOCK):
        yield start, block_of(column, start)


def block_of(column: "pa.ChunkedArray", start: int) -> "pa.Array":
    """Return the cells of the block that begins at row ``start``."""
    return column.slice(start, BLOCK).combine_chunks()


def measures(cells: "pa.Array", kind: str) -> Array:
    """Return cells as float64, NaN where they are empty; raise :class:`Misfit` at the first that cannot be read.

    For the ``kind`` `date` they are microseconds since 1970 (in UTC), for `time` since midnight, else numbers; false is
    0, true is 1.
    """
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if cells.null_count == len(cells):
        return np.full(len(cells), np.nan)
    parse = {"date": _moments, "time": _times}.get(kind, _numbers)
    if is_text(cells.type):
        cells = _filled_texts(cells, _EMPTY)
    elif not {"date": is_moment, "time": types.is_time}.get(kind, is_numeric)(cells.type):
        row = int(cells.is_valid().to_numpy(zero_copy_only=False).argmax())
        raise Misfit(row, cells[row])
    try:
        read = parse(cells)
    except pa.ArrowInvalid as error:
        row = _first_wrong(cells, parse)
        raise Misfit(row, cells[row]) from error
    values: Array = read.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def names(values: "pa.Array", of: str) -> "pa.Array":
    """Return cells as text without the space around it, null where they are empty.

    ``of`` is what the training cells were read as: then `7`, `7.0` and `007` are one name if they were numbers, and
    different names if they were text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = values.type
    if types.is_null(kind):
        return values.cast(pa.string())
    if is_text(kind):
        texts = _filled_texts(values, ("",))
        return texts if of == "text" else _same_names(_filled_texts(texts, _EMPTY), of)
    if is_moment(kind):
        return _moment_names(_moments(values), "date")
    if types.is_time(kind):
        return _moment_names(_times(values), "time")
    if types.is_boolean(kind):
        true, false = ("true", "false") if of == "text" else ("1", "0")
        return pc.if_else(values, true, false)
    return values.cast(pa.string()) if types.is_integer(kind) else _number_names(_numbers(values))


def meaning(values: "pa.Array") -> str:
    """Say what strings, each given once, are all read as: number, boolean, date, time or else text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _filled_texts(values, _EMPTY).drop_null()
    if not len(texts) or not len(_misread(texts, _NUMBER)):
        return "number"
    if pc.all(pc.is_in(pc.utf8_lower(texts), value_set=pa.array(["true", "false", "0", "1"], texts.type))).as_py():
        return "boolean"
    for kind, parse in (("number", _numbers), ("date", _moments), ("time", _times)):  # numbers may be infinite
        if not _fails(texts.slice(0, 100), parse) and not _fails(texts, parse):
            return kind
    return "text"


def share_of_numbers(values: "pa.Array") -> float:
    """Return which share of strings, each given once, are numbers."""
    texts = _filled_texts(values, _EMPTY).drop_null()
    return 1 - len(_misread(texts, _NUMBER)) / max(1, len(texts))


def are_whole(values: "pa.Array") -> bool:
    """Whether strings that are numbers are all written as whole ones."""
    return not len(_misread(_filled_texts(values, _EMPTY).drop_null(), r"^[+-]?\d+$"))


def words(texts: "pa.Array") -> float:
    """Return how many words texts have on average; where words are not separated, two characters are one."""
    import pyarrow.compute as pc

    separated = pc.count_substring_regex(texts, r"\S+")
    others = pc.count_substring_regex(texts, r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
    return float(np.add(separated.to_numpy(), others.to_numpy() / 2).mean()) if len(texts) else 0.0


def moment(measure: float, kind: str) -> str:
    """Return a measure of a `date` or `time` as people write it."""
    import pyarrow as pa

    return str(_moment_names(pa.array([round(measure)], pa.int64()), kind)[0])


def _filled_texts(texts: "pa.Array", empty: tuple[str, ...]) -> "pa.Array":
    """Return texts without the space around them, null where nothing is left or one of the ``empty`` words."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(texts)
    gaps = pc.is_in(texts, value_set=pa.array(empty, texts.type))
    return pc.if_else(gaps, pa.scalar(None, texts.type), texts) if pc.any(gaps).as_py() else texts


def _numbers(cells: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    if types.is_decimal(cells.type):  # by way of text, so that 0.1 is what it is in a .csv, to the last bit
        cells = cells.cast(pa.string())
    if types.is_duration(cells.type):
        return pc.divide(cells.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)  # seconds
    if not is_text(cells.type):
        return cells.cast(pa.float64(), safe=False)
    try:
        return cells.cast(pa.float64())
    except pa.ArrowInvalid:
        return _as_digits(cells).cast(pa.float64())


def _as_digits(texts: "pa.Array") -> "pa.Array":
    """Return texts with 1 for true and 0 for false, in any case."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lower = pc.utf8_lower(texts)
    digits = pc.if_else(pc.equal(lower, "true"), pa.scalar("1", texts.type), pa.scalar("0", texts.type))
    return pc.if_else(pc.is_in(lower, value_set=pa.array(["true", "false"], texts.type)), digits, texts)


def _moments(cells: "pa.Array") -> "pa.Array":
    """Return microseconds since 1970; what names no time zone is taken as UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    naive = pa.timestamp("us")
    if types.is_timestamp(cells.type):
        exact = cells.type.unit != "ns"  # then safe: dates beyond the years that microseconds can hold are refused
        return cells.cast(pa.timestamp("us", cells.type.tz), safe=exact).cast(pa.int64())
    if not is_text(cells.type):
        return cells.cast(naive).cast(pa.int64())
    try:
        return cells.cast(naive).cast(pa.int64())
    except pa.ArrowInvalid:
        cells = pc.replace_substring_regex(cells, r"(\.\d{6})\d{1,3}", r"\1")
        zoned, nothing = pc.match_substring_regex(cells, _ZONE), pa.scalar(None, cells.type)
        return pc.coalesce(
            pc.if_else(zoned, cells, nothing).cast(pa.timestamp("us", "UTC")).cast(pa.int64()),
            pc.if_else(zoned, nothing, cells).cast(naive).cast(pa.int64()),
        )


def _times(cells: "pa.Array") -> "pa.Array":
    """Return microseconds since midnight."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_text(cells.type):
        day = pa.scalar("1970-01-01 ", cells.type)
        return pc.binary_join_element_wise(day, cells, pa.scalar("", cells.type)).cast(pa.timestamp("us")).cast("int64")
    return cells.cast(pa.time64("us"), safe=False).cast(pa.int64())


def _same_names(texts: "pa.Array", of: str) -> "pa.Array":
    """Return texts with one spelling for what is the same number or moment; what is none stays as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if of in ("date", "time"):
        parse = _moments if of == "date" else _times
        return texts if _fails(texts, parse) else _moment_names(parse(texts), of).cast(texts.type)
    texts, nothing = _as_digits(texts), pa.scalar(None, texts.type)
    whole = pc.if_else(pc.match_substring_regex(texts, _WHOLE_NUMBER), texts, nothing).cast(pa.int64())
    other = pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, nothing).cast(pa.float64())
    return pc.coalesce(whole.cast(texts.type), _number_names(other).cast(texts.type), texts)


def _number_names(numbers: "pa.Array") -> "pa.Array":
    """Return float64 as text, whole numbers without a point; NaN is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    gaps = pc.fill_null(pc.is_nan(numbers), True)
    numbers = pc.if_else(gaps, pa.scalar(None, pa.float64()), numbers)
    whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less_equal(pc.abs(numbers), _WHOLE))
    digits = pc.if_else(whole, numbers, 0.0).cast(pa.int64()).cast(pa.string())
    return pc.if_else(whole, digits, numbers.cast(pa.string()))


def _moment_names(microseconds: "pa.Array", kind: str) -> "pa.Array":
    """Return dates or times as text, without a fraction that is zero, dates also without a time that is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = microseconds.cast(pa.time64("us") if kind == "time" else pa.timestamp("us")).cast(pa.string())
    return pc.replace_substring_regex(texts, r"( 00:00:00)?\.0+$", "")


def _misread(texts: "pa.Array", pattern: str) -> "pa.Array":
    """Return the texts that do not match."""
    import pyarrow.compute as pc

    return texts.filter(pc.invert(pc.match_substring_regex(texts, pattern)))


def _fails(texts: "pa.Array", parse: Callable[["pa.Array"], Any]) -> bool:
    import pyarrow as pa

    try:
        parse(texts)
    except pa.ArrowInvalid:
        return True
    return False


def _first_wrong(texts: "pa.Array", parse: Callable[["pa.Array"], Any]) -> int:
    """Return the first row that cannot be parsed, by halving; there is one."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        if _fails(texts.slice(low, middle - low), parse):
            high = middle
        else:
            low = middle
    return low
