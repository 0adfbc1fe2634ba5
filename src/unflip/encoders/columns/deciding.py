"""What a column is: decided from the training cells alone, never from labels, and by what a person says."""

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from unflip.data.arrays import Array
from unflip.encoders.base import choose_text_encoder
from unflip.encoders.columns.kinds import (
    Category,
    Column,
    LeftOut,
    Measured,
    Text,
    check_type,
    finite,
    numbered,
    refusal,
    texts,
)
from unflip.encoders.columns.reading import (
    Misfit,
    are_whole,
    blocks,
    is_moment,
    is_numeric,
    is_text,
    is_whole,
    meaning,
    moment,
    names,
    plain,
    share_of_numbers,
    value_type,
    words,
)
from unflip.errors import InputError, UnflipWarning, one_line, unknown

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 50  # names of a column that have a feature of their own
_SHARE = 0.05  # of the filled cells that these names must have, else a column says too little
_WORDS = 3.0  # from this number on average, strings that mostly differ are texts
_LOOKED_AT = 20_000  # rows, evenly spaced, that tell texts from names
_RUNNING = 10  # fewest rows in which consecutive numbers are no coincidence
_DENSE = 50  # fewest rows in which distinct whole numbers that fill half of their range are none
_ID_NAME = re.compile(r"(?i:(?:^|[\W_])(?:id|idx|index|key|guid|uuid)$)|[a-z](?:Id|ID)$")  # not `paid`
_HALF = 0.5  # names of which as many are numbers may be meant as numbers
_NEARLY_ALL = 0.9  # names of which as many look like numbers or dates are hardly anything else
_SEVERAL = 5  # names that may be numbers
_LOCAL_NUMBER = r"^[^\w\s]{0,2}\s?\d[\d.,' ]*\s?([%\p{Sc}]|[A-Z]{3})?$"  # 1,234.5 and 12,5 and 7 % and $3
_LOCAL_DATE = r"^\d{1,4}[./-]\s?(\d{1,2}|[A-Za-z]{3,9})[./-]?\s?\d{1,4}\b"
_LISTED = 4  # names that a description lists
_SHOWN = 20  # most characters of each


@dataclass(frozen=True)
class ColumnChoices:
    """What a person says of columns, by their names; the others are decided from their cells."""

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    text_column: tuple[str, ...] = ()

    def of(self, name: str) -> str | None:
        """Return which of them names a column."""
        return next((field.name for field in fields(self) if name in getattr(self, field.name)), None)

    def check(self, columns: Iterable[str]) -> None:
        """Refuse names of columns that are not there, and a column that two choices name."""
        columns, chosen = list(columns), dict[str, str]()
        for field in fields(self):
            for name in getattr(self, field.name):
                if name not in columns:
                    raise InputError(f"--{_flag(field.name)}: {unknown('column', name, columns)}")
                if chosen.setdefault(name, field.name) != field.name:
                    flags = f"--{_flag(chosen[name])} and --{_flag(field.name)}"
                    raise InputError(f"column '{name}' is named by {flags}; name it once")


def _flag(name: str) -> str:
    return name.replace("_", "-")


def decide(name: str, column: "pa.ChunkedArray", choice: str | None, text_encoder: str | None) -> Column:
    """Return what a column is, and how it is encoded."""
    column = plain(column)
    check_type(column.type, name)
    if choice == "categorical":
        return _category(name, column, asked=True)
    if choice == "text_column":
        return _text(name, column, text_encoder)
    kind = value_type(column.type)
    if is_moment(kind) or (not is_text(kind) and not is_numeric(kind)):
        return _measured(name, column, "date" if is_moment(kind) else "time", whole=False, asked=True)
    if not is_text(kind):
        return _measured(name, column, "number", whole=is_whole(kind), asked=choice == "numeric")
    if choice is None and _are_texts(name, column):
        return _text(name, column, text_encoder)
    values = _distinct(name, column)
    found = meaning(values)
    if found in ("date", "time"):
        return _measured(name, column, found, whole=False, asked=True)
    if found in ("number", "boolean") or choice == "numeric":
        return _measured(
            name, column, "number", whole=found == "number" and are_whole(values), asked=choice == "numeric"
        )
    return _category(name, column, asked=False)


def _left_out(name: str, why: str) -> LeftOut:
    return LeftOut(name, "left out", why)


def _distinct(name: str, column: "pa.ChunkedArray") -> "pa.Array":
    return numbered(_whole(column), name)[1]


def _whole(column: "pa.ChunkedArray") -> "pa.Array":
    """Return a column of names as one array, each name held once."""
    import pyarrow.types as types

    return (column if types.is_dictionary(column.type) else column.dictionary_encode()).combine_chunks()


def _measured(name: str, column: "pa.ChunkedArray", kind: str, *, whole: bool, asked: bool) -> Column:
    """Return a column of measures; ``asked`` for, it is never taken for a boolean or an identifier."""
    values = np.empty(len(column))
    for start, cells in blocks(column):
        try:
            values[start : start + len(cells)] = finite(cells, kind, name)
        except Misfit as misfit:
            raise InputError(
                f"{refusal(misfit, name, kind, start)}, or leave the column out with --ignore {name}"
            ) from misfit
    filled = values[~np.isnan(values)]
    gaps = len(values) - len(filled)
    if not len(filled):
        return _left_out(name, "all cells are empty")
    low, high = float(filled.min()), float(filled.max())
    if low == high and not gaps:
        return _left_out(name, f"always {_shown(low, kind)}")
    if kind == "number" and not asked and low >= 0 and high <= 1 and bool(((filled == 0) | (filled == 1)).all()):
        fill = float(2 * filled.sum() > len(filled))
        why = f"{_count(gaps, 'empty cell')} count{'s' * (gaps == 1)} as {fill:.0f}" if gaps else "only 0 and 1"
        return Measured(name, "boolean", why, center=0.0, scale=1.0, fill=fill, gaps=gaps > 0)
    if whole and not asked and not gaps and (reason := _identifier(name, filled, low, high)) is not None:
        return _left_out(name, reason)
    center = _median(filled)
    values[np.isnan(values)] = center
    why = f"{_count(gaps, 'empty cell')} get{'s' * (gaps == 1)} the median, {_shown(center, kind)}"
    return Measured(
        name,
        kind,
        why if gaps else f"{_shown(low, kind)} to {_shown(high, kind)}",
        center=center,
        scale=_deviation(values, center),
        fill=center,
        gaps=gaps > 0,
    )


def _median(values: Array) -> float:
    middle = (len(values) - 1) // 2, len(values) // 2
    parted = np.partition(values, middle)
    return float(parted[middle[0]] / 2 + parted[middle[1]] / 2)  # halved before the sum, which might overflow


def _deviation(values: Array, center: float) -> float:
    """Return the standard deviation, 1 if it is 0; neither huge nor tiny numbers are lost on the way."""
    with np.errstate(over="ignore"):
        centered = values - center
    largest = min(float(np.abs(centered).max()), np.finfo(np.float64).max)
    unit = 2.0 ** min(1023, max(-1000, np.frexp(largest)[1]))  # dividing by a power of two loses nothing
    return float(unit * np.clip(centered / unit, -2, 2).std()) or 1.0


def _identifier(name: str, values: Array, low: float, high: float) -> str | None:
    """Say why distinct whole numbers number the rows rather than measure something, if they do."""
    count, span = len(values), high - low + 1
    consecutive = count >= _RUNNING and span == count
    if consecutive or (count >= _DENSE and span <= 2 * count):
        met = np.zeros(int(span), bool)
        met[(values - low).astype(np.int64)] = True
        if met.sum() == count:
            order = "consecutive" if consecutive else f"{count:,} distinct"
            return f"looks like an index: {order} numbers from {low:.0f} to {high:.0f}"
    if count >= _RUNNING and (steps := np.diff(values))[0] > 0 and bool((steps == steps[0]).all()):
        return f"looks like an index: it grows by {steps[0]:.0f} in each row"
    if _ID_NAME.search(name) and count > 1 and len(np.unique(values)) == count:
        return f"looks like an identifier, by its name and {count:,} distinct numbers"
    return None


def _category(name: str, column: "pa.ChunkedArray", *, asked: bool) -> Column:
    """Return a column of names, unless too few cells have a name that is frequent."""
    import pyarrow.types as types

    place, values = numbered(_whole(column), name)
    of = meaning(values) if is_text(values.type) else "number"
    if is_moment(values.type) or types.is_time(values.type):
        of = "date" if is_moment(values.type) else "time"
    of = "number" if of == "boolean" else of
    found = names(values, of)
    counts = np.bincount(place, minlength=len(values) + 1)
    again, found = numbered(found, name)  # names may differ in the space around them alone
    counts = np.bincount(np.append(again, len(found)), counts, len(found) + 1).astype(np.int64)
    counts, gaps = counts[:-1], int(counts[-1])
    count, distinct = int(counts.sum()), int((counts > 0).sum())
    if not distinct:
        return _left_out(name, "all cells are empty")
    if distinct == 1 and not gaps:
        return _left_out(name, f"always {_cell(found[int(counts.argmax())].as_py())}")
    kept = _frequent(found, counts, _fewest(count)) or (_frequent(found, counts, 1) if asked else [])
    cells = sum(size for _, size in kept)
    if not asked and (distinct == count > 1 or cells < _SHARE * count):
        return _left_out(name, _too_many(name, found, count, distinct, len(kept), cells))
    order = [value for value, _ in kept]
    order.sort(key=(lambda value: (float(value), value)) if of == "number" else str)
    why = f"{_count(distinct, 'value')}: {_listed(order, distinct)}"
    if distinct - len(kept) > 1:
        why += f"; the {distinct - len(kept):,} rarest are one feature"
        if not asked and (share := share_of_numbers(found)) >= _HALF:
            why += f"; {share:.0%} of them are numbers: empty the other cells to use these"
    if not asked and distinct >= _SEVERAL:
        _warn_of_numbers(name, found, distinct)
    why += f"; {_count(gaps, 'empty cell')} as a value of {'its' if gaps == 1 else 'their'} own" if gaps else ""
    return Category(name, "category", why, values=tuple(order), of=of, other=distinct > len(kept), gaps=gaps > 0)


def _fewest(count: int) -> int:
    """Return how many of ``count`` cells must have a name: 2 of up to 200, then 1 %, at most 10, but 0.01 %."""
    return max(2, min(10, count // 100), count // 10_000)


def _frequent(found: "pa.Array", counts: Array, fewest: int) -> list[tuple[str, int]]:
    """Return the most frequent names that at least ``fewest`` cells have, and how many have each."""
    enough = np.flatnonzero(counts >= fewest)
    if len(enough) > MOST:  # only what is as frequent as the last one that has a place, before names are compared
        enough = enough[counts[enough] >= np.partition(counts[enough], -MOST)[-MOST]]
    sizes = dict(zip(found.take(enough).to_pylist(), counts[enough].tolist(), strict=True))
    return sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:MOST]


def _too_many(name: str, found: "pa.Array", count: int, distinct: int, kept: int, cells: int) -> str:
    """Say why a column of names is left out."""
    if (share := share_of_numbers(found)) >= _HALF:
        return f"{distinct:,} distinct names, {share:.0%} of them numbers; empty the other cells to use these"
    if _share(found, _LOCAL_DATE) >= _HALF:
        return f"{distinct:,} distinct names that look like dates; write them as 2024-12-31 to use them"
    if _share(found, _LOCAL_NUMBER) >= _HALF:
        return f"{distinct:,} distinct names that look like numbers; write them as 1234.5 to use them"
    if distinct == count:
        return f"looks like an identifier: {_count(distinct, 'distinct name')}"
    frequent = f"the {kept} most frequent in only {cells / count:.1%} of the cells" if kept else "none of them frequent"
    return f"{distinct:,} distinct names, {frequent}; --categorical {name} to use it"


def _warn_of_numbers(name: str, found: "pa.Array", distinct: int) -> None:
    """Say that a column of names was most likely meant otherwise."""
    if share_of_numbers(found) >= _NEARLY_ALL:
        what, how = "most of them numbers", "empty the other cells"
    elif _share(found, _LOCAL_DATE) >= _NEARLY_ALL:
        what, how = "which look like dates", "write them as 2024-12-31"
    elif _share(found, _LOCAL_NUMBER) >= _NEARLY_ALL:
        what, how = "which look like numbers", "write them as 1234.5"
    else:
        return
    warnings.warn(
        f"column '{name}': {distinct:,} values, {what}, are taken for names; {how}, or say --categorical {name}",
        UnflipWarning,
        stacklevel=2,
    )


def _share(found: "pa.Array", pattern: str) -> float:
    """Return the share of names that match."""
    import pyarrow.compute as pc

    return float(np.mean(pc.match_substring_regex(found.drop_null(), pattern).to_numpy(zero_copy_only=False)))


def _sample(name: str, column: "pa.ChunkedArray") -> "pa.Array":
    """Return the filled ones of cells that are evenly spaced, as texts."""
    if len(column) > _LOOKED_AT:
        column = column.take(np.linspace(0, len(column) - 1, _LOOKED_AT).astype(np.int64))
    return texts(column.combine_chunks(), name).drop_null()


def _are_texts(name: str, column: "pa.ChunkedArray") -> bool:
    """Whether strings have several words and mostly differ."""
    sample = _sample(name, column)
    return words(sample) >= _WORDS and 2 * len(sample.unique()) >= len(sample)


def _text(name: str, column: "pa.ChunkedArray", text_encoder: str | None) -> Column:
    """Return a column of texts with an encoder that was fitted to them."""
    sample = _sample(name, column)
    empty = sum(texts(cells, name).null_count for _, cells in blocks(column))
    if empty == len(column):
        return _left_out(name, "all cells are empty")
    if not empty and len(sample.unique()) == 1 and len(texts(column.combine_chunks(), name).unique()) == 1:
        return _left_out(name, f"always {_cell(sample[0].as_py())}")
    encoder_name, kind = choose_text_encoder(text_encoder)
    encoder = kind.fit([text for _, cells in blocks(column) for text in texts(cells, name).fill_null("").to_pylist()])
    width = encoder.encode([""]).shape[1]
    average = f"{words(sample):.0f} words on average" if words(sample) >= 1.5 else "about one word each"
    why = f"{average}; {width} features by {encoder_name}"
    why += f"; {_count(empty, 'empty cell')}" if empty else ""
    return Text(name, "text", why, encoder=encoder, encoder_name=encoder_name, features=width, gaps=empty > 0)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _shown(measure: float, kind: str) -> str:
    return moment(measure, kind) if kind in ("date", "time") else f"{measure:,.6g}"


def _cell(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= _SHOWN else f"{name[: _SHOWN - 3]}..."


def _listed(values: list[str], distinct: int) -> str:
    return ", ".join(map(_cell, values[:_LISTED])) + (", ..." if distinct > _LISTED else "")
