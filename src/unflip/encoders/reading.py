"""Cells as floats or strings: equal content gives equal values, whatever the column type of the file.

Strings other than plain numbers and dates (``1234.5``, ``2024-12-31``) are read by a *form*, which must fit the whole
column: for dates a format of ``strptime``, for numbers ``1,234.5`` or ``1.234,5`` and a unit, such as ``1.234,5 €``.
"""

import datetime as dt
import re
from contextlib import suppress
from itertools import product
from typing import NamedTuple

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
_DAYS = (  # with the month first where both fit, as pandas does
    *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%m-%d-%Y", "%d-%m-%Y", "%Y/%m/%d"),
    *("%Y.%m.%d", "%d %b %Y", "%d. %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%b %d %Y"),
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_CURRENCIES = "AED|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR|JPY|KRW|MXN|NOK|NZD|PLN|RUB|SEK|SGD|TRY|USD|ZAR"
_UNIT = re.compile(rf"%|‰|[A-Z]{{0,3}}[$€£¥₹₩₽₺₴₫₪₱฿]|kr|zł|Kč|Fr|{_CURRENCIES}")
_SPACES, _MINUS, _QUOTES = r"\s\x{a0}\x{202f}", r"\x{2212}-", r"'\x{2019}"  # in regular expressions of Arrow
_DIGITS = r"^[+(\d][\d\s()/-]+$"
_CODE_NAME = re.compile(
    r"(?i)(?:^|[\W_])(?:zip|plz|post(?:al)?[\W_]?code|(?:tele)?phone|fax)(?:[\W_]?(?:code|number|no))?$"
)
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


class Reading(NamedTuple):
    """How the cells of a column are read."""

    kind: str
    form: str = ""
    """Of strings; empty for plain ones, and for cells that are not strings."""
    example: str = ""
    """A cell and its value; a second value if another form fits all cells, too."""


def find_reading(cells: pa.Array) -> Reading | None:
    """Return the first reading that fits all strings of a column; None if none does."""
    for kind in ("number", "date", "time"):
        if can_parse(cells, kind):
            return Reading(kind)
    fits = [(kind, form) for kind, form in _forms(cells) if can_parse(cells, kind, form)]  # all of one kind
    if not fits:
        return None
    kind, form = fits[0]
    filled = _nullify(cells, _EMPTY).unique().drop_null()
    values = np.stack([_parse(filled, kind, form).to_numpy() for _, form in fits])
    differ = np.argwhere(values != values[0])
    other, row = differ[0] if len(differ) else (0, 0)
    shown = [f"{value:.12g}" if kind == "number" else format_value(value, kind) for value in values[[0, other], row]]
    example = f"'{one_line(str(filled[int(row)]))}' is {shown[0]}" + f" (no cell rules out {shown[1]})" * bool(other)
    return Reading(kind, form, example)


def _forms(cells: pa.Array) -> list[tuple[str, str]]:
    """Return the kinds and forms that strings may have; numbers have one unit at most."""
    units = pc.unique(pc.replace_substring_regex(_nullify(cells, _EMPTY), rf"[\d.,()+{_SPACES}{_QUOTES}{_MINUS}]", ""))
    unit = [str(unit) for unit in units.drop_null().slice(0, 3) if str(unit)]
    numbers = ("1,234.5", "1.234,5") if not unit or (len(unit) == 1 and _UNIT.fullmatch(unit[0])) else ()
    dates = map("".join, product(_DAYS, _CLOCKS))
    return [*(("number", " ".join([form, *unit])) for form in numbers), *(("date", form) for form in dates)]


def are_codes(cells: pa.Array, reading: Reading | None, name: str) -> bool:
    """Whether digits are ZIP codes, phone numbers or the like rather than quantities.

    That is: digits of one length with leading zeros; +49 30 123456 and other groups of digits that are not read
    otherwise; or digits in a column whose name says so.
    """
    named, texts = _CODE_NAME.search(name), types.is_large_string(cells.type)
    if (reading is not None and reading.kind != "number") or not (named or texts):
        return False
    cells = _nullify(to_strings(cells), _EMPTY).drop_null()
    if not len(cells) or not _all_match(cells, _DIGITS) or not _all_match(cells, r"\d\D*\d\D*\d"):
        return False
    if named or _all_match(cells, r"^(\+|00)\d.{5}") or (reading is None and _all_match(cells, ".{7}")):
        return True
    padded = pc.any(pc.match_substring_regex(cells, r"^\(?0\d")).as_py()
    return bool(padded) and (len(pc.unique(pc.utf8_length(cells))) == 1 or not _all_match(cells, r"^\d+$"))


def _all_match(texts: pa.Array, pattern: str) -> bool:
    parts = (texts.slice(0, _FIRST_CELLS), texts)
    return all(pc.all(pc.match_substring_regex(part, pattern)).as_py() for part in parts)


def to_floats(cells: pa.Array, kind: str, name: str, form: str = "") -> Array:
    """Return cells (n,) as float64, NaN where they are empty; raise InputError at invalid or infinite cells.

    Args:
        cells: from :func:`normalize_cells`.
        kind: ``date`` for microseconds since 1970 (UTC), ``time`` for microseconds since midnight, else numbers.
        name: column name, for errors.
        form: of strings, from :func:`find_reading`.
    """
    expected = f"a {kind} such as {_example(form)}" if form else _EXPECTED[kind]
    if can_parse(cells, kind, form):
        values: Array = _parse(cells, kind, form).to_numpy(zero_copy_only=False)
        infinite = np.isinf(values)
        if not infinite.any():
            return values
        row, expected = int(infinite.argmax()), "finite"
    else:
        row, end = 0, len(cells)
        while end - row > 1:
            middle = (row + end) // 2
            row, end = (middle, end) if can_parse(cells.slice(row, middle - row), kind, form) else (row, middle)
    cell = one_line(str(cells.slice(row, 1).cast("string")[0]))[:30]
    raise InputError(f"column '{name}', row {row}: '{cell}' is not {expected}; correct or empty the cell")


def can_parse(cells: pa.Array, kind: str, form: str = "") -> bool:
    """Whether all cells can be parsed as a kind."""
    try:
        _parse(cells.slice(0, _FIRST_CELLS), kind, form)
        _parse(cells, kind, form)
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


def format_value(value: float, kind: str) -> str:
    """Format a value from :func:`to_floats`."""
    return str(_moment_strings(pa.array([value]), kind)[0]) if kind in ("date", "time") else f"{value:,.6g}"


def _parse(cells: pa.Array, kind: str, form: str = "") -> pa.Array:
    """Return cells as float64, null where they are empty; raise pyarrow's exceptions for cells of another kind."""
    if cells.null_count == len(cells):
        return pa.nulls(len(cells), pa.float64())
    if types.is_large_string(cells.type):
        cells = _nullify(cells, _EMPTY)
        if form:
            return (_parse_formed_dates if kind == "date" else _parse_formed_numbers)(cells, form)
    parse = {"date": _parse_dates, "time": _parse_times}.get(kind, _parse_numbers)
    return parse(cells).cast(pa.float64(), safe=False)


def _parse_formed_numbers(cells: pa.Array, form: str) -> pa.Array:
    """Return numbers with separators of thousands, a unit on either side, and a minus or parentheses if negative."""
    mark, unit = form[5], form[8:]
    space, sign, some_unit = f"[{_SPACES}]*", f"[+{_MINUS}]?", f"(?:{re.escape(unit)})?"
    number = rf"(?:\d+|\d{{1,3}}(?:[{form[1]}{_QUOTES}{_SPACES}]\d{{3}})+)(?:[{mark}]\d+)?"
    whole = f"{sign}{space}{some_unit}{space}{sign}{number}{space}{some_unit}"
    fits = pc.match_substring_regex(cells, rf"^(?:{whole}|\({whole}\))$")
    if not pc.all(fits).as_py():
        raise pa.ArrowInvalid(f"not all cells are like {form}")
    digits = pc.replace_substring_regex(pc.replace_substring(cells, unit, "") if unit else cells, rf"[^\d{mark}]", "")
    values = pc.replace_substring(digits, mark, ".").cast(pa.float64())
    return pc.if_else(pc.match_substring_regex(cells, f"[({_MINUS}]"), pc.negate(values), values)


def _parse_formed_dates(cells: pa.Array, form: str) -> pa.Array:
    """Return microseconds since 1970; digits are compared, since Arrow's ``strptime`` takes 31.02. and years of 2."""
    moments = pc.strptime(cells, form, "s")
    padded = pc.replace_substring_regex(cells, r"\b(\d)\b", r"0\1")
    digits = [pc.replace_substring_regex(text, r"\D", "") for text in (padded, pc.strftime(moments, form))]
    if not pc.all(pc.equal(*digits)).as_py():
        raise pa.ArrowInvalid(f"not all cells are like {form}")
    return pc.multiply(moments.cast(pa.int64()), 1_000_000).cast(pa.float64(), safe=False)


def _example(form: str) -> str:
    """Return a number or a date in a form."""
    return f"{dt.datetime(2024, 12, 31, 23, 59):{form}}" if "%d" in form else form


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
