"""Columns of a table: the kind of each, and its features by scikit-learn's transformers.

The kind of a column is inferred from the training cells alone, never from labels, unless the user declares it
(:class:`ColumnChoices`). :func:`fit_column` returns an instance of one of the classes below. It stores the fitted
values as plain data and rebuilds its transformers from them, so that a loaded model encodes new rows bit for bit as
training did.
"""

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unflip.data.arrays import Array
from unflip.encoders import reading
from unflip.encoders.text import TextEncoder, choose_text_encoder
from unflip.errors import InputError, UnflipWarning, count_of, shorten, unknown
from unflip.progress import Track

_MAX_CATEGORIES = 50  # categories with a feature of their own
_MIN_COVERAGE = 0.05  # share of filled cells that these must cover
_TEXT_WORDS = 3.0  # mean number of words from which distinct strings are texts
_SAMPLE_ROWS = 20_000  # evenly spaced rows to distinguish texts from categories
_MIN_CONSECUTIVE = 10  # rows from which integers at equal steps are an index
_MIN_DENSE = 50  # rows from which increasing integers that fill half of their range are an index
_ID_NAME = re.compile(r"(?i:(?:^|[\W_])(?:id|idx|index|key|guid|uuid|unnamed: 0)$)|[a-z](?:Id|ID)$|^$")  # not `paid`
_LOCAL_NUMBER = r"^[^\w\s]{0,2}\s?(\d[\d.,' ]*|\d{1,4}[./-]\s?\w{1,9}[./-]\s?\d{1,4}\b.*)\s?([%\p{Sc}]|[A-Z]{3})?$"
_MAX_INTEGER = 2.0**53  # up to which float64 represents integers exactly
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ColumnChoices:
    """Column kinds declared by the user, by column name; the kinds of other columns are inferred."""

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    text_column: tuple[str, ...] = ()

    def by_column(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the field that names each declared column; raise InputError if it does not exist or has two."""
        chosen: dict[str, str] = {}
        for kind in (field.name for field in fields(self)):
            for name in getattr(self, kind):
                if name not in columns:
                    raise InputError(f"{_flag(kind)}: {unknown('column', name, columns)}")
                if (other := chosen.setdefault(name, kind)) != kind:
                    raise InputError(f"column '{name}' is named by {_flag(other)} and {_flag(kind)}; name it once")
        return chosen


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


@dataclass(frozen=True)
class Column:
    """A fitted column. This class itself represents a dropped one; its subclasses produce features.

    Attributes:
        name: column name.
        kind: ``dropped``, ``number``, ``boolean``, ``date``, ``time``, ``category`` or ``text``.
        why: the values found or the reason to drop it, for :meth:`~unflip.encoders.table.TableEncoder.describe`.
    """

    name: str
    kind: str
    why: str

    @property
    def width(self) -> int:
        """Number of features."""
        return 0

    def encode(self, cells: pa.Array, track: Track) -> tuple[Array, Counter[str]]:
        """Encode cells from :func:`~unflip.encoders.reading.normalize_cells`.

        Returns:
            Features (n, width), and counts of what the training cells did not contain.
        """
        return np.empty((len(cells), 0)), Counter()

    def settings(self) -> dict[str, Any]:
        """Return the JSON-serializable part of the state."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def arrays(self) -> Mapping[str, Array]:
        """Return the arrays of the state."""
        return {}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Rebuild a column from :meth:`settings` and :meth:`arrays`."""
        return cls(**settings)


@dataclass(frozen=True)
class Measured(Column):
    """Standardized numbers, booleans (0 and 1), dates and times, with an indicator of empty cells.

    Attributes:
        center: mean of the training cells (``mean_`` of scikit-learn's ``StandardScaler``); 0 for a boolean.
        scale: their standard deviation (``scale_``); 1 for a boolean.
        fill: value imputed for an empty cell: the median, or the more frequent of 0 and 1.
        gaps: whether the training cells had gaps; if so, a second feature is 1 where a cell is empty.
        form: how strings are read, see :mod:`unflip.encoders.reading`; empty for plain numbers and dates.
    """

    center: float
    scale: float
    fill: float
    gaps: bool
    form: str = ""

    @property
    def width(self) -> int:
        """One, plus one for the indicator."""
        return 1 + self.gaps

    def encode(self, cells: pa.Array, track: Track) -> tuple[Array, Counter[str]]:
        """Standardize and impute in float64; values beyond the range of float32 are clipped."""
        values = np.clip(reading.to_floats(cells, self.kind, self.name, self.form), -_FLOAT32_MAX, _FLOAT32_MAX)
        empty = np.isnan(values)
        values = (np.where(empty, self.fill, values) - self.center) / self.scale
        features = np.column_stack([values, empty] if self.gaps else [values])
        gaps = 0 if self.gaps else int(empty.sum())
        return np.clip(features, -_FLOAT32_MAX, _FLOAT32_MAX), Counter({"empty cell": gaps})


@dataclass(frozen=True)
class Category(Column):
    """One-hot features of the frequent categories, and one for all others (scikit-learn's ``OneHotEncoder``).

    Attributes:
        values: the frequent categories, sorted; an empty cell is the category ``""``.
        rare: one of the infrequent training categories, which share a feature with unknown ones; None if there were
            none, in which case an unknown category is encoded as zeros.
        gaps: whether the training cells had gaps.
    """

    values: list[str]
    rare: str | None
    gaps: bool

    @property
    def width(self) -> int:
        """One for each frequent category, plus one for infrequent ones."""
        return len(self.values) + (self.rare is not None)

    @cached_property
    def _encoder(self) -> Any:
        from sklearn.preprocessing import OneHotEncoder

        seen = [*self.values, *self.values, *([] if self.rare is None else [self.rare])]
        options: Any = {"handle_unknown": "infrequent_if_exist", "min_frequency": 2, "sparse_output": False}
        return OneHotEncoder(dtype=np.float32, **options).fit(np.array(seen, object)[:, None])

    def encode(self, cells: pa.Array, track: Track) -> tuple[Array, Counter[str]]:
        """Return the one-hot features."""
        names = _filled(cells)
        if pa.types.is_boolean(cells.type):  # a .csv with `True` alone is read as booleans
            spelling = {value.lower(): value for value in self.values}
            names = np.array([spelling.get(name, name) for name in names], object)
        features: Array = self._encoder.transform(names[:, None])
        empty = names == ""
        unseen = ~features.any(1) & ~empty
        gaps = 0 if self.gaps else int(empty.sum())
        return features, Counter({"empty cell": gaps, "unknown value": int(unseen.sum())})


@dataclass(frozen=True)
class Text(Column):
    """Features of a text encoder."""

    encoder: TextEncoder
    encoder_name: str
    gaps: bool

    @property
    def width(self) -> int:
        """That of the text encoder."""
        return self.encoder.width

    def encode(self, cells: pa.Array, track: Track) -> tuple[Array, Counter[str]]:
        """Encode the texts; an empty cell is an empty text."""
        texts = reading.to_strings(cells)
        features = self.encoder.encode(texts.fill_null("").to_pylist(), track)
        return features, Counter({"empty cell": 0 if self.gaps else texts.null_count})

    def settings(self) -> dict[str, Any]:
        """Return the state with the settings of the text encoder."""
        return {**super().settings(), "encoder": dict(self.encoder.state()[0])}

    def arrays(self) -> Mapping[str, Array]:
        """Return the arrays of the text encoder."""
        return self.encoder.state()[1]

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Rebuild the column with its text encoder."""
        _, encoder = choose_text_encoder(settings["encoder_name"])
        return cls(**{**settings, "encoder": encoder.restore(settings["encoder"], arrays)})


def restore_column(settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Column:
    """Rebuild a column of any kind."""
    kinds: dict[str, type[Column]] = {"category": Category, "text": Text, "dropped": Column}
    return kinds.get(settings["kind"], Measured).restore(settings, arrays)


def fit_column(name: str, column: pa.ChunkedArray, choice: str | None, text_encoder: str | None) -> Column:
    """Infer the kind of a column and fit its encoding.

    Args:
        name: column name; one that ends in `id` or the like may mark distinct integers as an identifier.
        column: the training cells.
        choice: the field of :class:`ColumnChoices` that names the column, if any.
        text_encoder: encoder of texts; None for the default.
    """
    cells = reading.normalize_cells(column)
    kind = reading.kind_of(cells.type, name)
    if choice == "categorical":
        return _fit_category(name, cells, declared=True)
    if choice == "text_column":
        return _fit_text(name, cells, text_encoder)
    found = reading.find_reading(cells) if kind == "text" else reading.Reading(kind)
    if choice is None and reading.are_codes(cells, found, name):
        codes = _fit_category(name, cells, declared=False)
        return replace(codes, why=f"codes, not numbers; {codes.why}")
    if found is None and choice is None:
        if _are_texts(cells):
            return _fit_text(name, cells, text_encoder)
        _warn_of_mixed_cells(name, cells.unique().drop_null())
        return _fit_category(name, cells, declared=False)
    return _fit_measured(name, cells, found or reading.Reading("number"), declared=choice == "numeric")


def _dropped(name: str, why: str) -> Column:
    return Column(name, "dropped", why)


def _fit_measured(name: str, cells: pa.Array, found: reading.Reading, *, declared: bool) -> Column:
    """Fit a column of numbers; ``declared`` ones are never taken for booleans or identifiers."""
    from sklearn.preprocessing import StandardScaler

    kind, form, example = found
    values = reading.to_floats(cells, kind, name, form)
    filled = values[~np.isnan(values)]
    gaps = len(values) - len(filled)
    if not len(filled):
        return _dropped(name, "all cells are empty")
    low, high = float(filled.min()), float(filled.max())
    if low == high and not gaps:
        return _dropped(name, f"always {reading.format_value(low, kind)}")
    if kind == "number" and not declared and not form:
        if bool(((filled == 0) | (filled == 1)).all()):
            fill = float(2 * filled.sum() > len(filled))
            why = f"{count_of(gaps, 'empty cell')} filled with {fill:.0f}" if gaps else "only 0 and 1"
            return Measured(name, "boolean", why, center=0.0, scale=1.0, fill=fill, gaps=gaps > 0)
        if not gaps and (reason := _identifier(name, filled, low, high)) is not None:
            return _dropped(name, reason)
    clipped = np.clip(filled, -_FLOAT32_MAX, _FLOAT32_MAX)
    scaler = StandardScaler().fit(clipped[:, None])
    median = float(np.clip(np.median(clipped), low, high))
    why = f"{reading.format_value(low, kind)} to {reading.format_value(high, kind)}"
    if gaps:
        why = f"{count_of(gaps, 'empty cell')} filled with the median, {reading.format_value(median, kind)}"
    why += f"; {example}" if example else ""
    center, scale = float(scaler.mean_[0]), float(scaler.scale_[0])
    return Measured(name, kind, why, center, scale, fill=median, gaps=gaps > 0, form=form)


def _identifier(name: str, values: Array, low: float, high: float) -> str | None:
    """Return why distinct integers number the rows rather than measure something, or None if they do not."""
    count, span = len(values), high - low + 1
    whole = span < _MAX_INTEGER and (values == np.floor(values)).all()
    if count < 2 or not whole or len(np.unique(values)) < count:
        return None
    steps = np.diff(values)
    if count >= _MIN_CONSECUTIVE and bool((steps == steps[0]).all()):
        return f"looks like an index: {'increases' if steps[0] > 0 else 'decreases'} by {abs(steps[0]):.0f} in each row"
    if count >= _MIN_DENSE and bool((steps > 0).all()) and span <= 2 * count:
        return f"looks like an index: increases from {low:.0f} to {high:.0f}"
    return f"looks like an identifier: {count:,} distinct integers" if _ID_NAME.search(name) else None


def _fit_category(name: str, cells: pa.Array, *, declared: bool) -> Column:
    """Fit a column of categories; unless ``declared``, identifiers and columns of rare values are dropped."""
    from sklearn.preprocessing import OneHotEncoder

    names = _filled(cells)
    counts = Counter(names.tolist())
    gaps = counts.pop("", 0)
    filled, distinct = len(names) - gaps, len(counts)
    if not distinct:
        return _dropped(name, "all cells are empty")
    if distinct == 1 and not gaps:
        return _dropped(name, f"always {shorten(names[0])}")
    minimum = max(2, min(10, filled // 100), filled // 10_000)  # 2 of up to 200 cells, then 1 %, at most 10, but 0.01 %
    for min_frequency in (minimum, 1) if declared else (minimum,):
        encoder = OneHotEncoder(min_frequency=min_frequency, max_categories=_MAX_CATEGORIES + 1).fit(names[:, None])
        rare = [] if encoder.infrequent_categories_[0] is None else encoder.infrequent_categories_[0].tolist()
        values = sorted({*counts, *([""] if gaps else [])} - {*rare})
        if any(values):
            break
    frequent = [value for value in values if value]
    if not declared and distinct == filled > 1:
        return _dropped(name, f"looks like an identifier: {distinct:,} distinct values")
    if not declared and sum(counts[value] for value in frequent) / filled < _MIN_COVERAGE:
        return _dropped(name, f"{distinct:,} distinct values, none of them frequent; to use it: --categorical {name}")
    why = f"{count_of(distinct, 'value')}: {', '.join(map(shorten, frequent[:4]))}{', ...' * (distinct > 4)}"
    if distinct - len(frequent) > 1:
        why += f"; the {distinct - len(frequent):,} rarest share a feature"
    why += f"; {count_of(gaps, 'empty cell')}" if gaps else ""
    return Category(name, "category", why, values=values, rare=rare[0] if rare else None, gaps=gaps > 0)


def _warn_of_mixed_cells(name: str, values: pa.Array) -> None:
    """Warn if most of the values, but not all, are numbers or dates, or if they are so in several forms."""
    share = pc.mean(pc.match_substring_regex(values, _LOCAL_NUMBER)).as_py()
    if len(values) >= 5 and share >= 0.5:
        advice = f"write them in one form, or use --categorical {name}"
        text = f"column '{name}': {share:.0%} of the values look like numbers or dates; {advice}"
        warnings.warn(text, UnflipWarning, stacklevel=2)


def _are_texts(cells: pa.Array) -> bool:
    """Whether strings have several words and are mostly distinct."""
    sample = _sample(cells)
    return reading.average_words(sample) >= _TEXT_WORDS and 2 * len(sample.unique()) >= len(sample)


def _sample(cells: pa.Array) -> pa.Array:
    """Return the filled ones of evenly spaced cells, as strings."""
    if len(cells) > _SAMPLE_ROWS:
        cells = cells.take(np.linspace(0, len(cells) - 1, _SAMPLE_ROWS).astype(np.int64))
    return reading.to_strings(cells).drop_null()


def _fit_text(name: str, cells: pa.Array, text_encoder: str | None) -> Column:
    """Fit a text encoder to a column."""
    texts = reading.to_strings(cells)
    empty = texts.null_count
    if empty == len(texts):
        return _dropped(name, "all cells are empty")
    if len(texts.unique()) == 1:
        return _dropped(name, f"always {shorten(texts[0].as_py())}")
    encoder_name, encoder_class = choose_text_encoder(text_encoder)
    encoder = encoder_class.fit(texts.fill_null("").to_pylist())
    why = f"{reading.average_words(_sample(cells)):.0f} words on average; {encoder.width} features from {encoder_name}"
    why += f"; {count_of(empty, 'empty cell')}" if empty else ""
    return Text(name, "text", why, encoder=encoder, encoder_name=encoder_name, gaps=empty > 0)


def _filled(cells: pa.Array) -> Array:
    """Return cells as an object array of strings, ``""`` for empty ones."""
    return np.asarray(reading.to_strings(cells).fill_null("").to_numpy(zero_copy_only=False))
